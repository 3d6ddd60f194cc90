//! Timers of each thread for idle times: a wheel with a coarse tick. Activity only stores a number; the wheel checks
//! each timer at least once in a turn, and removes timers whose owner is gone.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{self, Nanos, nanos};
use crate::system::runtime::sleep;

const TICK: Duration = Duration::from_millis(100);
/// A turn takes 12.8 seconds.
const SLOTS: u64 = 128;

thread_local! {
    static WHEEL: RefCell<Wheel> = RefCell::new(Wheel::new());
}

/// A timer that expires when nothing has happened for `limit`. Dropping it releases the task at once; the wheel notices
/// only at its next check, seconds later.
#[derive(Debug)]
pub struct Timer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: AtomicU64,
    active_at: AtomicU64,
    is_expired: AtomicBool,
    /// A waker keeps the memory of its task. `None` when the timer is dropped or has expired.
    waker: Mutex<Option<Waker>>,
}

impl Timer {
    /// Starts a timer of this thread. When it expires, it wakes the task once.
    pub fn start(limit: Duration, waker: Waker) -> Timer {
        let now = clock::now();
        let inner = Arc::new(Inner::new(nanos(limit), now, waker));
        WHEEL.with_borrow_mut(|wheel| wheel.put(inner.clone(), now));
        Timer(inner)
    }

    /// Something has happened. As precise as a tick.
    pub fn touch(&self) {
        self.0.active_at.store(recently(), Relaxed);
    }

    /// A longer limit from now on.
    pub fn extend(&self, limit: Duration) {
        self.0.limit.store(nanos(limit), Relaxed);
    }

    pub fn is_expired(&self) -> bool {
        self.0.is_expired.load(Relaxed)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        drop(self.0.take_waker());
    }
}

impl Inner {
    fn new(limit: Nanos, now: Nanos, waker: Waker) -> Inner {
        Inner {
            limit: AtomicU64::new(limit),
            active_at: AtomicU64::new(now),
            is_expired: AtomicBool::new(false),
            waker: Mutex::new(Some(waker)),
        }
    }

    fn ends_at(&self) -> Nanos {
        self.active_at.load(Relaxed).saturating_add(self.limit.load(Relaxed))
    }

    fn take_waker(&self) -> Option<Waker> {
        self.waker().take()
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time at the last tick: without asking the clock.
fn recently() -> Nanos {
    WHEEL.with_borrow(|wheel| wheel.at)
}

/// Turns the wheel of this thread; runs as long as the thread.
pub async fn turn() {
    let filled = WHEEL.with_borrow(|wheel| wheel.filled.clone());
    loop {
        if WHEEL.with_borrow(|wheel| wheel.count == 0) {
            filled.notified().await;
        }
        sleep(TICK).await;
        WHEEL.with_borrow_mut(|wheel| wheel.turn_to(clock::now()));
    }
}

#[derive(Debug)]
struct Wheel {
    slots: Vec<Vec<Arc<Inner>>>,
    /// The time at the last tick.
    at: Nanos,
    count: usize,
    filled: Arc<Notify>,
}

impl Wheel {
    fn new() -> Wheel {
        let slots = (0..SLOTS).map(|_| Vec::new()).collect();
        Wheel { slots, at: clock::now(), count: 0, filled: Arc::new(Notify::new()) }
    }

    fn put(&mut self, timer: Arc<Inner>, now: Nanos) {
        if self.count == 0 {
            // Nothing was turned while it was empty.
            self.at = now;
            self.filled.notify_one();
        }
        let tick = nanos(TICK);
        let wait = timer.ends_at().saturating_sub(self.at).div_ceil(tick).clamp(1, SLOTS - 1);
        let slot = (self.at / tick + wait) % SLOTS;
        self.slots[slot as usize].push(timer);
        self.count += 1;
    }

    fn turn_to(&mut self, now: Nanos) {
        let tick = nanos(TICK);
        let (first, last) = (self.at / tick + 1, now / tick);
        self.at = now;
        // After a long pause, one turn visits all.
        for slot in first..=last.min(first + SLOTS - 1) {
            let due = std::mem::take(&mut self.slots[(slot % SLOTS) as usize]);
            self.count -= due.len();
            for timer in due {
                self.visit(timer, now);
            }
        }
    }

    fn visit(&mut self, timer: Arc<Inner>, now: Nanos) {
        if timer.waker().is_none() {
            return;
        }
        if now < timer.ends_at() {
            self.put(timer, now);
        } else {
            timer.is_expired.store(true, Relaxed);
            // Outside of the lock: waking may drop a task that has timers of its own.
            let waker = timer.take_waker();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn timer(limit: Nanos, at: Nanos) -> Timer {
        Timer(Arc::new(Inner::new(limit, at, Waker::noop().clone())))
    }

    fn put(wheel: &mut Wheel, timer: &Timer, now: Nanos) {
        wheel.put(timer.0.clone(), now);
    }

    #[test]
    fn a_timer_expires_after_its_limit_and_not_before() {
        let mut wheel = Wheel::new();
        let start = wheel.at;
        let (short, long) = (timer(SECOND, start), timer(60 * SECOND, start));
        put(&mut wheel, &short, start);
        put(&mut wheel, &long, start);
        wheel.turn_to(start + SECOND * 8 / 10);
        assert!(!short.is_expired());
        wheel.turn_to(start + SECOND * 12 / 10);
        assert!(short.is_expired() && !long.is_expired());
        for second in 2..60 {
            wheel.turn_to(start + second * SECOND);
        }
        assert!(!long.is_expired());
        wheel.turn_to(start + 61 * SECOND);
        assert!(long.is_expired());
        assert_eq!(wheel.count, 0);
    }

    #[test]
    fn activity_postpones_the_end() {
        let mut wheel = Wheel::new();
        let start = wheel.at;
        let busy = timer(SECOND, start);
        put(&mut wheel, &busy, start);
        for step in 1..50 {
            busy.0.active_at.store(start + step * SECOND / 2, Relaxed);
            wheel.turn_to(start + step * SECOND / 2);
        }
        assert!(!busy.is_expired());
        wheel.turn_to(start + 40 * SECOND);
        assert!(busy.is_expired());
    }

    #[test]
    fn a_dropped_timer_leaves_the_wheel_within_a_turn() {
        let mut wheel = Wheel::new();
        let start = wheel.at;
        put(&mut wheel, &timer(3600 * SECOND, start), start);
        assert_eq!(wheel.count, 1);
        for second in 1..=13 {
            wheel.turn_to(start + second * SECOND);
        }
        assert_eq!(wheel.count, 0);
    }

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Task>) {}
    }

    /// Thousands of short connections a second would otherwise keep the memory of their tasks for a turn.
    #[test]
    fn a_dropped_timer_releases_its_task_at_once() {
        let task = Arc::new(Task);
        let timer = Timer::start(Duration::from_secs(3600), Waker::from(task.clone()));
        assert_eq!(Arc::strong_count(&task), 2);
        drop(timer);
        assert_eq!(Arc::strong_count(&task), 1);
    }
}
