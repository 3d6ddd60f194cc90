//! Connections of local clients that bypass the dataplane: whether they are translated at the socket, and how many.

use std::fmt::Debug;

/// Reads the state of the translation. Runs on threads of the node's HTTP services.
pub trait TranslatesSockets: Debug + Send {
    fn read(&mut self) -> SocketReport;
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SocketReport {
    /// `host` and `pods`, as far as translation is requested for them.
    pub clients: Vec<ClientReport>,
    /// Elements in force.
    pub frontends: u64,
    pub endpoints: u64,
    /// Services that the dataplane below serves alone because the kernel refused them, and why.
    pub left_out: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientReport {
    pub clients: &'static str,
    /// Why the dataplane below translates their connections; `None` when they are translated.
    pub inactive: Option<String>,
    /// Connections that were translated.
    pub connections: u64,
}
