//! Finds and runs the host's iptables tools, within limits, and arranges their input so that they are fast. Text in, text out:
//! callers know what the rules mean, and decide when to write them.
//!
//! ```no_run
//! use ferroxy_iptables::tool::{Family, Limits, Tools, restore, save_text};
//!
//! let tools = Tools::find(Family::V4)?;
//! let receipt = restore(&tools, "*nat\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n", &Limits::default())?;
//! println!("{} runs, {:?} waiting for the lock", receipt.runs, receipt.waited);
//! let nat = save_text(&tools, Some("nat"), &Limits::default())?;
//! # Ok::<(), ferroxy_iptables::tool::Error>(())
//! ```

mod bystander;
mod detect;
mod error;
mod fingerprint;
mod lock;
pub mod portion;
mod process;
mod progress;
mod refusal;
mod restore;
mod save;
pub mod sysctl;
mod usage;

pub use bystander::Bystander;
pub use detect::{Leftover, Tools, Variant, Version};
pub use error::{Error, Refusal};
pub use fingerprint::{Fingerprint, fingerprint};
pub(crate) use lock::Lock;
pub use progress::Overrun;
pub use restore::{Receipt, restore, restore_attended, restore_portions};
pub use save::{save, save_text};

use std::time::Duration;

pub use ferroxy_core::Family;

/// Informed while a tool runs.
pub trait Attendant {
    /// Called before anything is changed, with the ID that notifications of the changes carry: the tool's process ID, or the port
    /// ID of our netlink socket.
    fn started(&self, _process: u32) {}

    /// The tool is running, within its limits. Called about once a second.
    fn waiting(&self) {}
}

/// Ignores all calls.
impl Attendant for () {}

/// Limits for runs of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A tool is killed when it has used this much CPU time, or has made no progress for this long. Must be longer than
    /// `lock`: a tool that waits for the lock makes no progress.
    pub run: Duration,
    /// How long one run of the tool may wait for the lock (`-w`). Whole seconds; only legacy tools have a lock.
    pub lock: Duration,
    /// How often the tool is run at most if it does not get the lock.
    pub attempts: u32,
    /// The size of a saved ruleset in bytes. 10,000 Services with 10 endpoints are 48 MB.
    pub output: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            run: Duration::from_secs(300),
            lock: Duration::from_secs(5),
            attempts: 5,
            output: 512 * 1024 * 1024,
        }
    }
}
