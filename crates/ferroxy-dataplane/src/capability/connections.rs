//! Stale connections: the host may continue to translate a connection as it began, after its endpoint was removed.

use std::fmt::Debug;
use std::net::SocketAddr;

use ferroxy_core::{Family, Protocol};

use crate::failure::Failure;

/// The host's table of translated connections. Runs on the sweeper's thread.
pub trait SweepsConnections: Debug + Send {
    /// Lists the selected connections and deletes those that `judge` calls stale. Connections come in chunks; `judge`
    /// fills in one answer for each. `deleted` is called with the number of deleted connections, also if a later step
    /// fails.
    fn sweep(
        &mut self,
        selection: &[Selection],
        judge: &mut dyn FnMut(&[Connection]) -> Vec<bool>,
        deleted: &mut dyn FnMut(Family, u64),
    ) -> Result<(), Failure>;
}

/// A connection, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    pub protocol: Protocol,
    /// The address that the client uses.
    pub frontend: SocketAddr,
    /// The address that answers.
    pub endpoint: SocketAddr,
    /// The destination was translated: frontend and endpoint may differ.
    pub is_translated: bool,
}

/// Which connections to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    pub family: Family,
    pub protocol: Protocol,
    /// Only those to this frontend.
    pub frontend: Option<SocketAddr>,
    /// Only those whose destination was translated.
    pub translated_only: bool,
}
