//! Taking over: removing what kube-proxy, or Ferroxy in another mode, left on this host. And back: whether kube-proxy serves again.

use ferroxy_core::Family;

use crate::failure::Failure;

/// A dataplane that knows what others of its kind leave behind.
pub trait TakesOver {
    /// Removes it, except for what this dataplane uses itself while it is in force. One thing that cannot be removed does
    /// not keep the others.
    fn remove_leftovers(&mut self, in_force: InForce, established: Established) -> Leftovers;

    /// The families whose Services only this dataplane serves: kube-proxy does not, or not yet. Where it serves, this dataplane's
    /// state can go, and no connection fails.
    ///
    /// None where both use objects of the same names: kube-proxy changes what is there.
    fn not_replaced(&mut self) -> Result<Vec<Family>, Failure> {
        Ok(Vec::new())
    }
}

/// Whether this dataplane serves Services now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InForce {
    Yes,
    /// Cleanup: everything goes.
    No,
}

/// What becomes of connections that go through what was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Established {
    /// What they need stays.
    GoOn,
    End,
}

/// What was found and what became of it; each text names some objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// Of kube-proxy.
    pub removed: Vec<String>,
    /// Of Ferroxy in another mode.
    pub own: Vec<String>,
    /// What stays because another program uses it.
    pub kept: Vec<String>,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
    /// How many connections still use what stays for them.
    pub connections: u64,
}
