//! A thread that serves traffic, with a runtime of its own. Tasks are started on it from anywhere, and stay there.

use std::future::Future;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};

use crate::config::Class;
use crate::shared::Shared;
use crate::system::runtime::{self, Aborter, Handle, RawTcpListener, RawUdpSocket, Thread};
use crate::table::Frontend;
use crate::tcp::accept::{self, accept};
use crate::tcp::serve::{Arrived, Entry, serve};
use crate::udp::listen::{self, listen};
use crate::wheel;

#[derive(Debug)]
pub struct Worker(Thread);

/// A task that listens on one socket.
#[derive(Debug)]
pub struct Listening {
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "sockets are not handed over"))]
    socket: Listened,
    task: Aborter,
    /// Disconnects when the task and its socket are gone.
    gone: mpsc::Receiver<()>,
}

/// The socket, shared with its task.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "sockets are not handed over"))]
enum Listened {
    Tcp(Arc<RawTcpListener>),
    Udp(Arc<RawUdpSocket>),
}

impl Worker {
    pub fn start(number: usize) -> io::Result<Worker> {
        let thread = Thread::start(format!("proxy-{number}"))?;
        thread.handle().spawn(wheel::turn());
        Ok(Worker(thread))
    }

    /// Ends the thread and cuts its connections.
    pub fn stop(self) {
        self.0.stop();
    }

    pub fn sibling(&self) -> Sibling {
        Sibling(self.0.handle().clone())
    }

    pub fn listen_tcp(
        &self,
        socket: TcpListener,
        entry: Entry,
        shared: Arc<Shared>,
        siblings: Siblings,
    ) -> io::Result<Listening> {
        let handle = self.0.handle().clone();
        let socket = runtime::TcpListener::new(socket, &handle)?;
        let raw = socket.raw().clone();
        let listener = accept::Listener { socket, handle, entry, shared, siblings };
        Ok(self.spawn(Listened::Tcp(raw), accept(listener)))
    }

    pub fn listen_udp(
        &self,
        socket: UdpSocket,
        frontend: Arc<Frontend>,
        class: Class,
        shared: Arc<Shared>,
    ) -> io::Result<Listening> {
        let handle = self.0.handle().clone();
        let socket = runtime::UdpSocket::new(socket, &handle)?;
        let raw = socket.raw().clone();
        let listener = listen::Listener::new(socket, handle, frontend, class, shared);
        Ok(self.spawn(Listened::Udp(raw), listen(listener)))
    }

    fn spawn(&self, socket: Listened, listening: impl Future<Output = ()> + Send + 'static) -> Listening {
        let (alive, gone) = mpsc::channel::<()>();
        let task = self.0.handle().spawn(Task { listening: Box::pin(listening), _alive: alive });
        Listening { socket, task, gone }
    }
}

/// A future that listens, and a sender that is dropped after it.
struct Task {
    listening: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Dropped after the socket, also if the task is aborted before its first turn: fields are dropped in their order.
    _alive: mpsc::Sender<()>,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.listening.as_mut().poll(context)
    }
}

impl Listening {
    /// Begins to close the socket.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// Waits until the socket is closed.
    pub fn wait(self) {
        // Nothing is ever sent: `recv` returns when the task ends.
        let _ = self.gone.recv();
    }
}

#[cfg(target_os = "linux")]
impl std::os::fd::AsFd for Listening {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match &self.socket {
            Listened::Tcp(socket) => socket.as_fd(),
            Listened::Udp(socket) => socket.as_fd(),
        }
    }
}

/// Another thread, to which an accepted connection can go.
#[derive(Debug, Clone)]
pub struct Sibling(Handle);

impl Sibling {
    pub fn take_connection(&self, arrived: Arrived) {
        let Arrived { stream, peer, entry, accepted } = arrived;
        // The move fails only if memory is short; then the client's connection is closed.
        if let Ok(stream) = stream.move_to(&self.0) {
            self.0.spawn(serve(Arrived { stream, peer, entry, accepted }));
        }
    }
}

/// The threads that a listener spreads its connections over, in turn.
#[derive(Debug, Clone, Default)]
pub struct Siblings {
    /// `None` is the listener's own thread. Empty: always the own one.
    pub all: Arc<[Option<Sibling>]>,
    pub turn: usize,
}

impl Siblings {
    /// `None` if it is the listener's own thread.
    pub fn next(&mut self) -> Option<&Sibling> {
        self.turn = self.turn.wrapping_add(1);
        let count = self.all.len();
        if count == 0 { None } else { self.all[self.turn % count].as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Socket(Arc<AtomicBool>);

    impl Drop for Socket {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// A connection to a socket that is closed a moment later would be reset.
    #[test]
    fn the_socket_is_closed_before_the_sign_of_life_ends_also_without_a_first_turn() {
        let is_closed = Arc::new(AtomicBool::new(false));
        let (alive, gone) = mpsc::channel();
        let socket = Socket(is_closed.clone());
        let listening = async move {
            let _socket = socket;
            std::future::pending::<()>().await;
        };
        let task = Task { listening: Box::pin(listening), _alive: alive };
        let watching = std::thread::spawn(move || {
            let _ = gone.recv();
            is_closed.load(Ordering::SeqCst)
        });
        drop(task);
        assert!(watching.join().unwrap());
    }
}
