//! Executes the programs over a State, to find out where a socket connects to. Needs no kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ferroxy_bpf::machine::{Context, Fault, World, run};
use ferroxy_bpf::{Code, Unresolved};
use ferroxy_core::Family;

use crate::entry::{
    Clients, FrontendKey, FrontendValue, MemberKey, MemberValue, SessionKey, SessionValue, SlotKey,
    SlotValue, mapped,
};
use crate::flow::flow_of;
use crate::program::{
    COUNTS, COUNTS_SIZE, ENDPOINTS, FLOW_SIZE, FLOWS, FRONTENDS, MEMBERS, PEER_SIZE, PEERS, Purpose,
    SESSIONS, connect, context, drawn, socket,
};
use crate::state::State;

/// A socket that is about to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    pub owner: Owner,
    /// An IPv6 socket connects to IPv4 addresses in their mapped form.
    pub family: Family,
    /// As in the IP header.
    pub protocol: u8,
    pub source: Option<IpAddr>,
    pub bound_device: u32,
    pub destination: SocketAddr,
}

/// The owner of a socket: decides which programs run, and what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A process of the host, outside of pods.
    Host,
    /// A pod on the host's network.
    HostNetworkPod,
    Pod,
    /// A container that is no pod: in a namespace of its own, outside of the pods' cgroup.
    Container,
}

/// Where a socket connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// Unchanged: packet rules translate the connection.
    Unchanged,
    Endpoint(SocketAddr),
}

/// What the programs write: it stays from one connection to the next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    pub sessions: BTreeMap<SessionKey, SessionValue>,
    /// How many connections of each frontend and endpoint.
    pub flows: BTreeMap<(SocketAddr, SocketAddr), u64>,
}

/// What a connection depends on besides the maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The number of the pod. Has no effect for the host.
    pub pod: u64,
    /// In nanoseconds since boot.
    pub now: u64,
    /// The number of earlier connections, from which the programs derive random numbers.
    pub count: u64,
}

/// The cookie of the host's network namespace in the interpreter.
const HOST: u64 = 3;
/// The cookies of pods begin with this number.
const OTHER: u64 = 5994;

/// The programs of one setting.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Clients and family of each.
    programs: Vec<(Clients, Family, Code)>,
}

impl Programs {
    /// `does_more`: the programs also remember peers and count flows, which makes no difference to the choice.
    pub fn new(clients: Clients, does_more: bool) -> Result<Programs, Unresolved> {
        let mut programs = Vec::new();
        // The programs of the inner cgroup run first.
        for role in [Clients::PODS, Clients::HOST].into_iter().filter(|role| clients.contains(*role)) {
            for family in Family::ALL {
                let (remembers_peer, counts_flows) = (does_more, does_more);
                let purpose =
                    Purpose { family, clients: role, host_namespace: HOST, remembers_peer, counts_flows };
                programs.push((role, family, connect(&purpose)?));
            }
        }
        Ok(Programs { programs })
    }

    /// Every choice that can be made for a socket of a client without a session.
    pub fn choices(&self, state: &State, socket: &Socket) -> Result<BTreeSet<Choice>, Fault> {
        let key = FrontendKey::new(socket.destination.ip(), socket.destination.port());
        let endpoints = u64::from(state.frontends.get(&key).map_or(1, |value| value.count().max(1)));
        let moment = |count| Moment { pod: 0, now: 0, count };
        let choose = |count| self.choose(state, &mut Memory::default(), socket, moment(count));
        leading_to_each(endpoints).into_values().map(choose).collect()
    }

    /// The choice for a socket, at a moment. `memory` is what all earlier connections have left.
    pub fn choose(
        &self,
        state: &State,
        memory: &mut Memory,
        socket: &Socket,
        moment: Moment,
    ) -> Result<Choice, Fault> {
        let namespace = match socket.owner {
            Owner::Host | Owner::HostNetworkPod => HOST,
            Owner::Pod | Owner::Container => OTHER + moment.pod,
        };
        let in_pods = matches!(socket.owner, Owner::Pod | Owner::HostNetworkPod);
        let mut context = socket.context();
        let before = context.memory.clone();
        let mut world = Kernel { state, memory, moment, namespace, counts: BTreeMap::new(), peer: None };
        let attached = self.programs.iter().filter(|(_, family, _)| *family == socket.family);
        for (_, _, code) in attached.filter(|(clients, ..)| *clients == Clients::HOST || in_pods) {
            run(code, &mut world, &mut context)?;
        }
        let translated = context.memory != before || !world.counts.is_empty();
        Ok(if translated {
            Choice::Endpoint(destination(socket.family, &context))
        } else {
            Choice::Unchanged
        })
    }
}

/// The least count that leads to each number below `below`.
fn leading_to_each(below: u64) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for count in 0.. {
        if counts.len() as u64 == below {
            break;
        }
        counts.entry(drawn(count, below)).or_insert(count);
    }
    counts
}

impl Socket {
    fn context(&self) -> Context {
        let mut memory = vec![0; context::SIZE];
        let mut put =
            |offset: i16, bytes: &[u8]| memory[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        match (self.family, self.destination.ip()) {
            (Family::V4, IpAddr::V4(address)) => put(context::ADDRESS_4, &address.octets()),
            (_, address) => put(context::ADDRESS_6, &mapped(address)),
        }
        // The kernel loads the two bytes of the port into a register.
        let port = u32::from(u16::from_ne_bytes(self.destination.port().to_be_bytes()));
        put(context::PORT, &port.to_ne_bytes());
        put(context::PROTOCOL, &u32::from(self.protocol).to_ne_bytes());
        Context { memory, socket_at: context::SOCKET as usize, socket: self.kernel_socket() }
    }

    fn kernel_socket(&self) -> Vec<u8> {
        let mut memory = vec![0; socket::SIZE];
        let mut put =
            |offset: i16, bytes: &[u8]| memory[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        put(socket::BOUND_DEVICE, &self.bound_device.to_ne_bytes());
        match (self.family, self.source) {
            (Family::V4, Some(IpAddr::V4(address))) => put(socket::SOURCE_4, &address.octets()),
            (_, Some(address)) => put(socket::SOURCE_6, &mapped(address)),
            (_, None) => {}
        }
        memory
    }
}

fn destination(family: Family, context: &Context) -> SocketAddr {
    let memory = &context.memory;
    let at = |offset: i16, length: usize| memory[offset as usize..][..length].to_vec();
    let port = at(context::PORT, 4).try_into().map_or(0, u32::from_ne_bytes) as u16;
    let port = u16::from_be_bytes(port.to_ne_bytes());
    let address = match family {
        Family::V4 => <[u8; 4]>::try_from(at(context::ADDRESS_4, 4)).unwrap_or_default().into(),
        Family::V6 => {
            let bytes = <[u8; 16]>::try_from(at(context::ADDRESS_6, 16)).unwrap_or_default();
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
    };
    SocketAddr::new(address, port)
}

/// What the programs see of the kernel.
struct Kernel<'a> {
    state: &'a State,
    memory: &'a mut Memory,
    moment: Moment,
    namespace: u64,
    counts: BTreeMap<Vec<u8>, Vec<u8>>,
    peer: Option<Vec<u8>>,
}

impl World for Kernel<'_> {
    fn sizes(&self, map: u32) -> (usize, usize) {
        match map {
            FRONTENDS => (FrontendKey::SIZE, FrontendValue::SIZE),
            ENDPOINTS => (SlotKey::SIZE, SlotValue::SIZE),
            MEMBERS => (MemberKey::SIZE, MemberValue::SIZE),
            SESSIONS => (SessionKey::SIZE, SessionValue::SIZE),
            FLOWS => (FLOW_SIZE, 8),
            COUNTS => (4, COUNTS_SIZE),
            _ => (4, 8),
        }
    }

    fn lookup(&mut self, map: u32, key: &[u8]) -> Option<Vec<u8>> {
        match map {
            FRONTENDS => self.state.frontends.get(&FrontendKey(key.try_into().ok()?)).map(|it| it.0.to_vec()),
            ENDPOINTS => self.state.endpoints.get(&SlotKey(key.try_into().ok()?)).map(|it| it.0.to_vec()),
            MEMBERS => self.state.members.get(&MemberKey(key.try_into().ok()?)).map(|it| it.0.to_vec()),
            SESSIONS => self.memory.sessions.get(&SessionKey(key.try_into().ok()?)).map(|it| it.0.to_vec()),
            FLOWS => self.memory.flows.get(&flow_of(key)?).map(|count| count.to_ne_bytes().to_vec()),
            COUNTS => {
                let before = || self.moment.count.to_ne_bytes().repeat(COUNTS_SIZE / 8);
                Some(self.counts.get(key).cloned().unwrap_or_else(before))
            }
            _ => None,
        }
    }

    fn update(&mut self, map: u32, key: &[u8], value: &[u8]) {
        match map {
            COUNTS => drop(self.counts.insert(key.to_vec(), value.to_vec())),
            SESSIONS => {
                if let (Ok(key), Ok(value)) = (key.try_into(), value.try_into()) {
                    self.memory.sessions.insert(SessionKey(key), SessionValue(value));
                }
            }
            FLOWS => {
                if let (Some(flow), Ok(count)) = (flow_of(key), value.try_into()) {
                    self.memory.flows.insert(flow, u64::from_ne_bytes(count));
                }
            }
            PEERS => self.peer = Some(value.to_vec()),
            _ => {}
        }
    }

    fn delete(&mut self, _: u32, _: &[u8]) {
        self.peer = None;
    }

    fn storage(&mut self, _: u32, create: bool) -> Option<Vec<u8>> {
        self.peer.clone().or_else(|| create.then(|| vec![0; PEER_SIZE]))
    }

    fn monotonic_time(&mut self) -> u64 {
        self.moment.now
    }

    fn namespace_cookie(&mut self) -> u64 {
        self.namespace
    }
}
