//! Counters that the host keeps: traffic of Services and endpoints, and packets by treatment.

use std::collections::HashMap;
use std::fmt::Debug;
use std::net::SocketAddr;

use ferroxy_core::Protocol;

use crate::failure::Failure;

/// Reads what was counted for each Service and endpoint. Runs on a thread of the metrics server.
pub trait CountsTraffic: Debug + Send {
    /// Everything counted so far; empty while nothing is counted.
    fn read(&mut self) -> Result<HashMap<Flow, Traffic>, Failure>;

    /// How many flows are counted at most, in each family.
    fn limit(&self) -> u64;
}

/// The frontend that clients connected to, and the endpoint that served them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    pub protocol: Protocol,
    /// The address that the client used. For a node port, one of this host's addresses.
    pub frontend: SocketAddr,
    pub endpoint: SocketAddr,
}

/// What was counted for a flow. It may start again from zero when the flow was unused for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub connections: u64,
    /// Connections that were made at sockets: their packets are not counted, since they never meet the dataplane.
    pub at_sockets: u64,
    /// From clients to the endpoint.
    pub received: Volume,
    /// From the endpoint to clients.
    pub sent: Volume,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Volume {
    pub packets: u64,
    pub bytes: u64,
}

/// Reads counters of packets, by the keys of the mode's [`Counted::Packets`](crate::Counted::Packets) metrics.
pub trait CountsPackets: Debug + Send {
    fn read(&mut self) -> Result<Vec<(&'static str, u64)>, Failure>;
}
