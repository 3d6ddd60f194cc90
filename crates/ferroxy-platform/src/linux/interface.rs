//! Linux needs no addresses of Services on an interface: local routes do it (`ferroxy-netlink`).

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "addresses are put on an interface on Windows only")
}

pub fn present() -> io::Result<BTreeSet<IpAddr>> {
    Err(unsupported())
}

pub fn add(_: &str, _: IpAddr) -> io::Result<bool> {
    Err(unsupported())
}

pub fn remove(_: IpAddr) -> io::Result<()> {
    Err(unsupported())
}
