//! The socket of a UDP frontend: receives clients' datagrams in batches, and finds or opens their sessions.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::session::{self, Session};
use super::sessions::{SessionKey, Sessions};
use crate::config::Class;
use crate::pool::lease::Lease;
use crate::random;
use crate::shared::Shared;
use crate::system::Batch;
use crate::system::runtime::{Aborter, Handle, UdpSocket, yield_now};
use crate::table::Frontend;

/// Batches before other tasks get their turn.
const ROUNDS: usize = 8;

thread_local! {
    static BATCH: RefCell<Option<Batch>> = const { RefCell::new(None) };
    static SESSIONS: RefCell<Option<Sessions<Open>>> = const { RefCell::new(None) };
}

/// A session, and its task.
#[derive(Debug)]
struct Open {
    session: Arc<Session>,
    task: Aborter,
}

#[derive(Debug)]
pub struct Listener {
    id: u64,
    socket: UdpSocket,
    /// Of this thread.
    handle: Handle,
    frontend: Arc<Frontend>,
    class: Class,
    shared: Arc<Shared>,
    /// Sessions were evicted since the last check. They are closed as soon as their aborted tasks get a turn.
    has_evicted: AtomicBool,
}

impl Listener {
    pub fn new(
        socket: UdpSocket,
        handle: Handle,
        frontend: Arc<Frontend>,
        class: Class,
        shared: Arc<Shared>,
    ) -> Listener {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Listener {
            id: NEXT.fetch_add(1, Relaxed),
            socket,
            handle,
            frontend,
            class,
            shared,
            has_evicted: AtomicBool::new(false),
        }
    }

    fn receive(&self) -> io::Result<()> {
        with_batch(|batch| {
            receive(&self.socket, batch)?;
            // Consecutive datagrams of one client are forwarded together.
            let mut run: Option<(SessionKey, Vec<&[u8]>)> = None;
            for message in batch.messages() {
                let key = SessionKey { listener: self.id, client: message.from, local: message.to };
                match &mut run {
                    Some((same, datagrams)) if *same == key => datagrams.extend(message.datagrams()),
                    _ => {
                        let next = Some((key, message.datagrams().collect()));
                        self.forward(std::mem::replace(&mut run, next));
                    }
                }
            }
            self.forward(run);
            Ok(())
        })
    }

    fn forward(&self, run: Option<(SessionKey, Vec<&[u8]>)>) {
        let Some((key, datagrams)) = run else { return };
        let Some(session) = self.find(&key).or_else(|| self.open(key, datagrams.len() as u64)) else {
            return;
        };
        if !session.send(&datagrams) {
            forget(&session);
        }
    }

    /// The client's session, if its endpoint is still there.
    fn find(&self, key: &SessionKey) -> Option<Arc<Session>> {
        let session =
            with_sessions(&self.shared, |sessions| sessions.touch(key).map(|it| it.session.clone()))?;
        if session.endpoint.has_left() {
            forget(&session);
            return None;
        }
        Some(session)
    }

    fn open(&self, key: SessionKey, datagrams: u64) -> Option<Arc<Session>> {
        let source = key.client.ip();
        let Some(pool) = self.frontend.pool(source, self.class) else {
            self.shared.tally.unrouted.fetch_add(datagrams, Relaxed);
            return None;
        };
        let limit = pool.snapshot().config.limits.sessions;
        let session = Lease::take(&pool, |totals| &totals.active_sessions, limit).and_then(|lease| {
            let endpoint = random::with(|random| pool.choose(source.to_canonical(), &[], random))?;
            let outside = self.socket.raw().clone();
            let socket = session::connect(endpoint.address, self.shared.settings.mark, &self.handle).ok()?;
            Some(Session::new(key, (pool.clone(), lease), endpoint, (socket, outside), self.shared.clone()))
        });
        let Some(session) = session else {
            pool.totals.dropped_datagrams.fetch_add(datagrams, Relaxed);
            return None;
        };
        let session = Arc::new(session);
        let task = self.handle.spawn(session::run(session.clone()));
        let open = Open { session: session.clone(), task };
        let gone = with_sessions(&self.shared, |sessions| sessions.insert(session.key.clone(), open));
        self.shared.tally.evicted_sessions.fetch_add(gone.len() as u64, Relaxed);
        gone.iter().for_each(|it| it.task.abort());
        self.has_evicted.fetch_or(!gone.is_empty(), Relaxed);
        Some(session)
    }
}

impl Drop for Listener {
    /// Sessions hold the socket: they end with the listener, unless a successor listens on the socket now.
    fn drop(&mut self) {
        if !self.shared.is_superseded() {
            let gone = with_sessions(&self.shared, |sessions| sessions.remove_listener(self.id));
            gone.iter().for_each(|it| it.task.abort());
        }
    }
}

/// Receives until the task is aborted.
pub async fn listen(listener: Listener) {
    loop {
        for _ in 0..ROUNDS {
            if poll_fn(|context| listener.socket.poll_readable(context)).await.is_err() {
                return;
            }
            // Errors of earlier answers (a client's port is closed) are reported here: they do not concern this call.
            let _ = listener.receive();
            // No more than one batch of sessions is open beyond the limit.
            if listener.has_evicted.swap(false, Relaxed) {
                break;
            }
        }
        yield_now().await;
    }
}

/// Ends a session, unless another one has taken its place.
pub fn forget(session: &Arc<Session>) {
    let gone = SESSIONS.with_borrow_mut(|sessions| {
        let sessions = sessions.as_mut()?;
        let is_same = Arc::ptr_eq(&sessions.peek(&session.key)?.session, session);
        if is_same { sessions.remove(&session.key) } else { None }
    });
    if let Some(gone) = gone {
        gone.task.abort();
    }
}

/// Receives available datagrams. A batch that is not full has emptied the socket, so that the socket is not read again
/// before the kernel reports more.
pub fn receive(socket: &UdpSocket, batch: &mut Batch) -> io::Result<()> {
    socket.read(|socket| batch.receive(socket).map(|_| batch.is_full()))
}

/// The memory for datagrams of this thread.
pub fn with_batch<T>(receive: impl FnOnce(&mut Batch) -> T) -> T {
    BATCH.with_borrow_mut(|batch| receive(batch.get_or_insert_with(Batch::new)))
}

fn with_sessions<T>(shared: &Shared, change: impl FnOnce(&mut Sessions<Open>) -> T) -> T {
    SESSIONS.with_borrow_mut(|sessions| {
        change(sessions.get_or_insert_with(|| {
            let limits = shared.settings.udp;
            let threads = shared.threads.max(1);
            // All sessions of a socket are on its thread. Divided by the threads, the limit would be too low for a source.
            Sessions::new(limits.sessions / threads, limits.sessions_per_source)
        }))
    })
}
