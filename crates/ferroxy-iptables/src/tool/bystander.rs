//! Informs the listener to nf_tables notifications, and shows a sign of life, while a tool runs. Runs nothing itself.

use std::fmt;

use ferroxy_netlink::nftables::Ignorer;

use super::Attendant;

/// Informed while a tool runs.
#[derive(Default)]
pub struct Bystander {
    /// Leaves out notifications of our own changes.
    pub listener: Option<Ignorer>,
    pub sign_of_life: Option<Box<dyn Fn() + Send>>,
}

impl Attendant for Bystander {
    /// The notifications of a tool carry its process id.
    fn started(&self, process: u32) {
        if let Some(Err(error)) = self.listener.as_ref().map(|listener| listener.ignore(process)) {
            tracing::warn!("{error}: Ferroxy's own changes trigger verification");
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
