//! Opening listening sockets.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use socket2::{Domain, Socket, Type};

use crate::config::Protocol;
use crate::system;

/// For datagrams that arrive faster than they are read; the kernel may grant less.
const UDP_BUFFER: usize = 4 << 20;

/// Opens a socket that is bound to the address and, for TCP, listens.
pub fn open(protocol: Protocol, address: SocketAddr, freebind: bool, backlog: u32) -> io::Result<Socket> {
    let kind = match protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // Each family has its own frontends.
        socket.set_only_v6(true)?;
    }
    system::prepare_listener(&socket, address, freebind)?;
    match protocol {
        Protocol::Tcp => {
            // Accepted connections inherit it.
            socket.set_tcp_nodelay(true)?;
            socket.bind(&address.into())?;
            socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        }
        Protocol::Udp => {
            // If the kernel grants less, the engine still works.
            let _ = socket.set_recv_buffer_size(UDP_BUFFER);
            let _ = socket.set_send_buffer_size(UDP_BUFFER);
            system::prepare_datagrams(&socket, address)?;
            socket.bind(&address.into())?;
        }
    }
    Ok(socket)
}

/// Where a socket is bound.
pub fn address_of(socket: &Socket) -> io::Result<SocketAddr> {
    let address = socket.local_addr()?;
    address.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
pub fn protocol_of(socket: &Socket) -> io::Result<Protocol> {
    match socket.r#type()? {
        Type::STREAM => Ok(Protocol::Tcp),
        Type::DGRAM => Ok(Protocol::Udp),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// A socket as the standard library's type for its protocol.
#[derive(Debug)]
pub enum Typed {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Typed {
    pub fn of(protocol: Protocol, socket: Socket) -> Typed {
        match protocol {
            Protocol::Tcp => Typed::Tcp(socket.into()),
            Protocol::Udp => Typed::Udp(socket.into()),
        }
    }
}
