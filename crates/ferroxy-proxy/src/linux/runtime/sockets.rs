//! Sockets that tasks can wait for.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, acceptfrom_with, recv, send,
    shutdown, socket_with, sockopt,
};
use socket2::SockRef;

use super::tasks::Handle;
use super::watch::{READ, WRITE, Watch};
use crate::system;

/// The socket that a listening task shares with the thread that hands it over.
pub type RawTcpListener = std::net::TcpListener;
pub type RawUdpSocket = std::net::UdpSocket;

/// A listening socket, owned by its task.
#[derive(Debug)]
pub struct TcpListener {
    socket: Arc<RawTcpListener>,
    watch: Watch,
}

impl TcpListener {
    /// A task of any thread may use it.
    pub fn new(socket: RawTcpListener, _: &Handle) -> io::Result<TcpListener> {
        Ok(TcpListener { socket: Arc::new(socket), watch: Watch::untried() })
    }

    pub fn raw(&self) -> &Arc<RawTcpListener> {
        &self.socket
    }

    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accept = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (socket, peer) = acceptfrom_with(&self.socket, flags)?;
            let peer = peer.and_then(|it| SocketAddr::try_from(it).ok());
            // Without a peer address, the client has already disconnected.
            let peer = peer.ok_or(io::ErrorKind::ConnectionAborted)?;
            Ok((TcpStream { socket, watch: Watch::untried() }, peer))
        };
        poll_fn(|context| self.watch.poll_io(context, &self.socket, READ, accept)).await
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.watch.leave(&self.socket);
    }
}

#[derive(Debug)]
pub struct TcpStream {
    socket: OwnedFd,
    watch: Watch,
}

/// Connects to an address, with the mark if there is one, and with TCP_NODELAY.
pub async fn connect(address: SocketAddr, mark: Option<u32>) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if let Some(mark) = mark {
        system::set_mark(&socket, mark)?;
    }
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => return Ok(TcpStream { socket, watch: Watch::untried() }),
        Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let watch = Watch::unready();
    poll_fn(|context| watch.poll_ready(context, &socket, WRITE)).await?;
    if watch.has_failed() {
        sockopt::socket_error(&socket)??;
    }
    Ok(TcpStream { socket, watch })
}

impl TcpStream {
    /// Moves the stream to a task of another thread. No task has waited for it yet, so that no registration has to be
    /// moved.
    pub fn move_to(self, _: &Handle) -> io::Result<TcpStream> {
        Ok(self)
    }

    /// Reads what has arrived; 0 at the end.
    pub fn poll_read(&mut self, context: &Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let length = ready!(self.watch.poll_io(context, &self.socket, READ, || {
            Ok(recv(&self.socket, &mut *buffer, RecvFlags::empty())?.0)
        }))?;
        if length > 0 && length < buffer.len() {
            self.watch.clear_after_short_read();
        }
        Poll::Ready(Ok(length))
    }

    pub fn poll_write(&mut self, context: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let length =
            ready!(self.poll_write_io(context, || { Ok(send(&self.socket, bytes, SendFlags::NOSIGNAL)?) }))?;
        if length < bytes.len() {
            // The rest did not fit, and the kernel reports when there is room.
            self.watch.clear(WRITE);
        }
        Poll::Ready(Ok(length))
    }

    /// Calls `read` until its result is not `WouldBlock`.
    pub fn poll_read_io<T>(
        &self,
        context: &Context<'_>,
        read: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.watch.poll_io(context, &self.socket, READ, read)
    }

    pub fn poll_write_io<T>(
        &self,
        context: &Context<'_>,
        write: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.watch.poll_io(context, &self.socket, WRITE, write)
    }

    /// Closes the write direction (FIN).
    pub fn shutdown(&mut self) -> io::Result<()> {
        match shutdown(&self.socket, Shutdown::Write) {
            // The peer has reset the connection, which reading reports.
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub fn options(&self) -> SockRef<'_> {
        SockRef::from(&self.socket)
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A UDP socket, owned by its task. Other tasks may send through the raw socket.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Arc<RawUdpSocket>,
    watch: Watch,
}

impl UdpSocket {
    /// A task of any thread may use it.
    pub fn new(socket: RawUdpSocket, _: &Handle) -> io::Result<UdpSocket> {
        Ok(UdpSocket { socket: Arc::new(socket), watch: Watch::unready() })
    }

    pub fn raw(&self) -> &Arc<RawUdpSocket> {
        &self.socket
    }

    pub fn poll_readable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        self.watch.poll_ready(context, &self.socket, READ)
    }

    /// Calls `read`, which returns whether more datagrams may be waiting. If not, the socket counts as readable only
    /// when the kernel reports it again.
    pub fn read(&self, read: impl FnOnce(&RawUdpSocket) -> io::Result<bool>) -> io::Result<()> {
        let result = read(&self.socket);
        let is_empty = match &result {
            Ok(may_have_more) => !may_have_more,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if is_empty {
            self.watch.clear(READ);
        }
        result.map(|_| ())
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        // Closing the socket also ends its registration, unless sessions (for answers) or a successor still have it
        // open.
        if Arc::strong_count(&self.socket) > 1 {
            self.watch.leave(&self.socket);
        }
    }
}
