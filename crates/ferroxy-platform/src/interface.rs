//! Addresses that this program puts on a network interface, and takes off again. Windows only.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use crate::system;

/// An interface, by the name that people see. It need not exist before an address is added.
#[derive(Debug)]
pub struct Interface {
    name: String,
}

impl Interface {
    pub fn named(name: &str) -> Interface {
        Interface { name: name.to_owned() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// All addresses of the host, on all interfaces, those that were added here included.
    pub fn present(&self) -> io::Result<BTreeSet<IpAddr>> {
        system::interface::present()
    }

    /// Adds an address with a prefix of its own length, which is never the source of the host's own connections, until the next
    /// boot. `false`: the host has it already, on any interface.
    pub fn add(&self, address: IpAddr) -> io::Result<bool> {
        system::interface::add(&self.name, address)
    }

    /// Removes an address of that kind, on whichever interface it is. None is no error; one of another kind stays.
    pub fn remove(&self, address: IpAddr) -> io::Result<()> {
        system::interface::remove(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address that no host has: TEST-NET-1.
    const UNUSED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 77));

    #[test]
    fn what_a_platform_cannot_do_is_an_error_and_changes_nothing() {
        let interface = Interface::named("no interface has this name");
        let error = interface.add(UNUSED).unwrap_err();
        assert!(!error.to_string().is_empty());
        match interface.present() {
            Ok(present) => assert!(!present.contains(&UNUSED)),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
    }
}
