//! Datagrams one by one.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};

use socket2::SockRef;

use super::runtime::RawUdpSocket;

const LARGEST: usize = 65_536;

/// One datagram, as a batch.
#[derive(Debug)]
pub struct Batch {
    data: Box<[MaybeUninit<u8>]>,
    received: Option<(SocketAddr, usize)>,
}

#[derive(Debug)]
pub struct Message<'a> {
    pub from: SocketAddr,
    pub to: Option<IpAddr>,
    data: &'a [u8],
}

impl<'a> Message<'a> {
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        std::iter::once(self.data)
    }
}

impl Batch {
    pub fn new() -> Batch {
        Batch { data: Box::new_uninit_slice(LARGEST), received: None }
    }

    pub fn receive(&mut self, socket: &RawUdpSocket) -> io::Result<usize> {
        self.received = None;
        let (length, from) = SockRef::from(socket).recv_from(&mut self.data)?;
        self.received = from.as_socket().or_else(|| socket.peer_addr().ok()).map(|from| (from, length));
        Ok(usize::from(self.received.is_some()))
    }

    /// Whether the socket may have more datagrams.
    pub fn is_full(&self) -> bool {
        self.received.is_some()
    }

    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        self.received.iter().map(|(from, length)| {
            // SAFETY: `recv_from` has written this many bytes.
            let data = unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast::<u8>(), *length) };
            Message { from: *from, to: None, data }
        })
    }
}

/// Sends datagrams until the socket is full; returns how many were sent.
pub fn send(
    socket: &RawUdpSocket,
    to: Option<SocketAddr>,
    _from: Option<IpAddr>,
    datagrams: &[&[u8]],
) -> io::Result<usize> {
    let socket = SockRef::from(socket);
    for (sent, datagram) in datagrams.iter().enumerate() {
        let result = match to {
            Some(to) => socket.send_to(datagram, &to.into()),
            None => socket.send(datagram),
        };
        match result {
            Ok(_) => {}
            Err(error) if sent == 0 => return Err(error),
            Err(_) => return Ok(sent),
        }
    }
    Ok(datagrams.len())
}
