//! Who wants to know that a tool runs: a listener to the kernel's notifications, and whoever waits for a sign of life. Runs
//! nothing itself.

use std::fmt;

use ferroxy_netlink::nftables::Ignorer;

use super::Attendant;

/// What others want to know while a tool runs.
#[derive(Default)]
pub struct Bystander {
    /// Whoever listens to the kernel's notifications, and is not to be told of our own changes.
    pub listener: Option<Ignorer>,
    pub sign_of_life: Option<Box<dyn Fn() + Send>>,
}

impl Attendant for Bystander {
    /// A tool's notifications carry its process id.
    fn started(&self, process: u32) {
        if let Some(Err(error)) = self.listener.as_ref().map(|listener| listener.ignore(process)) {
            tracing::warn!("{error}: our own changes will be looked into as if they were others'");
        }
    }

    fn waiting(&self) {
        if let Some(sign_of_life) = &self.sign_of_life {
            sign_of_life();
        }
    }
}

impl fmt::Debug for Bystander {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bystander").field("listener", &self.listener).finish_non_exhaustive()
    }
}
