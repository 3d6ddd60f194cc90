//! No way to put addresses on an interface.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

const WHAT: &str = "putting addresses on an interface";

pub fn present() -> io::Result<BTreeSet<IpAddr>> {
    Err(super::unsupported(WHAT))
}

pub fn add(_: &str, _: IpAddr) -> io::Result<bool> {
    Err(super::unsupported(WHAT))
}

pub fn remove(_: IpAddr) -> io::Result<()> {
    Err(super::unsupported(WHAT))
}
