//! Addresses that this program puts on a network interface, and takes off again. Windows only.
//!
//! A host can have thousands of them, and the system can only list all of them. So a list is made when the caller
//! requests it, and not for each address that is added or removed.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::net::IpAddr;

use crate::system;

/// An interface, by the name that people see. It need not exist before an address is added.
#[derive(Debug)]
pub struct Interface {
    name: String,
    door: Box<dyn Door>,
    /// All addresses of the host: the last list, with the changes that were made here since.
    known: Option<BTreeSet<IpAddr>>,
}

/// The system's operations on addresses.
trait Door: Debug + Send {
    /// All addresses of the host, on all interfaces.
    fn list(&mut self) -> io::Result<BTreeSet<IpAddr>>;

    /// `false`: the interface has it already.
    fn create(&mut self, interface: &str, address: IpAddr) -> io::Result<bool>;

    /// Looks for the addresses on this interface first. Returns a result for each address.
    fn delete(&mut self, interface: &str, addresses: &[IpAddr]) -> Vec<io::Result<()>>;
}

#[derive(Debug)]
struct OfSystem;

impl Door for OfSystem {
    fn list(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        system::interface::list()
    }

    fn create(&mut self, interface: &str, address: IpAddr) -> io::Result<bool> {
        system::interface::create(interface, address)
    }

    fn delete(&mut self, interface: &str, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
        system::interface::delete(interface, addresses)
    }
}

impl Interface {
    pub fn named(name: &str) -> Interface {
        Interface { name: name.to_owned(), door: Box::new(OfSystem), known: None }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// All addresses of the host, on all interfaces, those that were added here included.
    pub fn present(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        let present = self.door.list()?;
        self.known = Some(present.clone());
        Ok(present)
    }

    /// Adds an address with a prefix of its own length, which is never the source of the host's own connections, until the next
    /// boot. `false`: the host has it already, on any interface.
    pub fn add(&mut self, address: IpAddr) -> io::Result<bool> {
        let known = match self.known.take() {
            Some(known) => known,
            None => self.door.list()?,
        };
        let known = self.known.insert(known);
        if known.contains(&address) {
            return Ok(false);
        }
        let is_new = self.door.create(&self.name, address)?;
        known.insert(address);
        Ok(is_new)
    }

    /// Removes addresses of the kind that [`Interface::add`] makes, on any interface. A missing address is no error; an
    /// address of another kind stays. Returns a result for each address.
    pub fn remove(&mut self, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
        let results = self.door.delete(&self.name, addresses);
        if let Some(known) = &mut self.known {
            for (address, _) in addresses.iter().zip(&results).filter(|(_, result)| result.is_ok()) {
                known.remove(address);
            }
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, MutexGuard};

    use super::*;

    /// An address that no host has: TEST-NET-1.
    const UNUSED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 77));

    #[test]
    fn what_a_platform_cannot_do_is_an_error_and_changes_nothing() {
        let mut interface = Interface::named("no interface has this name");
        let error = interface.add(UNUSED).unwrap_err();
        assert!(!error.to_string().is_empty());
        match interface.present() {
            Ok(present) => assert!(!present.contains(&UNUSED)),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
    }

    #[derive(Debug, Clone, Default)]
    struct Memory(Arc<Mutex<Host>>);

    /// A host in memory.
    #[derive(Debug, Default)]
    struct Host {
        addresses: BTreeSet<IpAddr>,
        /// How many addresses all lists together had.
        listed: usize,
        /// Lists and changes fail.
        fails: bool,
    }

    impl Host {
        fn check(&self) -> io::Result<()> {
            if self.fails { Err(io::ErrorKind::ResourceBusy.into()) } else { Ok(()) }
        }
    }

    impl Memory {
        fn host(&self) -> MutexGuard<'_, Host> {
            self.0.lock().unwrap()
        }

        fn interface(&self) -> Interface {
            Interface { name: "Ethernet".into(), door: Box::new(self.clone()), known: None }
        }
    }

    impl Door for Memory {
        fn list(&mut self) -> io::Result<BTreeSet<IpAddr>> {
            let mut host = self.host();
            host.check()?;
            host.listed += host.addresses.len();
            Ok(host.addresses.clone())
        }

        fn create(&mut self, _: &str, address: IpAddr) -> io::Result<bool> {
            let mut host = self.host();
            host.check()?;
            Ok(host.addresses.insert(address))
        }

        fn delete(&mut self, _: &str, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
            let mut host = self.host();
            if host.fails {
                return addresses.iter().map(|_| host.check()).collect();
            }
            host.addresses.retain(|address| !addresses.contains(address));
            addresses.iter().map(|_| Ok(())).collect()
        }
    }

    #[test]
    fn addresses_that_come_and_go_cost_no_list_each() {
        let memory = Memory::default();
        let own = IpAddr::from([172, 18, 0, 2]);
        memory.host().addresses.insert(own);
        let mut interface = memory.interface();
        let addresses: Vec<IpAddr> = (0..2000u32).map(|it| (0x0a60_0000 + it).to_be_bytes().into()).collect();
        for address in &addresses {
            assert!(interface.add(*address).unwrap());
        }
        assert!(!interface.add(own).unwrap() && !interface.add(addresses[7]).unwrap(), "the host has them");
        assert_eq!(interface.present().unwrap().len(), 2001);
        for address in &addresses {
            assert!(interface.remove(&[*address]).iter().all(Result::is_ok));
        }
        assert!(interface.add(addresses[7]).unwrap(), "it is gone");
        assert_eq!(memory.host().listed, 1 + 2001, "before the first, and when it was asked for");
    }

    #[test]
    fn a_list_that_fails_is_an_error_and_is_made_again() {
        let memory = Memory::default();
        let own = IpAddr::from([172, 18, 0, 2]);
        memory.host().addresses.insert(own);
        let mut interface = memory.interface();
        memory.host().fails = true;
        assert!(interface.present().is_err());
        assert!(interface.add(own).is_err(), "without a list it is unknown whether the host has it");
        memory.host().fails = false;
        assert!(!interface.add(own).unwrap(), "the host has it");
        assert!(interface.add(UNUSED).unwrap());
        memory.host().fails = true;
        assert!(interface.present().is_err());
        assert!(interface.remove(&[UNUSED]).iter().all(Result::is_err));
        memory.host().fails = false;
        assert!(!interface.add(UNUSED).unwrap(), "an address that could not be removed is still there");
    }
}
