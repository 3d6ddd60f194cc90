//! No way to put addresses on an interface.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

const WHAT: &str = "putting addresses on an interface";

pub fn list() -> io::Result<BTreeSet<IpAddr>> {
    Err(super::unsupported(WHAT))
}

pub fn create(_: &str, _: IpAddr) -> io::Result<bool> {
    Err(super::unsupported(WHAT))
}

pub fn delete(_: &str, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
    addresses.iter().map(|_| Err(super::unsupported(WHAT))).collect()
}
