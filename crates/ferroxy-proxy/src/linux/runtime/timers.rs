//! Precise timers of a thread, for the few tasks that wait for a moment. Idle times of connections are in the wheel.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::event::Timespec;

use crate::clock::{self, Nanos, nanos};

pub const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The moment of the timer, and a number that makes the key unique.
type Key = (Nanos, u64);

thread_local! {
    static TIMERS: RefCell<BTreeMap<Key, Waker>> = const { RefCell::new(BTreeMap::new()) };
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Waits for `duration`, or a millisecond longer.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { at: clock::now().saturating_add(nanos(duration)), key: None }
}

/// The result of `work`, or `None` if it takes longer than `limit`.
pub async fn timeout<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut end) = (pin!(work), pin!(sleep(limit)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}

#[derive(Debug)]
pub struct Sleep {
    at: Nanos,
    key: Option<Key>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if clock::now() >= self.at {
            return Poll::Ready(());
        }
        let at = self.at;
        let key = *self.key.get_or_insert_with(|| {
            NUMBER.set(NUMBER.get().wrapping_add(1));
            (at, NUMBER.get())
        });
        TIMERS.with_borrow_mut(|timers| timers.insert(key, context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // The waker is dropped when the list is no longer borrowed.
            let _waker = TIMERS.try_with(|timers| timers.borrow_mut().remove(&key));
        }
    }
}

/// How long the thread may sleep; `None`: until something happens.
pub fn next() -> Option<Timespec> {
    let (at, _) = TIMERS.with_borrow(|timers| timers.first_key_value().map(|(key, _)| *key))?;
    let left = Duration::from_nanos(at.saturating_sub(clock::now()));
    Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
}

/// Wakes the tasks whose time has come.
pub fn wake() {
    if TIMERS.with_borrow(BTreeMap::is_empty) {
        return;
    }
    let now = clock::now();
    while let Some(waker) = TIMERS.with_borrow_mut(|timers| {
        let first = timers.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }) {
        waker.wake();
    }
}
