//! Linux needs no addresses of Services on an interface: local routes serve the same purpose (`ferroxy-netlink`).

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "addresses are put on an interface on Windows only")
}

pub fn list() -> io::Result<BTreeSet<IpAddr>> {
    Err(unsupported())
}

pub fn create(_: &str, _: IpAddr) -> io::Result<bool> {
    Err(unsupported())
}

pub fn delete(_: &str, addresses: &[IpAddr]) -> Vec<io::Result<()>> {
    addresses.iter().map(|_| Err(unsupported())).collect()
}
