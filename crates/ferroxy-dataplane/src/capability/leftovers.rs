//! Taking over: removing what kube-proxy, or Ferroxy in another mode, left on this host. And back: whether kube-proxy serves again.

use ferroxy_core::Family;

use crate::failure::Failure;

/// A dataplane that knows what kube-proxy and Ferroxy in other modes leave behind.
pub trait TakesOver {
    /// Removes the leftovers, except for objects that this dataplane uses itself while it is in force. If one object
    /// cannot be removed, the others are removed nevertheless.
    fn remove_leftovers(&mut self, in_force: InForce, established: Established) -> Leftovers;

    /// The families whose Services only this dataplane serves, because kube-proxy does not serve them, or not yet. In
    /// all other families, the state of this dataplane can be removed without failing a connection.
    ///
    /// Empty if both use objects of the same names: then kube-proxy changes the existing objects.
    fn not_replaced(&mut self) -> Result<Vec<Family>, Failure> {
        Ok(Vec::new())
    }
}

/// Whether this dataplane serves Services now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InForce {
    Yes,
    /// Cleanup: everything is removed.
    No,
}

/// What happens to connections that use leftovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Established {
    /// The objects that they need stay.
    GoOn,
    End,
}

/// The leftovers that were found, and what was done with them; each text names some objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// Removed objects of kube-proxy.
    pub removed: Vec<String>,
    /// Removed objects of Ferroxy in another mode.
    pub own: Vec<String>,
    /// Objects that stay because another program uses them.
    pub kept: Vec<String>,
    /// Objects that could not be removed, and why.
    pub failed: Vec<String>,
    /// How many connections still use objects that stay for them.
    pub connections: u64,
}
