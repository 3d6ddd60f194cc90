//! Facts about the cluster become an Intent: what must happen to packets on this node.
//!
//! This crate is pure: no I/O, no clock, no errors. Input that it cannot use is skipped and reported in a [`Diagnostic`].
//! It knows no wire format (that is `ferroxy-source`) and no kernel (the dataplane crates).
//!
//! ```text
//! Event ──▶ Facts ──resolve──▶ Intent + Diagnostics        oracle(Intent, Packet) = Verdict
//! ```

#![forbid(unsafe_code)]

mod dense;
pub mod diagnostic;
pub mod duration;
pub mod event;
pub mod explain;
pub mod facts;
mod few;
pub mod foreign;
pub mod intent;
pub mod name;
pub mod oracle;
mod packed;
pub mod packet;
pub mod policy;
pub mod probe;
pub mod resolve;
#[cfg(feature = "testing")]
pub mod testing;

pub use diagnostic::{Cause, Diagnostic, Object, ObjectKind};
pub use event::Event;
pub use explain::{Explanation, explain};
pub use facts::{Facts, Touched};
pub use intent::{Endpoint, Frontend, Intent, NodeIntent, PortIntent, Route, ServiceIntent};
pub use name::{Family, Protocol, ServiceName};
pub use oracle::oracle;
pub use packet::{Origin, Packet, Verdict};
pub use policy::Policy;
