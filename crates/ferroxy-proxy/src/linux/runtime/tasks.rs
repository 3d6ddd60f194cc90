//! Tasks of a thread: started and woken from anywhere, run and dropped on their own thread only.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

use super::slab::Slab;
use super::{timers, watch};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A key that no slab returns.
const NOWHERE: u64 = u64::MAX;

thread_local! {
    /// Which runtime this thread belongs to; 0: none.
    static OWN: Cell<u64> = const { Cell::new(0) };
    /// Tasks to run.
    static WOKEN: RefCell<Vec<Arc<Task>>> = const { RefCell::new(Vec::new()) };
    /// Tasks that have run and not ended. Otherwise only wakers would refer to them, and they could not be dropped when
    /// the thread ends.
    static ALL: RefCell<Slab<Arc<Task>>> = const { RefCell::new(Slab::new()) };
}

/// The part of a runtime that other threads use.
#[derive(Debug)]
pub struct Remote {
    id: u64,
    /// Tasks that other threads started or woke; `None` when the thread has ended.
    woken: Mutex<Option<Vec<Arc<Task>>>>,
    is_asleep: AtomicBool,
    is_stopping: AtomicBool,
    /// An eventfd: a write to it ends the sleep.
    alarm: OwnedFd,
}

impl Remote {
    pub fn new() -> io::Result<Remote> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Remote {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            woken: Mutex::new(Some(Vec::new())),
            is_asleep: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            alarm: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    fn push(&self, task: Arc<Task>) {
        if let Some(woken) = &mut *lock(&self.woken) {
            woken.push(task);
        }
        self.wake();
    }

    fn wake(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst) {
            // The write can only fail if the counter is full; then the thread has been woken.
            let _ = rustix::io::write(&self.alarm, &1u64.to_ne_bytes());
        }
    }

    /// Whether the thread may sleep. If another thread pushes a task after this check, it takes the lock after us, so
    /// that it sees the flag and writes to the alarm.
    fn prepare_to_sleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        lock(&self.woken).as_ref().is_none_or(Vec::is_empty) && !self.is_stopping.load(Ordering::SeqCst)
    }
}

/// Starts tasks on a thread.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Remote>);

impl Handle {
    pub fn new(remote: Arc<Remote>) -> Handle {
        Handle(remote)
    }

    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Aborter {
        let task = Arc::new(Task {
            work: Mutex::new(Some(Box::pin(work))),
            is_woken: AtomicBool::new(true),
            is_aborted: AtomicBool::new(false),
            key: AtomicU64::new(NOWHERE),
            remote: self.0.clone(),
        });
        task.clone().enqueue();
        Aborter(task)
    }

    pub fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::SeqCst);
        self.0.wake();
    }
}

/// Ends a task: its thread drops it soon.
#[derive(Debug)]
pub struct Aborter(Arc<Task>);

impl Aborter {
    pub fn abort(&self) {
        self.0.is_aborted.store(true, Ordering::Release);
        self.0.wake_by_ref();
    }
}

struct Task {
    /// `None` once it has ended. Only the task's thread locks it.
    work: Mutex<Option<Work>>,
    is_woken: AtomicBool,
    is_aborted: AtomicBool,
    /// The key in the list of all tasks.
    key: AtomicU64,
    remote: Arc<Remote>,
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.enqueue();
        }
    }

    fn wake_by_ref(self: &Arc<Task>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.clone().enqueue();
        }
    }
}

impl Task {
    fn enqueue(self: Arc<Task>) {
        // While the thread ends, its lists are gone, and so are its tasks.
        if OWN.try_with(Cell::get) == Ok(self.remote.id) {
            let _ = WOKEN.try_with(|woken| woken.borrow_mut().push(self));
        } else {
            self.remote.clone().push(self);
        }
    }

    fn run(self: Arc<Task>) {
        // A wake from here on enqueues the task again.
        self.is_woken.store(false, Ordering::Release);
        let mut work = lock(&self.work);
        let Some(future) = work.as_mut() else { return };
        let is_done = self.is_aborted.load(Ordering::Acquire) || {
            let waker = Waker::from(self.clone());
            future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        };
        let key = self.key.load(Ordering::Relaxed);
        if is_done {
            let ended = work.take();
            drop(work);
            ALL.with_borrow_mut(|all| all.remove(key));
            // Dropping it may wake or abort tasks, also this one.
            drop(ended);
        } else if key == NOWHERE {
            let key = ALL.with_borrow_mut(|all| all.insert(self.clone()));
            self.key.store(key, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Task").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Runs the tasks of this thread until it is stopped.
pub fn run(remote: &Remote) {
    OWN.set(remote.id);
    let mut round = Vec::new();
    while !remote.is_stopping.load(Ordering::SeqCst) {
        // Tasks that are woken during this round run in the next one, after sockets had their turn.
        WOKEN.with_borrow_mut(|woken| std::mem::swap(woken, &mut round));
        round.drain(..).for_each(Task::run);
        let may_sleep = WOKEN.with_borrow(Vec::is_empty) && remote.prepare_to_sleep();
        watch::wait(if may_sleep { timers::next() } else { Some(timers::AT_ONCE) });
        remote.is_asleep.store(false, Ordering::SeqCst);
        timers::wake();
        if let Some(others) = &mut *lock(&remote.woken)
            && !others.is_empty()
        {
            WOKEN.with_borrow_mut(|woken| woken.append(others));
        }
    }
    // Dropping a task may wake and abort others, so that no list may be borrowed meanwhile.
    for task in ALL.with_borrow_mut(Slab::take_all) {
        let work = lock(&task.work).take();
        drop(work);
    }
    let never_run = lock(&remote.woken).take();
    drop((WOKEN.take(), never_run));
}

/// Lets other tasks and sockets have their turn.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
