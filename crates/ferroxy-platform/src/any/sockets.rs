//! Listening sockets with the standard library's options. It cannot choose whether an IPv6 socket takes IPv4 as well:
//! an address that means both families is listened on for its own family only.

use std::io;
use std::net::{SocketAddr, TcpListener};

pub fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    if address.is_ipv6() && !only_v6 {
        return Err(super::unsupported("a socket for both IP families"));
    }
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether to listen for one family instead.
pub fn lacks_family(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn one_family_is_listened_on() {
        let both = listen((Ipv6Addr::UNSPECIFIED, 0).into(), false).unwrap_err();
        assert!(lacks_family(&both));
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into(), true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
