//! Tests of the runtime: tasks, timers and sockets of a thread, used from others.

use std::future::{Future, pending, poll_fn};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as Listener};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread::sleep as pause;
use std::time::{Duration, Instant};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(20);

fn thread() -> Thread {
    Thread::start("test".into()).unwrap()
}

/// Runs `work` on the thread, and returns its result.
fn on<T: Send + 'static>(thread: &Thread, work: impl Future<Output = T> + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread.handle().spawn(async move { done.send(work.await).unwrap() });
    result.recv_timeout(PATIENCE).unwrap()
}

/// A task that never ends; the receiver disconnects when it is dropped.
fn endless() -> (impl Future<Output = ()> + Send, Receiver<()>) {
    let (alive, gone): (Sender<()>, _) = mpsc::channel();
    let work = async move {
        let _alive = alive;
        pending::<()>().await;
    };
    (work, gone)
}

fn is_dropped(gone: &Receiver<()>) -> bool {
    gone.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Disconnected)
}

#[test]
fn an_aborted_task_is_dropped_before_and_after_its_first_turn() {
    let thread = thread();
    for wait in [Duration::ZERO, SHORT] {
        let (work, gone) = endless();
        let task = thread.handle().spawn(work);
        pause(wait);
        task.abort();
        assert!(is_dropped(&gone));
        task.abort();
    }
    thread.stop();
}

#[test]
fn a_task_may_abort_itself() {
    let thread = thread();
    let own: Arc<Mutex<Option<Aborter>>> = Arc::default();
    let (work, gone) = endless();
    let seen = own.clone();
    let task = thread.handle().spawn(async move {
        while seen.lock().unwrap().is_none() {
            yield_now().await;
        }
        seen.lock().unwrap().as_ref().unwrap().abort();
        work.await;
    });
    *own.lock().unwrap() = Some(task);
    assert!(is_dropped(&gone));
    thread.stop();
}

#[test]
fn the_end_of_the_thread_drops_tasks_that_wait_and_tasks_that_come_too_late() {
    let thread = thread();
    let handle = thread.handle().clone();
    let (work, gone) = endless();
    handle.spawn(work);
    thread.stop();
    assert!(is_dropped(&gone));
    let (work, gone) = endless();
    handle.spawn(work);
    assert!(is_dropped(&gone));
}

/// The thread sleeps or is about to: no wake may be lost.
#[test]
fn wakes_of_other_threads_end_the_sleep() {
    let thread = thread();
    for _ in 0..2000 {
        let waiting: Arc<Mutex<Option<Waker>>> = Arc::default();
        let (kept, mut is_first) = (waiting.clone(), true);
        let (done, result) = mpsc::channel();
        thread.handle().spawn(async move {
            poll_fn(|context| {
                *kept.lock().unwrap() = Some(context.waker().clone());
                if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            done.send(()).unwrap();
        });
        let waker = loop {
            if let Some(waker) = waiting.lock().unwrap().take() {
                break waker;
            }
        };
        waker.wake();
        result.recv_timeout(PATIENCE).unwrap();
    }
    thread.stop();
}

#[test]
fn timers_end_in_order_and_not_too_early() {
    let thread = thread();
    let (order, ended) = mpsc::channel();
    for length in [3, 1, 2] {
        let order = order.clone();
        thread.handle().spawn(async move {
            let begun = Instant::now();
            sleep(SHORT * length).await;
            order.send((length, begun.elapsed() >= SHORT * length)).unwrap();
        });
    }
    let ended: Vec<_> = (0..3).map(|_| ended.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(ended, [(1, true), (2, true), (3, true)]);
    assert_eq!(on(&thread, timeout(Duration::ZERO, async { 7 })), Some(7));
    assert_eq!(on(&thread, timeout(SHORT, pending::<()>())), None);
    thread.stop();
}

#[test]
fn a_refused_dial_is_an_error_and_an_accepted_one_carries_bytes() {
    let thread = thread();
    let closed = Listener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = on(&thread, async move { connect(closed, None).await.map(|_| ()) });
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);

    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut question = [0; 4];
        peer.read_exact(&mut question).unwrap();
        peer.write_all(&question).unwrap();
        // The end arrives after the answer was read.
        pause(SHORT);
    });
    let answer = on(&thread, async move {
        let mut stream = connect(address, None).await?;
        poll_fn(|context| stream.poll_write(context, b"ping")).await?;
        let mut answer = Vec::new();
        let mut buffer = [0; 64];
        loop {
            match poll_fn(|context| stream.poll_read(context, &mut buffer)).await? {
                0 => return io::Result::Ok(answer),
                length => answer.extend_from_slice(&buffer[..length]),
            }
        }
    });
    assert_eq!(answer.unwrap(), b"ping");
    peer.join().unwrap();
    thread.stop();
}
