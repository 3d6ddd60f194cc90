//! What the agent and the commands ask of a dataplane, whatever its kind. One file for each kind adapts its crate.

mod chains;
mod iptables;
mod ipvs;
mod nftables;
mod ruleset;

pub use ipvs::balancing;
pub use nftables::Nftables;
pub use ruleset::{Path, Ruleset, Step};

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};

use crate::agent::Input;
use crate::config::Config;
use crate::host::notify::Heart;

/// A Service as it should be, or `None` when it should not be.
pub type Change = (ServiceName, Option<Arc<ServiceIntent>>);

/// The fallible half of a dataplane: it keeps the kernel at what it was last told.
///
/// It has no queue and no clock: when to try (again) is the agent's business.
pub trait Dataplane: Debug + Send {
    /// Whether this host can do what the dataplane needs; in words a person can act on if it cannot.
    fn probe(&mut self, node: &NodeIntent) -> anyhow::Result<()>;

    /// Tells the agent of changes that others make to what is ours, from a thread of its own.
    fn watch(&mut self, inputs: Sender<Input>) -> anyhow::Result<()>;

    /// Gives a sign of life while something is done that may take minutes.
    fn live_by(&mut self, _: Heart) {}

    /// What `minSyncPeriod` is counted for.
    fn pace(&self) -> Pace {
        Pace::EachService
    }

    /// Nothing of ours is in the kernel yet, and nothing that ours replaces.
    fn is_cold(&mut self) -> Result<bool, Failure>;

    /// While this is on, `start` and `verify` remove nothing that they do not know.
    fn keep_unknown(&mut self, keep: bool);

    /// Brings the kernel from whatever it has of ours to this Intent, sending the difference only.
    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure>;

    /// Changes some Services. Those the kernel refuses are named; the others are in force.
    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure>;

    /// Changes what concerns the node as a whole.
    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure>;

    /// Whether the kernel has what the node as a whole asks for, so that `change_node` would do nothing.
    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        Ok(self.acknowledged().node() == node)
    }

    /// Removes what changes have left unused.
    fn tidy(&mut self) -> Result<Outcome, Failure>;

    /// After how long `tidy` is wanted though nothing changes, while something is on its way out.
    fn tidies_again(&self) -> Option<Duration> {
        None
    }

    /// A cheap look at what others have done since the last one.
    fn changed_by_others(&mut self) -> Result<Changed, Failure>;

    /// Compares the kernel with what it should have, and mends what differs.
    fn verify(&mut self) -> Result<Repair, Failure>;

    /// What the kernel has taken from us.
    fn acknowledged(&self) -> &dyn Acknowledged;

    /// What `start` would do to this kernel now.
    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure>;

    /// Whether the kernel has a Service of this Intent as it should be.
    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure>;

    /// How many rules there are, where Services are rules.
    fn rule_counts(&self) -> Vec<RuleCount> {
        Vec::new()
    }

    /// Removes everything of ours: a diff to nothing. Says whether there was anything.
    fn cleanup(&mut self) -> Result<bool, Failure>;
}

/// Opens the dataplane of a mode.
pub fn open(
    mode: &ferroxy_dataplane::Mode,
    config: &Config,
    families: &[Family],
) -> anyhow::Result<Box<dyn Dataplane>> {
    match Mode::of(mode) {
        Mode::Nftables => Ok(Box::new(Nftables::open(families)?)),
        Mode::Iptables => Ok(Box::new(iptables::Iptables::open(families)?)),
        Mode::Ipvs => Ok(Box::new(ipvs::Ipvs::open(families, &config.settings(mode))?)),
    }
}

/// The modes as the code that is not yet made from descriptors tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Iptables,
    Ipvs,
    Nftables,
}

impl Mode {
    pub fn of(mode: &ferroxy_dataplane::Mode) -> Mode {
        match mode.name {
            "iptables" => Mode::Iptables,
            "ipvs" => Mode::Ipvs,
            _ => Mode::Nftables,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
            Mode::Nftables => "nftables",
        }
    }
}

/// What a cheap look tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    Nothing,
    /// Rules that are certainly not ours. They may be kube-proxy's, come back.
    Elsewhere,
    /// Perhaps ours: `verify`.
    Ours,
}

/// Whether one restless Service must let others wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// A change costs what it changes: each Service has a rate of its own.
    #[default]
    EachService,
    /// A change costs the run of a program, however small it is: what comes meanwhile goes together.
    Whole,
}

/// The rules of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleCount {
    pub family: Family,
    pub table: &'static str,
    pub total: u64,
    /// Written by the last sync.
    pub last: u64,
}

/// What the kernel has taken from us.
pub trait Acknowledged {
    fn node(&self) -> &NodeIntent;
    fn service(&self, name: &ServiceName) -> Option<&Arc<ServiceIntent>>;
    fn services(&self) -> Box<dyn Iterator<Item = (&ServiceName, &Arc<ServiceIntent>)> + '_>;
}

/// What came of an attempt.
#[derive(Debug, Default)]
pub struct Outcome {
    pub receipt: Receipt,
    /// How many operations the kernel took.
    pub operations: usize,
    /// The Services it did not take, with its words. All others are in force.
    pub failed: Vec<(ServiceName, String)>,
    /// What it said means that it no longer has what we think it has: verify.
    pub drift: bool,
    /// The families whose nftables table of kube-proxy's went as ours came.
    pub replaced: Vec<Family>,
}

impl Outcome {
    pub fn add(&mut self, other: Outcome) {
        self.receipt.transactions += other.receipt.transactions;
        self.receipt.messages += other.receipt.messages;
        self.receipt.bytes += other.receipt.bytes;
        self.operations += other.operations;
        self.failed.extend(other.failed);
        self.drift |= other.drift;
        self.replaced.extend(other.replaced);
    }
}

/// What it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Receipt {
    pub transactions: usize,
    pub messages: usize,
    pub bytes: usize,
}

/// What verification found.
#[derive(Debug, Default)]
pub struct Repair {
    pub receipt: Receipt,
    /// How much had to be done; nothing when all was as it should be.
    pub operations: usize,
    /// Some of it, in the words of the mode's own tool.
    pub examples: Vec<String>,
    /// What is still not as it should be after that: doing the same once more will not help.
    pub unmended: Option<String>,
}

/// What would be done.
#[derive(Debug)]
pub struct Preview {
    /// As the mode's own tool would read it.
    pub text: String,
    pub operations: Vec<String>,
}

/// How much of a Service the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programmed {
    /// There is nothing of ours at all.
    Nothing,
    Parts {
        right: usize,
        wanted: usize,
    },
}

/// Why it could not be done. Nothing of the failing part is in force.
#[derive(Debug)]
pub struct Failure {
    pub cause: anyhow::Error,
    /// The kernel no longer has what we think it has: verify, then try again.
    pub drift: bool,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.cause)
    }
}

/// For commands, which end with it.
impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> anyhow::Error {
        failure.cause
    }
}
