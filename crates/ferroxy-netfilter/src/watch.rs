//! Follows nf_tables notifications and reports those that a dataplane cares about. What to do about them is the agent's decision.
//! (Tables of legacy iptables send no notifications.)

use std::thread;
use std::time::Duration;

use ferroxy_dataplane::Failure;
use ferroxy_dataplane::capability::Notify;
use ferroxy_netlink::nftables::{Ignorer, Monitor, Notice, Subscription};
use tracing::warn;

use crate::failure;

/// The pause after an error of the socket, so that a broken socket does not occupy a core.
const PAUSE: Duration = Duration::from_secs(1);

/// Controls a running watch.
#[derive(Debug)]
pub struct Watch {
    /// Names the sender whose notifications are left out: ourselves, or a tool that we run.
    pub ignorer: Ignorer,
    /// Switches all notifications off for the time of a large commit.
    pub subscription: Subscription,
}

/// Starts a thread that reads notifications until the process ends or the receiver is gone. `report` sees each change and
/// each completed commit in order; it returns the text for `notify` if this one concerns the dataplane.
pub fn watch(
    report: impl FnMut(&Notice) -> Option<&'static str> + Send + 'static,
    notify: Notify,
) -> Result<Watch, Failure> {
    let monitor = Monitor::open().map_err(failure::of)?;
    let ignorer = monitor.ignorer().map_err(failure::of)?;
    let subscription = monitor.subscription().map_err(failure::of)?;
    let thread = thread::Builder::new().name("rules".into());
    thread.spawn(move || follow(monitor, report, &notify)).map_err(Failure::other)?;
    Ok(Watch { ignorer, subscription })
}

fn follow(mut monitor: Monitor, mut report: impl FnMut(&Notice) -> Option<&'static str>, notify: &Notify) {
    loop {
        let reason = match monitor.next(None) {
            Ok(Some(Notice::Lost)) => Some("notifications of nf_tables were lost"),
            Ok(Some(notice)) => report(&notice),
            Ok(None) => None,
            Err(error) => {
                warn!("cannot receive notifications of nf_tables: {error}");
                thread::sleep(PAUSE);
                Some("notifications of nf_tables may have been lost")
            }
        };
        if reason.is_some_and(|reason| !notify(reason)) {
            return;
        }
    }
}
