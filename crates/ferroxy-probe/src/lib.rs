//! Active health checks of endpoints. The endpoints to probe come from `ferroxy-core`, and verdicts go back there as
//! Events; this crate knows neither Services nor dataplanes.
//!
//! ```text
//! Probing ──▶ Scheduler (pure: what is due, how fast, what a result means) ──▶ Attempt ──▶ dial ──▶ Outcome
//!                 ▲                                                                                   │
//! Verdict ◀───────┴───────────────────────────────────────────────────────────────────────────────────┘
//! ```

#![forbid(unsafe_code)]

pub mod dial;
mod http;
mod prober;
mod record;
pub mod schedule;

use ferroxy_core::probe::Fault;

pub use prober::{Hooks, Prober};
pub use schedule::{Figures, Scheduler};

/// The result of one probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed(Fault),
    /// UDP only: no answer, and no report that nothing listens on the port.
    Silent,
    /// This node could not send the probe, so the result is no evidence about the endpoint.
    NotSent,
}
