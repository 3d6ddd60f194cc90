//! Taking over from kube-proxy, the agent's part: when to remove its leftovers, and what to log. The dataplane knows which
//! objects are leftovers.

use std::time::{Duration, Instant};

use ferroxy_dataplane::capability::leftovers::{Established, InForce, Leftovers};
use tracing::{debug, info, warn};

use super::Agent;

/// How long connections may go on through objects of kube-proxy.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// How often such connections are counted, while there are any.
const COUNT_AGAIN: Duration = Duration::from_secs(5);

impl Agent {
    /// Does nothing while part of the source cannot be read: objects of kube-proxy may belong to that part.
    pub(super) fn take_over(&mut self) {
        let now = Instant::now();
        if !self.source_was_complete {
            return;
        }
        if let Some(takes_over) = self.dataplane.takes_over() {
            let established = self.takeover.established(now);
            let found = takes_over.remove_leftovers(InForce::Yes, established);
            self.takeover.took(found, established, now);
        }
    }
}

/// Looks for leftovers after the first sync, at every verification, and while connections still use them. A kube-proxy that
/// still runs restores its rules; when it finally ends, the rules that it leaves are removed as well.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    /// The first look is done: leftovers that are found from now on were restored.
    has_looked: bool,
    has_warned: bool,
    /// Objects that could not be removed the last time: logged again only when they change.
    failed: Vec<String>,
    waiting: Option<Waiting>,
}

/// Waiting for connections to end. After a restart of the agent, the wait starts over, because its start is not stored.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    since: Instant,
    next: Instant,
}

impl Takeover {
    /// When to look next, while connections are waited for.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.map(|waiting| waiting.next)
    }

    fn took(&mut self, found: Leftovers, established: Established, now: Instant) {
        self.log(&found, established);
        self.has_looked = true;
        self.wait(found.connections, now);
        self.failed = found.failed;
    }

    fn established(&self, now: Instant) -> Established {
        let is_over = |waiting: Waiting| now.saturating_duration_since(waiting.since) >= LIMIT;
        if self.waiting.is_some_and(is_over) { Established::End } else { Established::GoOn }
    }

    fn wait(&mut self, connections: u64, now: Instant) {
        let since = self.waiting.map_or(now, |waiting| waiting.since);
        self.waiting = (connections > 0).then_some(Waiting { since, next: now + COUNT_AGAIN });
    }

    fn log(&mut self, found: &Leftovers, established: Established) {
        if !found.own.is_empty() {
            info!("removed rules of another Ferroxy mode: {}", found.own.join(", "));
        }
        if !found.removed.is_empty() {
            self.log_removed(&found.removed.join(", "), found.connections, established);
        }
        if found.connections > 0 && self.waiting.is_none() {
            info!(
                "{} connections still go through kube-proxy: its objects stay until these connections end, for {} minutes \
                 at most; Ferroxy handles new connections",
                found.connections,
                LIMIT.as_secs() / 60,
            );
        }
        if !self.has_looked {
            found
                .kept
                .iter()
                .for_each(|kept| warn!("kept objects of kube-proxy that are still in use: {kept}"));
        }
        for failed in found.failed.iter().filter(|failed| !self.failed.contains(failed)) {
            warn!("cannot remove all rules of kube-proxy: {failed}");
        }
    }

    fn log_removed(&mut self, removed: &str, connections: u64, established: Established) {
        if self.waiting.is_some() {
            match established {
                Established::End => info!(
                    "connections through kube-proxy end after {} minutes: removed {removed}",
                    LIMIT.as_secs() / 60
                ),
                Established::GoOn if connections > 0 => {
                    debug!("no longer used by connections through kube-proxy: removed {removed}");
                }
                Established::GoOn => {
                    info!(
                        "all connections through kube-proxy's virtual servers have ended: removed {removed}"
                    )
                }
            }
        } else if !self.has_looked {
            info!("taken over from kube-proxy: removed {removed}");
        } else if self.has_warned {
            debug!("kube-proxy still runs on this node: {removed} were recreated and removed again");
        } else {
            warn!(
                "kube-proxy still runs on this node: {removed} were recreated and removed again; stop kube-proxy"
            );
            self.has_warned = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_until_they_end_or_the_limit_has_passed() {
        let start = Instant::now();
        let mut takeover = Takeover::default();
        assert_eq!(takeover.due(), None);
        takeover.wait(2, start);
        assert_eq!(takeover.due(), Some(start + COUNT_AGAIN));
        takeover.wait(1, start + COUNT_AGAIN);
        assert_eq!(takeover.established(start + LIMIT - COUNT_AGAIN), Established::GoOn);
        assert_eq!(takeover.established(start + LIMIT), Established::End);
        takeover.wait(0, start + LIMIT);
        assert_eq!(takeover.due(), None);
        assert_eq!(takeover.established(start + 2 * LIMIT), Established::GoOn);
    }
}
