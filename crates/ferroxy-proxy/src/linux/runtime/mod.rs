//! The runtime of a thread: tasks, timers and sockets on one epoll instance. It exists because it does only what the
//! engine needs: on tokio, a short connection takes three more system calls (of 18), and each wakeup takes about 0.7 µs
//! more. `any/runtime.rs` has the same interface on tokio, for other platforms.
//!
//! Tasks stay on the thread on which they were started. Sockets are registered by the first task that has to wait for them.

mod slab;
mod sockets;
mod tasks;
#[cfg(test)]
mod tests;
mod timers;
mod watch;

pub use sockets::{RawTcpListener, RawUdpSocket, TcpListener, TcpStream, UdpSocket, connect};
pub use tasks::{Aborter, Handle, yield_now};
pub use timers::{sleep, timeout};

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tasks::Remote;

/// A thread with a runtime.
#[derive(Debug)]
pub struct Thread {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Thread {
    pub fn start(name: String) -> io::Result<Thread> {
        let remote = Arc::new(Remote::new()?);
        let handle = Handle::new(remote.clone());
        let epoll = watch::open(&remote)?;
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            watch::enter(epoll);
            tasks::run(&remote);
        })?;
        Ok(Thread { handle, thread })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Drops all tasks and ends the thread.
    pub fn stop(self) {
        self.handle.stop();
        // It fails only if the thread has panicked, and then the thread has ended, too.
        let _ = self.thread.join();
    }
}
