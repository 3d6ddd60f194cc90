//! Maps: creates them, and reads and writes their elements one by one or in batches.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::call::{Attributes, Command};
use super::error::Error;
use super::pin::{Pinned, info, word};
use super::program::kernel_name;
use super::types::{KEY, SocketValueType, VALUE};

#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    name: String,
    shape: MapShape,
    /// The length of a value as the kernel copies it: maps per processor have a value for each processor.
    value_length: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapShape {
    pub kind: MapKind,
    pub key: usize,
    pub value: usize,
    pub capacity: u32,
}

/// Kinds of maps, with the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    PerCpuHash = 5,
    PerCpuArray = 6,
    LruHash = 9,
    SocketStorage = 24,
}

const NO_PREALLOCATION: u32 = 1;
const READ_ONLY_FOR_PROGRAMS: u32 = 1 << 7;
/// How many elements are read or written by one call.
const BATCH: usize = 4096;

impl Map {
    /// `writable`: programs may change the map. In maps without preallocation, an element only takes memory while it exists.
    pub fn create(name: &str, shape: MapShape, writable: bool) -> Result<Map, Error> {
        let preallocated = matches!(shape.kind, MapKind::PerCpuArray | MapKind::LruHash);
        let flags = if preallocated { 0 } else { NO_PREALLOCATION };
        let flags = flags | if writable { 0 } else { READ_ONLY_FOR_PROGRAMS };
        // map_type, key_size, value_size, max_entries, map_flags, inner_map_fd, numa_node, map_name
        let create =
            Attributes::new().word(shape.kind as u32).word(shape.key as u32).word(shape.value as u32);
        let create = create.word(shape.capacity).word(flags).word(0).word(0).raw(&kernel_name(name));
        let fd = { create }.open(Command::MapCreate);
        let fd = fd.map_err(|errno| Error::new("create map", name, errno))?;
        Map::of(fd, name, shape)
    }

    /// A map with one value for each socket, which is freed with the socket.
    pub fn create_for_sockets(name: &str, value: usize) -> Result<Map, Error> {
        let types = SocketValueType::load(value as u32)?;
        let shape = MapShape { kind: MapKind::SocketStorage, key: 4, value, capacity: 0 };
        let create = Attributes::new().word(shape.kind as u32).word(4).word(value as u32).word(0);
        // map_ifindex, btf_fd, btf_key_type_id, btf_value_type_id
        let create = create.word(NO_PREALLOCATION).word(0).word(0).raw(&kernel_name(name)).word(0);
        let create = create.word(types.fd.as_raw_fd() as u32).word(KEY).word(VALUE);
        let fd = { create }.open(Command::MapCreate);
        let fd = fd.map_err(|errno| Error::new("create map", name, errno))?;
        Map::of(fd, name, shape)
    }

    fn of(fd: OwnedFd, name: &str, shape: MapShape) -> Result<Map, Error> {
        let value_length = match shape.kind {
            MapKind::PerCpuArray | MapKind::PerCpuHash => shape.value.next_multiple_of(8) * processors()?,
            _ => shape.value,
        };
        Ok(Map { fd, name: name.to_owned(), shape, value_length })
    }

    pub fn shape(&self) -> MapShape {
        self.shape
    }

    pub fn id(&self) -> Result<u32, Error> {
        Ok(word(&info(self.as_fd(), &self.name, 80)?, 4))
    }

    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.check(key, value)?;
        // map_fd, key, value, flags
        let update = Attributes::new().descriptor(self.as_fd()).input(key).input(value).long(0);
        { update }.run(Command::MapUpdate).map(drop).map_err(|errno| self.error("write to map", errno))
    }

    /// Returns whether the element existed.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.check(key, &vec![0; self.value_length])?;
        let delete = Attributes::new().descriptor(self.as_fd()).input(key).long(0).long(0);
        match { delete }.run(Command::MapDelete) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.error("delete from map", errno)),
        }
    }

    /// For a map with a value for each processor, returns all of these values.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = vec![0; self.value_length];
        self.check(key, &value)?;
        let lookup = Attributes::new().descriptor(self.as_fd()).input(key).output(&mut value).long(0);
        match { lookup }.run(Command::MapLookup) {
            Ok(_) => Ok(Some(value)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("read map", errno)),
        }
    }

    /// Writes many elements, in this order. Returns how many were written, and the error at which it stopped.
    pub fn update_all(&self, keys: &[u8], values: &[u8]) -> (usize, Result<(), Error>) {
        let (key, value) = (self.shape.key, self.value_length);
        let mut written = 0;
        for (keys, values) in keys.chunks(key * BATCH).zip(values.chunks(value * BATCH)) {
            let count = keys.len() / key;
            // in_batch, out_batch, keys, values, count, map_fd, elem_flags, flags
            let update = Attributes::new().long(0).long(0).input(keys).input(values).word(count as u32);
            let mut update = update.descriptor(self.as_fd()).long(0).long(0);
            let result = update.run(Command::MapUpdateBatch);
            // The kernel returns the number of written elements, also after an error.
            written += (update.word_at(32) as usize).min(count);
            if let Err(errno) = result {
                return (written, Err(self.error("write to map", errno)));
            }
        }
        (written, Ok(()))
    }

    /// Passes the key and the value of each element to `found`. Elements that are added or removed meanwhile may be missing or
    /// come twice.
    pub fn for_each(&self, mut found: impl FnMut(&[u8], &[u8])) -> Result<(), Error> {
        let (key, value) = (self.shape.key, self.value_length);
        let (mut keys, mut values) = (vec![0; key * BATCH], vec![0; value * BATCH]);
        // A position in the map: four bytes for a hash, or a key.
        let (mut next, mut from) = (vec![0; key.max(4)], None::<Vec<u8>>);
        loop {
            let start = from.clone().unwrap_or_default();
            let lookup = Attributes::new();
            let lookup = if start.is_empty() { lookup.long(0) } else { lookup.input(&start) };
            let lookup = lookup.output(&mut next).output(&mut keys).output(&mut values).word(BATCH as u32);
            let mut lookup = lookup.descriptor(self.as_fd()).long(0).long(0);
            let result = lookup.run(Command::MapLookupBatch);
            let count = (lookup.word_at(32) as usize).min(BATCH);
            if !matches!(result, Ok(_) | Err(Errno::NOENT)) {
                return result.map(drop).map_err(|errno| self.error("read map", errno));
            }
            keys.chunks_exact(key).zip(values.chunks_exact(value)).take(count).for_each(|(k, v)| found(k, v));
            if result.is_err() {
                return Ok(());
            }
            from = Some(next.clone());
        }
    }

    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let fits = key.len() == self.shape.key && value.len() == self.value_length;
        if fits { Ok(()) } else { Err(self.error("use map", Errno::INVAL)) }
    }

    fn error(&self, operation: &'static str, errno: Errno) -> Error {
        Error::new(operation, &self.name, errno)
    }
}

/// The number of processors that this machine can have: a map has a value for each. The kernel prints them as ranges: `0-3`.
fn processors() -> Result<usize, Error> {
    const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
    let failed = || Error::new("count the processors in", POSSIBLE, Errno::NOENT);
    let text = std::fs::read_to_string(POSSIBLE).map_err(|_| failed())?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    Ok(last.ok_or_else(failed)? + 1)
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Pinned for Map {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn adopt(fd: OwnedFd, name: String) -> Result<Map, Error> {
        // type, id, key_size, value_size, max_entries
        let info = info(fd.as_fd(), &name, 80)?;
        let kinds = [
            MapKind::Hash,
            MapKind::PerCpuHash,
            MapKind::PerCpuArray,
            MapKind::LruHash,
            MapKind::SocketStorage,
        ];
        let kind = kinds.into_iter().find(|kind| *kind as u32 == word(&info, 0));
        let kind = kind.ok_or_else(|| Error::new("use map", &name, Errno::INVAL))?;
        let (key, value) = (word(&info, 8) as usize, word(&info, 12) as usize);
        Map::of(fd, &name, MapShape { kind, key, value, capacity: word(&info, 16) })
    }
}
