//! Accepting connections: in batches, without dialling, and without giving up when descriptors run out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::reset;
use super::serve::{Arrived, Entry, serve};
use crate::shared::{Accepted, Shared};
use crate::system::runtime::{Handle, TcpListener, sleep, timeout, yield_now};
use crate::system::{self, Spare};
use crate::worker::Siblings;

/// Connections to accept before other tasks get their turn.
const BATCH: usize = 64;
/// How long to wait when nothing can be accepted.
const PAUSE: Duration = Duration::from_millis(50);
/// After more pauses in a row than this, waiting clients are reset, so that they do not hang while descriptors are short.
const PATIENT: u32 = 4;

/// One listening socket of one thread.
#[derive(Debug)]
pub struct Listener {
    pub socket: TcpListener,
    /// The handle of the thread that accepts.
    pub handle: Handle,
    pub entry: Entry,
    pub shared: Arc<Shared>,
    /// Other threads that connections are spread over; empty if each has a socket of its own.
    pub siblings: Siblings,
}

/// Accepts until the task is aborted.
pub async fn accept(mut listener: Listener) {
    let mut pauses = 0;
    let mut spare = Spare::new();
    loop {
        for _ in 0..BATCH {
            if !listener.shared.has_room() {
                listener.wait_for_room().await;
                continue;
            }
            match listener.socket.accept().await {
                Ok((stream, peer)) => {
                    pauses = 0;
                    let accepted = Accepted::count(&listener.shared);
                    listener.start(Arrived { stream, peer, entry: listener.entry.clone(), accepted });
                }
                Err(error) if system::is_exhausted(&error) => {
                    pauses += 1;
                    listener.pause(&mut spare, pauses).await;
                }
                // The client has gone before it was accepted, or a packet filter forbids it.
                Err(error) if is_of_one_client(&error) => {}
                // No other error is known. If one occurs, the loop must not keep a core busy.
                Err(_) => sleep(PAUSE).await,
            }
        }
        yield_now().await;
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, PermissionDenied};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | PermissionDenied)
}

impl Listener {
    fn start(&mut self, arrived: Arrived) {
        match self.siblings.next() {
            Some(sibling) => sibling.take_connection(arrived),
            None => {
                self.handle.spawn(serve(arrived));
            }
        }
    }

    async fn wait_for_room(&self) {
        self.shared.tally.full.fetch_add(1, Relaxed);
        // A connection that ends between the check and here is noticed after the pause.
        let _ = timeout(PAUSE, self.shared.room.notified()).await;
    }

    /// Waiting clients stay in the kernel's queue. If the shortage lasts, the spare descriptor is used to reset them.
    async fn pause(&mut self, spare: &mut Spare, pauses: u32) {
        self.shared.tally.pauses.fetch_add(1, Relaxed);
        if pauses > PATIENT && spare.spend() {
            while let Some(Ok((stream, _))) = timeout(Duration::ZERO, self.socket.accept()).await {
                self.shared.tally.shed.fetch_add(1, Relaxed);
                reset(stream);
            }
        }
        spare.restore();
        sleep(PAUSE).await;
    }
}
