//! Notices changes that other programs make to the addresses of our device.

use std::thread;
use std::time::Duration;

use ferroxy_dataplane::Failure;
use ferroxy_dataplane::capability::Notify;
use ferroxy_netfilter::failure;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::route::{AddressMonitor, Connection, Moved, Notice};
use rustix::io::Errno;
use tracing::warn;

use crate::expected::Expected;
use crate::state::DEVICE;

/// The pause after an error of the socket, so that a broken socket does not occupy a core.
const PAUSE: Duration = Duration::from_secs(1);

/// Notifies from a thread of its own when the device has other addresses than expected.
pub(crate) fn watch_device(expected: Expected, notify: Notify) -> Result<(), Failure> {
    let monitor = AddressMonitor::open().map_err(failure::of)?;
    let thread = thread::Builder::new().name("device".into());
    thread.spawn(move || follow(monitor, &expected, &notify)).map_err(Failure::other)?;
    Ok(())
}

fn follow(mut monitor: AddressMonitor, expected: &Expected, notify: &Notify) {
    loop {
        let reason = match monitor.next(None).and_then(|notice| is_foreign(notice, expected)) {
            Ok(false) => None,
            Ok(true) => Some("another program changed the addresses of our device"),
            Err(error) => {
                warn!("cannot receive notifications of addresses of {DEVICE}: {error}");
                thread::sleep(PAUSE);
                Some("notifications of the addresses of our device may have been lost")
            }
        };
        if reason.is_some_and(|reason| !notify(reason)) {
            return;
        }
    }
}

/// A notice does not identify the program that made the change (for IPv6 not even the port id does): a change to the expected
/// addresses is our own.
fn is_foreign(notice: Option<Notice>, expected: &Expected) -> Result<bool, Error> {
    let moved = match notice {
        Some(Notice::Changed(moved)) => moved,
        Some(Notice::Lost) => return Ok(true),
        None => return Ok(false),
    };
    let is_wrong = |it: &&Moved| it.came != expected.contains(it.address.ip);
    let (unknown, missing): (Vec<&Moved>, Vec<&Moved>) =
        moved.iter().filter(is_wrong).partition(|it| it.came);
    if !missing.is_empty() || unknown.is_empty() {
        return Ok(!missing.is_empty());
    }
    // Other devices have addresses, too.
    match Connection::open()?.link(DEVICE) {
        Ok(device) => Ok(unknown.iter().any(|it| it.address.link == device.index)),
        Err(error) if error.errno == Errno::NODEV => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ferroxy_netlink::route::Address;

    use super::*;

    fn moved(ip: &str, came: bool) -> Moved {
        let ip: IpAddr = ip.parse().unwrap();
        Moved { address: Address { link: 7, ip, prefix_length: 32 }, came }
    }

    #[test]
    fn a_change_to_the_expected_addresses_is_our_own() {
        let expected: Expected = ["10.96.0.80".parse().unwrap()].into_iter().collect();
        let is_foreign =
            |moves: &[Moved]| is_foreign(Some(Notice::Changed(moves.to_vec())), &expected).unwrap();
        assert!(!is_foreign(&[moved("10.96.0.80", true), moved("10.96.0.81", false)]));
        assert!(is_foreign(&[moved("10.96.0.81", false), moved("10.96.0.80", false)]));
        // An address of another device: this machine has no device of Services.
        assert!(!is_foreign(&[moved("192.0.2.1", true)]));
        assert!(super::is_foreign(Some(Notice::Lost), &expected).unwrap());
    }
}
