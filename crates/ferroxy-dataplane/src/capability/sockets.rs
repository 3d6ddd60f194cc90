//! Connections of local clients that are made past the dataplane: whether they really are, and how many.

use std::fmt::Debug;

/// Reads what is known about it. Runs on threads of the node's HTTP services.
pub trait TranslatesSockets: Debug + Send {
    fn read(&mut self) -> SocketReport;
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SocketReport {
    /// `host` and `pods`, as far as they are asked for.
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
