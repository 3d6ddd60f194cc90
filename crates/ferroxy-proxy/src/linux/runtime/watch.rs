//! Waiting for sockets: the readiness that epoll has reported for each (edge-triggered), and the task that waits for
//! it.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::slab::Slab;
use super::tasks::Remote;

pub const READ: u8 = 1;
pub const WRITE: u8 = 2;
/// The peer has closed or urgent data has arrived: a short read does not mean that the socket is empty, and there may be
/// no further report.
const READ_ALL: u8 = 4;
/// An error is pending, or the connection is closed.
const FAILED: u8 = 8;

/// The most events that one call returns.
const EVENTS: usize = 256;
/// The key of the alarm; no slab returns it.
const ALARM: u64 = u64::MAX;

thread_local! {
    static REACTOR: RefCell<Option<Reactor>> = const { RefCell::new(None) };
}

/// Opens an epoll instance. Other threads end its sleep with the alarm.
pub fn open(remote: &Remote) -> io::Result<OwnedFd> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    // Edge-triggered, so that the alarm never has to be read.
    epoll::add(&epoll, remote.alarm(), data(ALARM), EventFlags::IN | EventFlags::ET)?;
    Ok(epoll)
}

/// Makes `epoll` the instance of this thread.
pub fn enter(epoll: OwnedFd) {
    REACTOR.set(Some(Reactor { epoll, sources: Slab::new(), events: Vec::with_capacity(EVENTS) }));
}

/// The epoll instance of a thread, and its sockets.
struct Reactor {
    epoll: OwnedFd,
    sources: Slab<Arc<Source>>,
    events: Vec<Event>,
}

impl Reactor {
    fn wait(&mut self, timeout: Option<Timespec>) {
        self.events.clear();
        // If a signal interrupts the call, there are no events.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref());
        for event in &self.events {
            // A socket may have been closed after the kernel reported it.
            if let Some(source) = self.sources.get(event.data.u64()) {
                source.report(event.flags);
            }
        }
    }
}

/// Waits for sockets and the alarm, and wakes the tasks that wait for them.
pub fn wait(timeout: Option<Timespec>) {
    // A wake only puts a task on a list: it does not use the reactor, which is borrowed meanwhile.
    REACTOR.with_borrow_mut(|reactor| {
        if let Some(reactor) = reactor {
            reactor.wait(timeout);
        }
    });
}

/// The known state of a socket. It is used by one task at a time, on one thread.
#[derive(Debug)]
struct Source {
    ready: AtomicU8,
    /// The readiness that the task waits for.
    wanted: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

impl Source {
    fn report(&self, flags: EventFlags) {
        let mut bits = 0;
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
            bits |= READ;
        }
        if flags.contains(EventFlags::OUT) {
            bits |= WRITE;
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            bits |= READ | WRITE | FAILED;
        }
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::PRI) {
            bits |= READ | READ_ALL;
        }
        self.ready.fetch_or(bits, Relaxed);
        if self.wanted.load(Relaxed) & bits != 0 {
            self.wanted.store(0, Relaxed);
            if let Some(waker) = &*self.waker() {
                waker.wake_by_ref();
            }
        }
    }

    fn want(&self, bits: u8, context: &Context<'_>) {
        self.wanted.fetch_or(bits, Relaxed);
        let mut waker = self.waker();
        if !waker.as_ref().is_some_and(|it| it.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket's registration, made by the first task that has to wait. It must be dropped on the same thread. If the
/// socket has other owners, call [`Watch::leave`] before it is closed.
#[derive(Debug)]
pub struct Watch {
    registered: OnceLock<Registered>,
    /// The readiness that is assumed before the registration.
    assumed: AtomicU8,
}

#[derive(Debug)]
struct Registered {
    key: u64,
    source: Arc<Source>,
    /// Whether the registration includes room for writing. Most sockets never lack it, and a report at the start would
    /// only wake the thread.
    writes: AtomicU8,
}

impl Watch {
    /// For a socket whose operations are tried before a task waits for it.
    pub fn untried() -> Watch {
        Watch { registered: OnceLock::new(), assumed: AtomicU8::new(READ | WRITE) }
    }

    /// For a socket that is known to be neither readable nor writable yet.
    pub fn unready() -> Watch {
        Watch { registered: OnceLock::new(), assumed: AtomicU8::new(0) }
    }

    /// Waits until the socket is ready for one of `bits`.
    pub fn poll_ready(&self, context: &Context<'_>, socket: &impl AsFd, bits: u8) -> Poll<io::Result<()>> {
        if self.is_ready(bits) {
            return Poll::Ready(Ok(()));
        }
        let registered = match self.registered(socket, bits) {
            Ok(registered) => registered,
            Err(error) => return Poll::Ready(Err(error)),
        };
        registered.source.want(bits, context);
        Poll::Pending
    }

    /// Calls `operate` until its result is not `WouldBlock`.
    pub fn poll_io<T>(
        &self,
        context: &Context<'_>,
        socket: &impl AsFd,
        bits: u8,
        mut operate: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            if let Poll::Ready(Err(error)) = self.poll_ready(context, socket, bits) {
                return Poll::Ready(Err(error));
            }
            if !self.is_ready(bits) {
                return Poll::Pending;
            }
            match operate() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.clear(bits),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// There is nothing left to read, or no room to write: the kernel reports when this changes.
    pub fn clear(&self, bits: u8) {
        let also = if bits & READ == 0 { 0 } else { READ_ALL };
        self.ready().fetch_and(!(bits | also), Relaxed);
    }

    /// A short read has emptied the socket, unless `READ_ALL` is set.
    pub fn clear_after_short_read(&self) {
        if self.ready().load(Relaxed) & READ_ALL == 0 {
            self.clear(READ);
        }
    }

    pub fn has_failed(&self) -> bool {
        self.ready().load(Relaxed) & FAILED != 0
    }

    /// Ends the registration of a socket that another owner, possibly another process, has open as well: closing the
    /// socket here would not end it.
    pub fn leave(&self, socket: &impl AsFd) {
        if self.registered.get().is_some() {
            let _ = REACTOR.try_with(|reactor| match &*reactor.borrow() {
                Some(reactor) => epoll::delete(&reactor.epoll, socket),
                None => Ok(()),
            });
        }
    }

    fn is_ready(&self, bits: u8) -> bool {
        self.ready().load(Relaxed) & bits != 0
    }

    fn ready(&self) -> &AtomicU8 {
        self.registered.get().map_or(&self.assumed, |it| &it.source.ready)
    }

    fn registered(&self, socket: &impl AsFd, bits: u8) -> io::Result<&Registered> {
        if let Some(registered) = self.registered.get() {
            if bits & WRITE != 0 && registered.writes.swap(1, Relaxed) == 0 {
                on_reactor(|it| Ok(epoll::modify(&it.epoll, socket, data(registered.key), flags(WRITE))?))?;
            }
            return Ok(registered);
        }
        let ready = AtomicU8::new(self.assumed.load(Relaxed));
        let source = Arc::new(Source { ready, wanted: AtomicU8::new(0), waker: Mutex::new(None) });
        let key = on_reactor(|reactor| {
            let key = reactor.sources.insert(source.clone());
            let added = epoll::add(&reactor.epoll, socket, data(key), flags(bits));
            if added.is_err() {
                reactor.sources.remove(key);
            }
            added.map(|()| key).map_err(io::Error::from)
        })?;
        let writes = AtomicU8::new(u8::from(bits & WRITE != 0));
        Ok(self.registered.get_or_init(|| Registered { key, source, writes }))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(Registered { key, .. }) = self.registered.get() {
            // The kernel forgets a socket when it is closed. A thread that ends has no reactor any more.
            let _source =
                REACTOR.try_with(|reactor| Some(reactor.borrow_mut().as_mut()?.sources.remove(*key)));
        }
    }
}

fn on_reactor<T>(work: impl FnOnce(&mut Reactor) -> io::Result<T>) -> io::Result<T> {
    REACTOR.with_borrow_mut(|reactor| match reactor {
        Some(reactor) => work(reactor),
        None => Err(io::Error::other("this thread waits for no sockets")),
    })
}

fn data(key: u64) -> EventData {
    EventData::new_u64(key)
}

fn flags(bits: u8) -> EventFlags {
    let always = EventFlags::IN | EventFlags::RDHUP | EventFlags::PRI | EventFlags::ET;
    if bits & WRITE == 0 { always } else { always | EventFlags::OUT }
}
