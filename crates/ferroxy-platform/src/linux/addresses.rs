//! The host's addresses over rtnetlink.

use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use ferroxy_netlink::error::Error;
use ferroxy_netlink::route::{AddressMonitor, Connection, Notice};
use rustix::io::Errno;

use crate::addresses::OnChange;

/// The pause after an error, so that a broken socket does not occupy a CPU.
const PAUSE: Duration = Duration::from_secs(1);

pub fn addresses(except_devices: &[&str]) -> io::Result<Vec<IpAddr>> {
    list(except_devices).map_err(failed)
}

pub fn hardware_address(_: IpAddr) -> io::Result<Option<[u8; 6]>> {
    Err(io::ErrorKind::Unsupported.into())
}

pub fn watch(except_devices: Vec<String>, mut on_change: OnChange) -> io::Result<()> {
    let mut monitor = AddressMonitor::open().map_err(failed)?;
    let work = move || {
        let except: Vec<&str> = except_devices.iter().map(String::as_str).collect();
        loop {
            match monitor.next(None).and_then(|notice| concerns_us(notice, &except)) {
                Ok(true) => on_change(crate::addresses::addresses(&except)),
                Ok(false) => {}
                Err(error) => {
                    on_change(Err(failed(error)));
                    thread::sleep(PAUSE);
                }
            }
        }
    };
    thread::Builder::new().name("addresses".to_owned()).spawn(work).map(drop)
}

fn list(except_devices: &[&str]) -> Result<Vec<IpAddr>, Error> {
    let mut connection = Connection::open()?;
    let except = indices(&mut connection, except_devices)?;
    let all = connection.addresses()?.into_iter();
    Ok(all.filter(|address| !except.contains(&address.link)).map(|address| address.ip).collect())
}

/// Whether to list addresses again. Not if only excluded devices changed: the list may have thousands of addresses.
fn concerns_us(notice: Option<Notice>, except_devices: &[&str]) -> Result<bool, Error> {
    let Some(Notice::Changed(moved)) = notice else { return Ok(true) };
    let except = indices(&mut Connection::open()?, except_devices)?;
    Ok(!moved.iter().all(|it| except.contains(&it.address.link)))
}

/// The indices of those devices that exist.
fn indices(connection: &mut Connection, devices: &[&str]) -> Result<Vec<u32>, Error> {
    let mut found = Vec::new();
    for device in devices {
        match connection.link(device) {
            Ok(link) => found.push(link.index),
            Err(error) if error.errno == Errno::NODEV => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Keeps the error's text, and the kind of its errno.
fn failed(error: Error) -> io::Error {
    io::Error::new(io::Error::from(error.errno).kind(), error)
}

#[cfg(test)]
mod tests {
    use crate::addresses::addresses;

    #[test]
    fn loopback_can_be_excluded() {
        let all = addresses(&["no-such-device"]).unwrap();
        let without = addresses(&["lo"]).unwrap();
        assert!(without.iter().all(|address| all.contains(address) && !address.is_loopback()));
        let mut sorted = all.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(all, sorted);
    }
}
