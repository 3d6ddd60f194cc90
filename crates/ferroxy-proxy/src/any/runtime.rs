//! The runtime of a thread on tokio, for platforms other than Linux.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpSocket;
use tokio::runtime::Builder;
use tokio::sync::Notify;
pub use tokio::task::AbortHandle as Aborter;
#[cfg_attr(target_os = "linux", allow(unused_imports, reason = "the platform has its own"))]
pub use tokio::{task::yield_now, time::sleep};

use super::set_mark;

pub type RawTcpListener = tokio::net::TcpListener;
pub type RawUdpSocket = tokio::net::UdpSocket;

/// A thread with a runtime.
#[derive(Debug)]
pub struct Thread {
    handle: Handle,
    stop: Arc<Notify>,
    thread: JoinHandle<()>,
}

impl Thread {
    pub fn start(name: String) -> io::Result<Thread> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = Handle(runtime.handle().clone());
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            runtime.block_on(stopped.notified());
        })?;
        Ok(Thread { handle, stop, thread })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Drops all tasks and ends the thread.
    pub fn stop(self) {
        self.stop.notify_one();
        // It fails only if the thread has panicked, and then the thread has ended, too.
        let _ = self.thread.join();
    }
}

/// Starts tasks on a thread.
#[derive(Debug, Clone)]
pub struct Handle(tokio::runtime::Handle);

impl Handle {
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Aborter {
        self.0.spawn(work).abort_handle()
    }
}

/// The result of `work`, or `None` if it takes longer than `limit`.
pub async fn timeout<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}

/// A listening socket, owned by its task.
#[derive(Debug)]
pub struct TcpListener(Arc<RawTcpListener>);

impl TcpListener {
    /// Registers the socket for a task on the thread of `handle`.
    pub fn new(socket: std::net::TcpListener, handle: &Handle) -> io::Result<TcpListener> {
        let _inside = handle.0.enter();
        Ok(TcpListener(Arc::new(RawTcpListener::from_std(socket)?)))
    }

    pub fn raw(&self) -> &Arc<RawTcpListener> {
        &self.0
    }

    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        Ok((TcpStream(stream), peer))
    }
}

#[derive(Debug)]
pub struct TcpStream(tokio::net::TcpStream);

/// Connects to an address, with the mark if there is one, and with TCP_NODELAY.
pub async fn connect(address: SocketAddr, mark: Option<u32>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(mark) = mark {
        set_mark(&socket, mark)?;
    }
    socket.set_nodelay(true)?;
    socket.connect(address).await.map(TcpStream)
}

impl TcpStream {
    /// Registers the stream for a task on another thread.
    pub fn move_to(self, handle: &Handle) -> io::Result<TcpStream> {
        let _inside = handle.0.enter();
        self.0.into_std().and_then(tokio::net::TcpStream::from_std).map(TcpStream)
    }

    /// Reads what has arrived; 0 at the end.
    pub fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    /// Closes the write direction (FIN).
    pub fn shutdown(&mut self) -> io::Result<()> {
        match self.options().shutdown(std::net::Shutdown::Write) {
            // The peer has reset the connection, which reading reports.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }

    pub fn options(&self) -> SockRef<'_> {
        SockRef::from(&self.0)
    }
}

/// A UDP socket, owned by its task. Other tasks may send through the raw socket.
#[derive(Debug)]
pub struct UdpSocket(Arc<RawUdpSocket>);

impl UdpSocket {
    /// Registers the socket for a task on the thread of `handle`.
    pub fn new(socket: std::net::UdpSocket, handle: &Handle) -> io::Result<UdpSocket> {
        let _inside = handle.0.enter();
        Ok(UdpSocket(Arc::new(RawUdpSocket::from_std(socket)?)))
    }

    pub fn raw(&self) -> &Arc<RawUdpSocket> {
        &self.0
    }

    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_recv_ready(context)
    }

    /// Calls `read`, which returns whether more datagrams may be waiting. If not, the socket counts as readable only
    /// when the system reports it again.
    pub fn read(&self, read: impl FnOnce(&RawUdpSocket) -> io::Result<bool>) -> io::Result<()> {
        let mut result = Err(io::ErrorKind::WouldBlock.into());
        let _ = self.0.try_io(Interest::READABLE, || {
            result = read(&self.0);
            match &result {
                Ok(true) => Ok(()),
                Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => Err(error.kind().into()),
            }
        });
        result.map(|_| ())
    }
}
