//! Listening TCP sockets, non-blocking, with the options a server needs. Independent of what is served.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};

use crate::system;

/// Listens on an address. An unspecified address of either family means both families, as in Go.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return listen_exactly(address);
    }
    let everywhere = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port());
    match system::sockets::listen(everywhere, false) {
        // This host has no IPv6.
        Err(error) if system::sockets::lacks_family(&error) => listen_exactly(address),
        result => result,
    }
}

/// Listens on an address, for its own family only.
pub fn listen_exactly(address: SocketAddr) -> io::Result<TcpListener> {
    system::sockets::listen(address, true)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn an_unspecified_address_is_reached_over_ipv4() {
        let listener = listen((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    #[test]
    fn a_socket_does_not_block_and_its_port_is_taken() {
        let listener = listen_exactly((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let again = listen_exactly(listener.local_addr().unwrap()).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    }
}
