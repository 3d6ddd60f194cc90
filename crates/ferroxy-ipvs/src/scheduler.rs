//! The IPVS schedulers by their kernel names: how the load balancer chooses an endpoint.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheduler {
    RoundRobin,
    WeightedRoundRobin,
    LeastConnection,
    WeightedLeastConnection,
    LocalityBased,
    LocalityBasedWithReplication,
    SourceHashing,
    DestinationHashing,
    ShortestExpectedDelay,
    NeverQueue,
    Maglev,
    Failover,
    Overflow,
}

impl Scheduler {
    /// The annotation that chooses the scheduler of a Service.
    pub const ANNOTATION: &str = "ferroxy.io/scheduler";

    pub const ALL: [Scheduler; 13] = [
        Scheduler::RoundRobin,
        Scheduler::WeightedRoundRobin,
        Scheduler::LeastConnection,
        Scheduler::WeightedLeastConnection,
        Scheduler::LocalityBased,
        Scheduler::LocalityBasedWithReplication,
        Scheduler::SourceHashing,
        Scheduler::DestinationHashing,
        Scheduler::ShortestExpectedDelay,
        Scheduler::NeverQueue,
        Scheduler::Maglev,
        Scheduler::Failover,
        Scheduler::Overflow,
    ];

    pub fn parse(text: &str) -> Option<Scheduler> {
        Scheduler::ALL.into_iter().find(|scheduler| scheduler.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Scheduler::RoundRobin => "rr",
            Scheduler::WeightedRoundRobin => "wrr",
            Scheduler::LeastConnection => "lc",
            Scheduler::WeightedLeastConnection => "wlc",
            Scheduler::LocalityBased => "lblc",
            Scheduler::LocalityBasedWithReplication => "lblcr",
            Scheduler::SourceHashing => "sh",
            Scheduler::DestinationHashing => "dh",
            Scheduler::ShortestExpectedDelay => "sed",
            Scheduler::NeverQueue => "nq",
            Scheduler::Maglev => "mh",
            Scheduler::Failover => "fo",
            Scheduler::Overflow => "ovf",
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
