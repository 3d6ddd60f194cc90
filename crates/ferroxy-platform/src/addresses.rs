//! The IP addresses of this host, and changes of them.

use std::io;
use std::net::IpAddr;

use crate::system;

/// All addresses of this host, sorted and without duplicates, except those of the named network devices. A device that
/// does not exist excludes nothing.
pub fn addresses(except_devices: &[&str]) -> io::Result<Vec<IpAddr>> {
    let mut all = system::addresses::addresses(except_devices)?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The hardware address of the network device that has this address; `None` if none has. Supported on Windows only.
pub fn hardware_address(ip: IpAddr) -> io::Result<Option<[u8; 6]>> {
    system::addresses::hardware_address(ip)
}

/// Calls `on_change` with the addresses of this host (see [`addresses`]) whenever they may have changed, on a thread of
/// its own that runs as long as the process. After an error the watch goes on.
///
/// Changes are noticed from the return of this function on: call [`addresses`] after it, and no change is missed.
pub fn watch_addresses(
    except_devices: &[&str],
    on_change: impl FnMut(io::Result<Vec<IpAddr>>) + Send + 'static,
) -> io::Result<()> {
    let except = except_devices.iter().map(|device| (*device).to_owned()).collect();
    system::addresses::watch(except, Box::new(on_change))
}

/// Receives the addresses, or the error why they cannot be listed.
pub(crate) type OnChange = Box<dyn FnMut(io::Result<Vec<IpAddr>>) + Send>;
