//! Stand-ins for platforms other than Linux: portable sockets. An operation without a portable form fails as
//! unsupported, or does nothing.

mod datagrams;
pub mod runtime;

#[cfg_attr(target_os = "linux", allow(unused_imports, reason = "the platform has its own"))]
pub use datagrams::{Batch, send};

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::Socket;

use runtime::TcpStream;

/// No option lets several sockets share an address safely: on Windows, SO_REUSEADDR lets others steal it.
pub fn prepare_listener(_: &Socket, _: SocketAddr, freebind: bool) -> io::Result<()> {
    if freebind { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
}

pub fn prepare_datagrams(_: &Socket, _: SocketAddr) -> io::Result<()> {
    Ok(())
}

pub fn set_mark<S>(_: &S, _: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// There is no portable option: only keepalive finds dead peers.
pub fn set_user_timeout<S>(_: &S, _: Duration) -> io::Result<()> {
    Ok(())
}

pub fn original_destination<S>(_: &S, _: SocketAddr) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Memory has run out or, on Windows, socket handles or buffers.
pub fn is_exhausted(error: &io::Error) -> bool {
    const WSAEMFILE: i32 = 10024;
    const WSAENOBUFS: i32 = 10055;
    error.kind() == io::ErrorKind::OutOfMemory
        || matches!(error.raw_os_error(), Some(WSAEMFILE | WSAENOBUFS) if cfg!(windows))
}

pub fn descriptor_limit() -> Option<usize> {
    None
}

/// Without a descriptor limit, no spare descriptor is needed.
#[derive(Debug)]
pub struct Spare;

impl Spare {
    pub fn new() -> Spare {
        Spare
    }

    pub fn spend(&mut self) -> bool {
        false
    }

    pub fn restore(&mut self) {}
}

/// Never exists: bytes are copied.
#[derive(Debug)]
pub enum Pipe {}

impl Pipe {
    pub fn take() -> Option<Pipe> {
        None
    }

    pub fn give_back(self) {}

    pub fn is_empty(&self) -> bool {
        match *self {}
    }

    pub fn poll_fill(&mut self, _: &mut Context<'_>, _: &TcpStream) -> Poll<io::Result<usize>> {
        match *self {}
    }

    pub fn poll_drain(&mut self, _: &mut Context<'_>, _: &TcpStream) -> Poll<io::Result<()>> {
        match *self {}
    }
}

/// Whether several sockets can listen on one address.
pub const SHARES_ADDRESSES: bool = false;
