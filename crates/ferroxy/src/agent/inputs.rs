//! The threads that tell the agent what happened: the host's addresses, and signals. (The source and
//! the dataplane have threads of their own.).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use ferroxy_core::Event;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::route::{AddressMonitor, Connection, Notice};
use rustix::io::Errno;
use tracing::warn;

use super::Input;

/// After an error of a watched socket, so that a broken one does not take a core.
const PAUSE: Duration = Duration::from_secs(1);

/// The addresses of this host, as an event. Those of ipvs mode's device are Services', and the host's in name only.
pub fn host_addresses(devices: &[&str]) -> Result<Event, Error> {
    let mut connection = Connection::open()?;
    let links = services_devices(&mut connection, devices)?;
    let others = connection.addresses()?.into_iter().filter(|address| !links.contains(&address.link));
    let mut all: Vec<IpAddr> = others.map(|address| address.ip).collect();
    all.sort_unstable();
    all.dedup();
    Ok(Event::HostAddresses(all))
}

fn services_devices(connection: &mut Connection, devices: &[&str]) -> Result<Vec<u32>, Error> {
    let mut links = Vec::new();
    for device in devices {
        match connection.link(device) {
            Ok(link) => links.push(link.index),
            Err(error) if error.errno == Errno::NODEV => {}
            Err(error) => return Err(error),
        }
    }
    Ok(links)
}

/// Sends the host's addresses whenever they change.
pub fn watch_addresses(devices: Vec<&'static str>, inputs: Sender<Input>) -> Result<(), Error> {
    let mut monitor = AddressMonitor::open()?;
    spawn("addresses", move || {
        loop {
            match monitor.next(None).and_then(|notice| look_if_of_host(notice, &devices)) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    if inputs.send(Input::Events(vec![event])).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    warn!("cannot follow this host's addresses: {error}");
                    thread::sleep(PAUSE);
                }
            }
        }
    });
    Ok(())
}

/// A Service that comes or goes in ipvs mode is no reason to list thousands of addresses.
fn look_if_of_host(notice: Option<Notice>, devices: &[&str]) -> Result<Option<Event>, Error> {
    if let Some(Notice::Changed(moved)) = notice {
        let links = services_devices(&mut Connection::open()?, devices)?;
        if moved.iter().all(|it| links.contains(&it.address.link)) {
            return Ok(None);
        }
    }
    host_addresses(devices).map(Some)
}

/// Turns SIGTERM and SIGINT into `Stop`. Call it before any other thread exists: they inherit the blocked signals.
pub fn watch_signals(inputs: Sender<Input>) -> io::Result<()> {
    let signals = block_stop_signals()?;
    spawn("signals", move || {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(signals.as_fd(), &mut info).is_ok_and(|n| n == info.len()) {
            let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            let why = if number == libc::SIGINT as u32 { "interrupted" } else { "asked to terminate" };
            if inputs.send(Input::Stop(why)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn block_stop_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use; signalfd returns a new descriptor that we own, or -1.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().name(name.into()).spawn(work) {
        warn!("cannot start the thread that watches {name}: {error}");
    }
}
