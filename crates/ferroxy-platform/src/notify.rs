//! The service manager that started this process (systemd, `Type=notify`): readiness, status, watchdog. Without one every
//! call does nothing.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::system::notify::Link;

/// The default has no service manager.
#[derive(Debug, Clone, Default)]
pub struct Notifier {
    link: Option<Arc<Link>>,
    /// How long the service manager waits for a heartbeat.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// The service manager that the environment names, if any.
    pub fn from_environment() -> io::Result<Notifier> {
        match Link::from_environment()? {
            Some((link, watchdog)) => Ok(Notifier::new(link, watchdog)),
            None => Ok(Notifier::default()),
        }
    }

    pub(crate) fn new(link: Link, watchdog: Option<Duration>) -> Notifier {
        Notifier { link: Some(Arc::new(link)), watchdog }
    }

    /// The first sync is done. Units that are ordered after ours start now.
    pub fn ready(&self, status: impl fmt::Display) {
        self.send(|link| link.ready(&status));
    }

    /// One line for `systemctl status`.
    pub fn status(&self, status: impl fmt::Display) {
        self.send(|link| link.status(&status));
    }

    /// The configuration is being reloaded; [`Notifier::ready`] ends this.
    pub fn reloading(&self) {
        self.send(Link::reloading);
    }

    pub fn stopping(&self, status: impl fmt::Display) {
        self.send(|link| link.stopping(&status));
    }

    /// The watchdog's heartbeat, for the thread that the service depends on.
    pub fn heart(&self) -> Heart {
        // Twice as often as needed, as systemd recommends.
        Heart {
            notifier: self.clone(),
            every: self.watchdog.map(|watchdog| watchdog / 2),
            next: Instant::now(),
        }
    }

    fn send(&self, message: impl FnOnce(&Link)) {
        if let Some(link) = self.link.as_deref() {
            message(link);
        }
    }
}

/// Sends the watchdog's heartbeats. Its owner calls [`Heart::beat`] in its loop, at [`Heart::next_beat`] at the latest.
/// No thread beats by itself: the service manager must notice an owner that hangs.
#[derive(Debug, Clone)]
pub struct Heart {
    notifier: Notifier,
    every: Option<Duration>,
    next: Instant,
}

impl Heart {
    /// When the next heartbeat is due; `None` without a watchdog.
    pub fn next_beat(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    /// Sends a heartbeat if one is due.
    pub fn beat(&mut self, now: Instant) {
        if let Some(every) = self.every
            && now >= self.next
        {
            self.notifier.send(Link::alive);
            self.next = now + every;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_service_manager_nothing_happens() {
        let mut heart = Notifier::default().heart();
        assert_eq!(heart.next_beat(), None);
        heart.beat(Instant::now());
        Notifier::default().ready("to nobody");
    }
}
