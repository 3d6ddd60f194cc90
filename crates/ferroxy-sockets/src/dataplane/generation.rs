//! One generation: the maps, and the programs that use them, pinned in a directory of their own. Maps cannot grow and their
//! layout cannot change, so a new generation is made, filled, and put in place by updating the links.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferroxy_bpf::kernel::{Error, Map, MapKind, MapShape, Pinned, Program};
use ferroxy_bpf::{Code, Unresolved};
use ferroxy_core::Family;

use super::hook::Hook;
use crate::entry::{
    Clients, FrontendKey, FrontendValue, MemberKey, MemberValue, SessionKey, SessionValue, SlotKey, SlotValue,
};
use crate::plan::Op;
use crate::program::{COUNTS_SIZE, FLOW_SIZE, PEER_SIZE, Purpose, connect, peer_name};
use crate::state::State;
use crate::terms::Salt;

/// The version of the layout of keys and values. A change of the layout needs another number.
const LAYOUT: u32 = 4;

/// How many clients of Service ports with session affinity are remembered; the least recently used client is evicted.
const SESSIONS: u32 = 1 << 14;
/// How many pairs of frontend and endpoint are counted.
pub const FLOWS: u32 = 1 << 16;

#[derive(Debug)]
pub struct Generation {
    directory: PathBuf,
    name: Name,
    frontends: Map,
    endpoints: Map,
    members: Map,
    written: Written,
    peers: Option<Map>,
}

/// The maps that programs write. A larger generation that replaces this one takes them over.
#[derive(Debug, Clone)]
pub struct Written {
    pub counts: Arc<Map>,
    sessions: Arc<Map>,
    pub flows: Arc<Map>,
}

/// `3-00c0ffee00c0ffee-3`: layout, salt, number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    pub salt: Salt,
    number: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    #[error(transparent)]
    Kernel(#[from] Error),
    #[error("cannot make {path}: {source}", path = path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Program(#[from] Unresolved),
    #[error("more than {0} elements are needed")]
    TooMany(u32),
}

/// How many elements each map has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    pub frontends: u32,
    pub endpoints: u32,
    pub members: u32,
}

impl Written {
    fn create() -> Result<Written, Error> {
        let shape = |kind, key, value, capacity| MapShape { kind, key, value, capacity };
        let sessions = shape(MapKind::LruHash, SessionKey::SIZE, SessionValue::SIZE, SESSIONS);
        Ok(Written {
            counts: Arc::new(Map::create("counts", shape(MapKind::PerCpuArray, 4, COUNTS_SIZE, 1), true)?),
            sessions: Arc::new(Map::create("sessions", sessions, true)?),
            flows: Arc::new(Map::create("flows", shape(MapKind::PerCpuHash, FLOW_SIZE, 8, FLOWS), true)?),
        })
    }
}

impl Name {
    pub fn first(salt: Salt) -> Name {
        Name { salt, number: 0 }
    }

    #[must_use]
    pub fn next(self) -> Name {
        Name { number: self.number.wrapping_add(1), ..self }
    }

    fn parse(text: &str) -> Option<Name> {
        let mut parts = text.split('-');
        let layout: u32 = parts.next()?.parse().ok()?;
        let salt = Salt(u64::from_str_radix(parts.next()?, 16).ok()?);
        let number = parts.next()?.parse().ok()?;
        (layout == LAYOUT && parts.next().is_none()).then_some(Name { salt, number })
    }

    fn directory(self, pins: &Path) -> PathBuf {
        pins.join(format!("{LAYOUT}-{:016x}-{}", self.salt.0, self.number))
    }
}

impl Generation {
    /// Creates and pins empty maps. `written` can be the maps of an earlier generation.
    pub fn create(
        pins: &Path,
        name: Name,
        capacity: Capacity,
        names_peers: bool,
        written: Option<Written>,
    ) -> Result<Generation, GenerationError> {
        let directory = name.directory(pins);
        let hash = |key, value, capacity| MapShape { kind: MapKind::Hash, key, value, capacity };
        let frontends = hash(FrontendKey::SIZE, FrontendValue::SIZE, capacity.frontends);
        let endpoints = hash(SlotKey::SIZE, SlotValue::SIZE, capacity.endpoints);
        let members = hash(MemberKey::SIZE, MemberValue::SIZE, capacity.members);
        let made = Generation {
            frontends: Map::create("frontends", frontends, false)?,
            endpoints: Map::create("endpoints", endpoints, false)?,
            members: Map::create("members", members, false)?,
            written: written.map_or_else(Written::create, Ok)?,
            peers: names_peers.then(|| Map::create_for_sockets("peers", PEER_SIZE)).transpose()?,
            directory,
            name,
        };
        made.pin()?;
        Ok(made)
    }

    /// Pins the maps in the directory again, also if the directory was removed or another file system was mounted over it:
    /// attached programs still read these maps.
    pub fn pin(&self) -> Result<(), GenerationError> {
        remove_directory(&self.directory)?;
        fs::create_dir_all(&self.directory).map_err(|source| file(&self.directory, source))?;
        let names = ["frontends", "endpoints", "counts", "members", "sessions", "flows", "peers"];
        for (map, name) in self.maps().into_iter().zip(names) {
            map.pin(&self.directory.join(name))?;
        }
        Ok(())
    }

    /// Removes all frontends, so that programs that cannot be detached, because their pins are unreachable, translate nothing.
    pub fn clear(&self) -> Result<(), Error> {
        let mut keys = Vec::new();
        self.frontends.for_each(|key, _| keys.push(key.to_vec()))?;
        keys.iter().try_for_each(|key| self.frontends.delete(key).map(drop))
    }

    /// The maps in the order of their positions in programs.
    fn maps(&self) -> Vec<&Map> {
        let Written { counts, sessions, flows } = &self.written;
        let mut maps =
            vec![&self.frontends, &self.endpoints, &**counts, &self.members, &**sessions, &**flows];
        maps.extend(&self.peers);
        maps
    }

    /// The complete generations that earlier runs left, the newest first.
    pub fn all(pins: &Path, names_peers: bool) -> Vec<Generation> {
        let mut names: Vec<Name> = directories(pins).iter().filter_map(|(name, _)| *name).collect();
        names.sort_by_key(|name| std::cmp::Reverse(name.number));
        names.into_iter().filter_map(|name| Generation::open(pins, name, names_peers)).collect()
    }

    fn open(pins: &Path, name: Name, names_peers: bool) -> Option<Generation> {
        let directory = name.directory(pins);
        let map = |map: &str| Map::open_pinned(&directory.join(map)).ok();
        let peers = map("peers");
        let found = Generation {
            frontends: map("frontends")?,
            endpoints: map("endpoints")?,
            members: map("members")?,
            written: Written {
                counts: Arc::new(map("counts")?),
                sessions: Arc::new(map("sessions")?),
                flows: Arc::new(map("flows")?),
            },
            peers: peers.filter(|_| names_peers),
            directory: directory.clone(),
            name,
        };
        let has = |map: &Map, key, value| (map.shape().key, map.shape().value) == (key, value);
        let fits = has(&found.frontends, FrontendKey::SIZE, FrontendValue::SIZE)
            && has(&found.endpoints, SlotKey::SIZE, SlotValue::SIZE)
            && has(&found.members, MemberKey::SIZE, MemberValue::SIZE)
            && has(&found.written.sessions, SessionKey::SIZE, SessionValue::SIZE)
            && has(&found.written.flows, FLOW_SIZE, 8)
            && found.peers.is_some() == names_peers;
        fits.then_some(found)
    }

    /// Whether a restart would find this generation. Another program can remove its pins, and its maps stay in use without them.
    pub fn is_pinned(&self, pins: &Path) -> bool {
        Generation::open(pins, self.name, self.peers.is_some()).is_some()
    }

    pub fn name(&self) -> Name {
        self.name
    }

    pub fn capacity(&self) -> Capacity {
        let room = |map: &Map| map.shape().capacity;
        let (frontends, endpoints) = (room(&self.frontends), room(&self.endpoints));
        Capacity { frontends, endpoints, members: room(&self.members) }
    }

    pub fn written(&self) -> &Written {
        &self.written
    }

    pub fn observe(&self) -> Result<State, Error> {
        let mut state = State::default();
        self.frontends.for_each(|key, value| {
            if let (Ok(key), Ok(value)) = (key.try_into(), value.try_into()) {
                state.frontends.insert(FrontendKey(key), FrontendValue(value));
            }
        })?;
        self.endpoints.for_each(|key, value| {
            if let (Ok(key), Ok(value)) = (key.try_into(), value.try_into()) {
                state.endpoints.insert(SlotKey(key), SlotValue(value));
            }
        })?;
        self.members.for_each(|key, value| {
            if let (Ok(key), Ok(value)) = (key.try_into(), value.try_into()) {
                state.members.insert(MemberKey(key), MemberValue(value));
            }
        })?;
        Ok(state)
    }

    pub fn apply(&self, op: &Op) -> Result<(), Error> {
        match op {
            Op::PutMember(key, value) => self.members.update(&key.0, &value.0),
            Op::PutSlot(key, value) => self.endpoints.update(&key.0, &value.0),
            Op::PutFrontend(key, value) => self.frontends.update(&key.0, &value.0),
            Op::RemoveFrontend(key) => self.frontends.delete(&key.0).map(drop),
            Op::RemoveSlot(key) => self.endpoints.delete(&key.0).map(drop),
            Op::RemoveMember(key) => self.members.delete(&key.0).map(drop),
        }
    }

    /// Writes all elements in batches, into maps that no program uses yet.
    pub fn fill(&self, state: &State) -> Result<(), Error> {
        let keys: Vec<u8> = state.members.keys().flat_map(|key| key.0).collect();
        let values: Vec<u8> = state.members.values().flat_map(|value| value.0).collect();
        self.members.update_all(&keys, &values).1?;
        let keys: Vec<u8> = state.endpoints.keys().flat_map(|key| key.0).collect();
        let values: Vec<u8> = state.endpoints.values().flat_map(|value| value.0).collect();
        self.endpoints.update_all(&keys, &values).1?;
        let keys: Vec<u8> = state.frontends.keys().flat_map(|key| key.0).collect();
        let values: Vec<u8> = state.frontends.values().flat_map(|value| value.0).collect();
        self.frontends.update_all(&keys, &values).1
    }

    /// The program for a hook: the pinned one, if its instructions are those that we would load.
    pub fn program(
        &self,
        hook: Hook,
        host_namespace: u64,
        counts_flows: bool,
    ) -> Result<Program, GenerationError> {
        let code = self.code(hook, host_namespace, counts_flows)?;
        let loaded = Program::load(hook.name(), hook.attach(), &code, &self.maps())?;
        let path = self.directory.join(hook.name());
        if let Ok(pinned) = Program::open_pinned(&path)
            && pinned.info()?.tag == loaded.info()?.tag
        {
            return Ok(pinned);
        }
        remove_file(&path)?;
        loaded.pin(&path)?;
        Ok(loaded)
    }

    fn code(&self, hook: Hook, host_namespace: u64, counts_flows: bool) -> Result<Code, Unresolved> {
        match hook {
            Hook::Connect(family, clients) => {
                let remembers_peer = self.peers.is_some();
                connect(&Purpose { family, clients, host_namespace, remembers_peer, counts_flows })
            }
            Hook::PeerName(family, _) => peer_name(family),
        }
    }

    /// The hooks of these clients for which this generation has programs.
    pub fn hooks(&self, clients: Clients) -> Vec<Hook> {
        let mut hooks: Vec<Hook> = Family::ALL.map(|family| Hook::Connect(family, clients)).to_vec();
        if self.peers.is_some() {
            hooks.extend(Family::ALL.map(|family| Hook::PeerName(family, clients)));
        }
        hooks
    }

    /// Removes every other generation, whatever its layout.
    pub fn remove_others(&self, pins: &Path) -> Result<(), GenerationError> {
        for (_, directory) in directories(pins) {
            if directory != self.directory {
                remove_directory(&directory)?;
            }
        }
        Ok(())
    }
}

/// The generations below a directory, with their names if they have our layout.
fn directories(pins: &Path) -> Vec<(Option<Name>, PathBuf)> {
    let entries = fs::read_dir(pins).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| (Name::parse(&entry.file_name().to_string_lossy()), entry.path())).collect()
}

/// Removes all generations, and the directory that they are in.
pub fn remove_all(pins: &Path) -> Result<(), GenerationError> {
    for (_, directory) in directories(pins) {
        remove_directory(&directory)?;
    }
    match fs::remove_dir(pins) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(pins, error)),
        _ => Ok(()),
    }
}

fn remove_directory(directory: &Path) -> Result<(), GenerationError> {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        remove_file(&entry.path())?;
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(directory, error)),
        _ => Ok(()),
    }
}

pub fn remove_file(path: &Path) -> Result<(), GenerationError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(path, error)),
        _ => Ok(()),
    }
}

fn file(path: &Path, source: io::Error) -> GenerationError {
    GenerationError::File { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_known_by_its_name() {
        let name = Name { salt: Salt(0xc0_ffee), number: 3 };
        let directory = name.directory(Path::new("/pins"));
        assert_eq!(directory, Path::new("/pins/4-0000000000c0ffee-3"));
        assert_eq!(Name::parse("4-0000000000c0ffee-3"), Some(name));
        assert_eq!(name.next().number, 4);
        for other in ["3-0000000000c0ffee-3", "4-0000000000c0ffee", "4-0000000000c0ffee-3-4", "links", ""] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }
}
