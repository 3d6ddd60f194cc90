//! systemd's notification protocol: one datagram for each message, to the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[derive(Debug)]
pub struct Link {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Link {
    /// The socket and the watchdog's interval, as systemd passes them.
    pub fn from_environment() -> io::Result<Option<(Link, Option<Duration>)>> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let number = |name| variable(name).and_then(|value| value.to_str()?.parse::<u64>().ok());
        let Some(path) = variable("NOTIFY_SOCKET") else { return Ok(None) };
        // A watchdog with a process id is for that process only.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| *usec > 0 && is_ours).map(Duration::from_micros);
        let link = Link::new(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot use NOTIFY_SOCKET={}: {error}", path.display()))
        })?;
        Ok(Some((link, watchdog)))
    }

    /// A leading `@` means an abstract socket, which has no file.
    fn new(path: &OsStr) -> io::Result<Link> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        // Do not wait for a service manager that does not read.
        socket.set_nonblocking(true)?;
        Ok(Link { socket, address })
    }

    pub fn ready(&self, status: &dyn fmt::Display) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    pub fn status(&self, status: &dyn fmt::Display) {
        self.send(&format!("STATUS={status}"));
    }

    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    pub fn stopping(&self, status: &dyn fmt::Display) {
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }

    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Errors are ignored: a service manager that is gone cannot act on them.
    fn send(&self, message: &str) {
        let _ = self.socket.send_to_addr(message.as_bytes(), &self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::Notifier;

    fn received(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 256];
        let next =
            || socket.recv(&mut buffer).ok().map(|n| String::from_utf8_lossy(&buffer[..n]).into_owned());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_socket_with_a_path_receives_all_messages() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(Link::new(path.as_os_str()).unwrap(), None);
        notifier.ready("in sync");
        notifier.status("3 Services");
        notifier.stopping("SIGTERM");
        let expected = ["READY=1\nSTATUS=in sync", "STATUS=3 Services", "STOPPING=1\nSTATUS=SIGTERM"];
        assert_eq!(received(&socket), expected);
        notifier.reloading();
        let [reloading] = &received(&socket)[..] else { panic!("one message") };
        let time: u64 = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().parse().unwrap();
        assert!(time > 0);
    }

    #[test]
    fn an_abstract_socket_receives_messages() {
        let name = format!("ferroxy-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        Link::new(OsStr::new(&format!("@{name}"))).unwrap().ready(&"yes");
        assert_eq!(received(&socket), ["READY=1\nSTATUS=yes"]);
    }

    #[test]
    fn a_heart_beats_when_it_is_due_and_only_when_called() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let watchdog = Duration::from_secs(20);
        let mut heart = Notifier::new(Link::new(path.as_os_str()).unwrap(), Some(watchdog)).heart();
        let start = heart.next_beat().unwrap();
        heart.beat(start);
        assert_eq!(heart.next_beat(), Some(start + watchdog / 2));
        heart.beat(start + watchdog / 4);
        assert_eq!(received(&socket), ["WATCHDOG=1"]);
        heart.beat(start + watchdog / 2);
        assert_eq!(received(&socket), ["WATCHDOG=1"]);
    }

    #[test]
    fn a_service_manager_that_is_gone_is_no_error() {
        Link::new(OsStr::new("/nowhere/notify")).unwrap().ready(&"to nobody");
    }
}
