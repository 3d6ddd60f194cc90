//! Telling systemd how we are (`Type=notify`): ready, stopping, reloading, alive. Where nobody has asked to be told, all of
//! it does nothing. One datagram to a socket, whose name is in the environment, is all there is to that protocol.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tracing::warn;

#[derive(Debug, Clone, Default)]
pub struct Notifier {
    listener: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// How long systemd waits for a sign of life.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// As the service manager that started us wants it, if one did.
    pub fn from_environment() -> Notifier {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let number = |name| variable(name).and_then(|value| value.to_str()?.parse::<u64>().ok());
        let Some(path) = variable("NOTIFY_SOCKET") else { return Notifier::default() };
        // Meant for another process when it names one.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| *usec > 0 && is_ours).map(Duration::from_micros);
        Notifier::new(&path, watchdog).unwrap_or_else(|error| {
            warn!("the service manager cannot be told anything: NOTIFY_SOCKET is {path:?} ({error})");
            Notifier::default()
        })
    }

    /// `@` in front stands for a socket without a file, in the kernel's list of names.
    pub fn new(path: &OsStr, watchdog: Option<Duration>) -> io::Result<Notifier> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold us up.
        socket.set_nonblocking(true)?;
        Ok(Notifier { listener: Some(Arc::new((socket, address))), watchdog })
    }

    /// The first sync is done. Until this is said a unit that comes after ours waits.
    pub fn ready(&self, status: impl fmt::Display) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// One line for `systemctl status`.
    pub fn status(&self, status: impl fmt::Display) {
        self.send(&format!("STATUS={status}"));
    }

    /// The configuration is being read again; `ready` ends this.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    pub fn stopping(&self, status: impl fmt::Display) {
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// For whoever's life is the service's.
    pub fn heart(&self) -> Heart {
        // Twice as often as needed, which is what systemd advises.
        Heart {
            notifier: self.clone(),
            every: self.watchdog.map(|watchdog| watchdog / 2),
            next: Instant::now(),
        }
    }

    /// A manager that has gone away is nobody to complain to.
    fn send(&self, message: &str) {
        if let Some((socket, address)) = self.listener.as_deref() {
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// Signs of life. Its owner calls [`Heart::beat`] whenever it comes by, and comes by at [`Heart::next_beat`] at the
/// latest. There is no thread that beats by itself: an owner that is stuck must be seen to be.
#[derive(Debug, Clone)]
pub struct Heart {
    notifier: Notifier,
    every: Option<Duration>,
    next: Instant,
}

impl Heart {
    /// When the next sign of life is due; `None` when nobody waits for one.
    pub fn next_beat(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    /// Tells that its owner is alive, if it is time to.
    pub fn beat(&mut self, now: Instant) {
        if let Some(every) = self.every
            && now >= self.next
        {
            self.notifier.send("WATCHDOG=1");
            self.next = now + every;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(listener: &UnixDatagram) -> Vec<String> {
        listener.set_nonblocking(true).unwrap();
        let mut buffer = [0; 256];
        let next =
            || listener.recv(&mut buffer).ok().map(|n| String::from_utf8_lossy(&buffer[..n]).into_owned());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_socket_with_a_file_hears_everything() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(path.as_os_str(), None).unwrap();
        notifier.ready("in sync");
        notifier.status("3 Services");
        notifier.stopping("SIGTERM");
        let expected = ["READY=1\nSTATUS=in sync", "STATUS=3 Services", "STOPPING=1\nSTATUS=SIGTERM"];
        assert_eq!(heard(&listener), expected);
        notifier.reloading();
        let [reloading] = &heard(&listener)[..] else { panic!("one message") };
        let time: u64 = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().parse().unwrap();
        assert!(time > 0);
    }

    #[test]
    fn a_socket_without_a_file_hears_it_too() {
        let name = format!("ferroxy-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        Notifier::new(OsStr::new(&format!("@{name}")), None).unwrap().ready("yes");
        assert_eq!(heard(&listener), ["READY=1\nSTATUS=yes"]);
    }

    #[test]
    fn a_heart_beats_when_it_is_time_and_not_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let watchdog = Duration::from_secs(20);
        let mut heart = Notifier::new(path.as_os_str(), Some(watchdog)).unwrap().heart();
        let start = heart.next_beat().unwrap();
        heart.beat(start);
        assert_eq!(heart.next_beat(), Some(start + watchdog / 2));
        heart.beat(start + watchdog / 4);
        assert_eq!(heard(&listener), ["WATCHDOG=1"]);
        heart.beat(start + watchdog / 2);
        assert_eq!(heard(&listener), ["WATCHDOG=1"]);
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        let mut heart = Notifier::default().heart();
        assert_eq!(heart.next_beat(), None);
        heart.beat(Instant::now());
        Notifier::default().ready("to nobody");
        // One that has gone away.
        Notifier::new(OsStr::new("/nowhere/notify"), None).unwrap().ready("to nobody");
    }
}
