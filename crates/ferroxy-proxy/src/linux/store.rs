//! systemd's descriptor store: it keeps our listening sockets while no process of ours runs, so that clients wait in their
//! queues instead of being refused, also after `kill -9`. sd_notify(3) and sd_pid_notify_with_fds(3) describe the protocol.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::pass::MOST;

/// How the names of our sockets begin. Other names belong to another program.
const OURS: &str = "ferroxy-proxy-";
/// The first inherited descriptor.
const FIRST: RawFd = 3;
/// A service manager that takes no message for this long does not keep the socket.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Store {
    socket: UnixDatagram,
    /// How many descriptors the store accepts.
    most: usize,
    /// How many descriptors the store has of each name.
    kept: BTreeMap<String, usize>,
}

impl Store {
    /// Opens the store, and returns the sockets that it kept. `None` without a service manager that has a store
    /// (systemd 254 sets `FDSTORE`), and for all callers but the first: descriptors are inherited once.
    pub fn from_environment() -> io::Result<Option<(Store, Vec<OwnedFd>)>> {
        static IS_TAKEN: AtomicBool = AtomicBool::new(false);
        if IS_TAKEN.swap(true, Relaxed) {
            return Ok(None);
        }
        let number = |name| env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
        let (Some(path), Some(most)) = (env::var_os("NOTIFY_SOCKET"), number("FDSTORE")) else {
            return Ok(None);
        };
        let mut store = Store::new(&path, most)?;
        let is_for_us = number("LISTEN_PID") == usize::try_from(std::process::id()).ok();
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let count = number("LISTEN_FDS").filter(|_| is_for_us).unwrap_or(0);
        let mut sockets = Vec::new();
        for (descriptor, name) in (FIRST..).zip(names.split(':').take(count)) {
            if name.starts_with(OURS) {
                // SAFETY: the service manager passed this descriptor to this process, and nothing else takes it.
                let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
                fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
                *store.kept.entry(name.to_owned()).or_default() += 1;
                sockets.push(socket);
            }
        }
        Ok(Some((store, sockets)))
    }

    /// A leading `@` means an abstract socket, which has no file.
    fn new(path: &OsStr, most: usize) -> io::Result<Store> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Store { socket, most, kept: BTreeMap::new() })
    }

    /// Stores the sockets of one address. Sockets that do not fit are not kept: when the process ends, their clients
    /// are refused, as without a store.
    pub fn keep(&mut self, place: &str, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let name = name(place);
        let count: usize = self.kept.values().sum();
        let fits = sockets.len() <= MOST && count + sockets.len() <= self.most;
        if !fits || self.kept.contains_key(&name) {
            return Ok(());
        }
        // A listening socket has no end for which the store should poll it.
        let message = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(sockets)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(&self.socket, &[IoSlice::new(message.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
        self.kept.insert(name, sockets.len());
        Ok(())
    }

    /// Removes the sockets of an address that is no longer served. Otherwise its clients would wait in a queue from
    /// which no process accepts.
    pub fn forget(&mut self, place: &str) -> io::Result<()> {
        self.remove(&name(place))
    }

    /// Removes the sockets of all other addresses.
    pub fn forget_all_but(&mut self, places: impl Iterator<Item = String>) -> io::Result<()> {
        let names: std::collections::BTreeSet<String> = places.map(|it| name(&it)).collect();
        let others: Vec<String> = self.kept.keys().filter(|it| !names.contains(*it)).cloned().collect();
        others.iter().try_for_each(|name| self.remove(name))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        if self.kept.contains_key(name) {
            self.socket.send(format!("FDSTOREREMOVE=1\nFDNAME={name}").as_bytes())?;
            self.kept.remove(name);
        }
        Ok(())
    }
}

/// Names must not have a colon.
fn name(place: &str) -> String {
    format!("{OURS}{}", place.replace(':', "_"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use super::*;

    fn said(manager: &UnixDatagram) -> String {
        let mut buffer = [0; 512];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn sockets_are_stored_once_and_removed_by_name_and_no_more_than_fit() {
        let name = format!("ferroxy-store-test-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let mut store = Store::new(OsStr::new(&format!("@{name}")), 2).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = [socket.as_fd()];
        for _ in 0..2 {
            store.keep("tcp-[::1]:80", &one).unwrap();
        }
        store.keep("too-many", &[socket.as_fd(), socket.as_fd()]).unwrap();
        store.keep("udp-127.0.0.1:53", &one).unwrap();
        assert_eq!(said(&manager), "FDSTORE=1\nFDPOLL=0\nFDNAME=ferroxy-proxy-tcp-[__1]_80");
        assert_eq!(said(&manager), "FDSTORE=1\nFDPOLL=0\nFDNAME=ferroxy-proxy-udp-127.0.0.1_53");
        store.forget("tcp-[::1]:80").unwrap();
        store.forget("unknown").unwrap();
        assert_eq!(said(&manager), "FDSTOREREMOVE=1\nFDNAME=ferroxy-proxy-tcp-[__1]_80");
        store.keep("tcp-[::1]:80", &one).unwrap();
        said(&manager);
        store.forget_all_but(std::iter::once("tcp-[::1]:80".to_owned())).unwrap();
        assert_eq!(said(&manager), "FDSTOREREMOVE=1\nFDNAME=ferroxy-proxy-udp-127.0.0.1_53");
        assert_eq!(store.kept.len(), 1);
    }
}
