//! Access to the host's addresses: lists them, and puts those of Services on an interface.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::net::IpAddr;

use ferroxy_platform::interface::Interface as OfHost;

/// On Windows this is the platform's; tests have one in memory.
pub trait Interface: Debug + Send {
    /// Its name. Addresses of ours that are on another interface are moved.
    fn name(&self) -> &str;

    /// All addresses of the host, on all interfaces.
    fn present(&mut self) -> io::Result<BTreeSet<IpAddr>>;

    /// `false`: the host has the address already, so it is not ours. Does not list addresses again after `present`.
    fn add(&mut self, address: IpAddr) -> io::Result<bool>;

    /// Removes addresses that `add` added, in this process or in an earlier one. A missing address is no error. One result each.
    fn remove(&mut self, addresses: &[IpAddr]) -> Vec<io::Result<()>>;
}

impl Interface for OfHost {
    fn name(&self) -> &str {
        OfHost::name(self)
    }

    fn present(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        OfHost::present(self)
    }

    fn add(&mut self, address: IpAddr) -> io::Result<bool> {
        OfHost::add(self, address)
    }

    fn remove(&mut self, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
        OfHost::remove(self, addresses)
    }
}
