//! What a dataplane may be able to do, one trait for each purpose.

pub mod connections;
pub mod leftovers;
pub mod sockets;
pub mod traffic;

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferroxy_core::{Family, Intent, ServiceIntent};

pub use connections::SweepsConnections;
pub use leftovers::TakesOver;
pub use sockets::{ClientReport, SocketReport, TranslatesSockets};
pub use traffic::{CountsPackets, CountsTraffic};

use crate::failure::Failure;
use crate::outcome::{Outcome, Programmed, Repair};

/// The state outlives the process: a start may find what an earlier run, or another process, left.
pub trait Persists {
    /// Whether nothing is in force yet: neither our state nor state that ours replaces.
    fn is_cold(&mut self) -> Result<bool, Failure>;

    /// `start` will be called soon: slow work that depends on no Intent can begin now, in the background.
    fn look_ahead(&mut self) {}

    /// While this is on, `start` and `verify` remove no unknown state, because not all of the cluster can be read.
    fn keep_unknown(&mut self, keep: bool);

    /// How much of a Service of this Intent is in force, whichever process programmed it.
    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure>;
}

/// Other programs can change the state, so it can be compared with the desired state.
pub trait Verifies {
    /// A cheap check for changes by other programs since the last check.
    fn changed_by_others(&mut self) -> Result<Changed, Failure>;

    /// Compares everything, and repairs what differs.
    fn verify(&mut self) -> Result<Repair, Failure>;
}

/// The result of the cheap check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    Nothing,
    /// Only state that is certainly not ours. It may belong to a kube-proxy that still runs.
    Elsewhere,
    /// Perhaps our state: verify.
    Ours,
}

/// Notices at once when other programs change the state.
pub trait Watches {
    /// Calls back from a thread of its own, until the process ends. The text says what was noticed.
    fn watch(&mut self, notify: Notify) -> Result<(), Failure>;
}

/// `false`: the receiver is gone, stop watching.
pub type Notify = Box<dyn Fn(&'static str) -> bool + Send>;

/// Changes leave unused objects behind, which are removed later.
pub trait Tidies {
    fn tidy(&mut self) -> Result<Outcome, Failure>;
}

/// Removed endpoints keep their connections for a while.
pub trait Drains {
    /// Removes the endpoints whose last connection has ended, or whose time is over.
    fn drain(&mut self) -> Result<Outcome, Failure>;

    /// How long to wait before the next `drain`; `None` when nothing drains.
    fn next_look(&self) -> Option<Duration>;
}

/// Listeners and connections end with the process: a successor takes over listening sockets, and connections finish.
pub trait HandsOver {
    /// Whether a successor serves new clients now.
    fn is_superseded(&self) -> bool;

    /// Serves no new clients, lets connections finish for at most `grace`, and returns how many were cut.
    fn finish(&mut self, grace: Duration) -> usize;
}

/// Endpoints whose connections fail are left out for a while.
pub trait Ejects: Debug + Send + Sync {
    /// A probe of this endpoint passed: it is used again. Without a port, the probe has a port of its own and speaks for all ports
    /// of the address. Called from the prober's thread, which must not wait.
    fn pardon(&self, ip: IpAddr, port: Option<u16>);
}

/// Services are programmed as rules, which can be counted.
pub trait CountsRules {
    fn rule_counts(&self) -> Vec<RuleCount>;
}

/// The rules of one group: a table of rules, for example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleCount {
    pub family: Family,
    pub group: &'static str,
    pub total: u64,
    /// Written by the last sync.
    pub last: u64,
}

/// The objects that it programs can be refused one by one, and refusals are counted.
pub trait CountsRefusals {
    fn refusals(&self) -> Vec<RefusalCount>;
}

/// How often something was refused, since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalCount {
    /// The key of its metric, [`Counted::Refusals`](crate::Counted::Refusals).
    pub key: &'static str,
    pub family: Family,
    pub labels: Vec<(&'static str, &'static str)>,
    pub count: u64,
}

/// A call may take minutes, and can show that it makes progress.
pub trait SignsOfLife {
    /// `alive` is called about once a second while a call makes progress.
    fn show_life(&mut self, alive: Box<dyn Fn() + Send>);
}
