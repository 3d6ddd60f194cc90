//! Our part of the kernel's state as a value: virtual servers, addresses of the device, sets and rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferroxy_core::{Family, Protocol};

use crate::set::{CAPACITY, Member, SetName};

/// The dummy device that makes addresses of Services local: the kernel balances only packets to local addresses.
pub const DEVICE: &str = "kube-ipvs0";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    pub servers: BTreeMap<Address, VirtualServer>,
    /// `None`: there is no device.
    pub device: Option<BTreeSet<IpAddr>>,
    pub sets: BTreeMap<SetName, SetState>,
    /// Our chains and jumps, without the rules for `guarded`.
    pub rules: ferroxy_iptables::State,
    /// Load-balancer addresses that the node itself may not use. Each is a rule.
    pub guarded: BTreeSet<Address>,
}

/// The address of a virtual server. Also a part of most set members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub ip: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualServer {
    pub treatment: Treatment,
    /// The endpoints with their weights. Weight 0: no new connections.
    pub endpoints: BTreeMap<SocketAddr, u32>,
}

/// How a virtual server picks an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Treatment {
    pub scheduler: Arc<str>,
    /// Flags of the scheduler ([`HASHES_PORT`]), as in the kernel.
    pub flags: u32,
    /// ClientIP affinity, in seconds.
    pub persistence: Option<u32>,
}

/// `IP_VS_SVC_F_SCHED2`: the schedulers `mh` and `sh` hash the client's port, too.
pub const HASHES_PORT: u32 = 0x10;

/// The weight of all endpoints that do not drain.
pub const WEIGHT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetState {
    pub capacity: u32,
    pub members: BTreeSet<Member>,
}

impl State {
    pub fn is_empty(&self) -> bool {
        *self == State::default()
    }

    pub fn has_member(&self, name: SetName, member: &Member) -> bool {
        self.sets.get(&name).is_some_and(|set| set.members.contains(member))
    }
}

impl Address {
    pub fn family(&self) -> Family {
        Family::of(self.ip)
    }
}

impl Treatment {
    pub fn new(scheduler: &Arc<str>, persistence: Option<u32>) -> Treatment {
        let flags = if **scheduler == *"mh" { HASHES_PORT } else { 0 };
        Treatment { scheduler: scheduler.clone(), flags, persistence }
    }
}

impl Default for SetState {
    fn default() -> SetState {
        SetState { capacity: CAPACITY, members: BTreeSet::new() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", SocketAddr::new(self.ip, self.port), self.protocol)
    }
}
