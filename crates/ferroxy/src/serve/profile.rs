//! CPU profile of this process: the kernel interrupts the running thread a hundred times per second of CPU time, and its
//! stack is recorded. `pprof.rs` encodes the result.

use std::ffi::c_void;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::time::sleep;

/// Between two samples, in CPU time.
pub const PERIOD: Duration = Duration::from_millis(10);

/// Deeper callers are left out.
const DEEPEST: usize = 64;
/// For all samples of a profile, each with its length: 4 MB, there from the first profile on.
const WORDS: usize = 512 * 1024;

#[derive(Debug)]
pub struct Profile {
    pub began: SystemTime,
    pub took: Duration,
    /// Addresses, from the innermost to its callers.
    pub stacks: Vec<Vec<u64>>,
}

/// Samples for this long. One profile at a time.
pub async fn record(time: Duration) -> io::Result<Profile> {
    let notebook = NOTEBOOK.get_or_init(Notebook::new);
    if notebook.in_use.swap(true, Ordering::SeqCst) {
        return Err(io::Error::other("another one is being made"));
    }
    // However this ends, also when the client leaves: the timer stops and the next may begin.
    let _recording = Recording;
    notebook.next.store(0, Ordering::SeqCst);
    install_handler()?;
    set_timer(PERIOD)?;
    #[allow(clippy::disallowed_methods, reason = "for people")]
    let (began, start) = (SystemTime::now(), Instant::now());
    sleep(time).await;
    set_timer(Duration::ZERO)?;
    Ok(Profile { began, took: start.elapsed(), stacks: notebook.stacks() })
}

struct Recording;

impl Drop for Recording {
    fn drop(&mut self) {
        // Stopping a timer that runs cannot fail.
        let _ = set_timer(Duration::ZERO);
        if let Some(notebook) = NOTEBOOK.get() {
            notebook.in_use.store(false, Ordering::SeqCst);
        }
    }
}

static NOTEBOOK: OnceLock<Notebook> = OnceLock::new();

/// What the handler writes to: it may not allocate, and several threads may be in it at once.
struct Notebook {
    in_use: AtomicBool,
    next: AtomicUsize,
    /// One sample after another: how many addresses, then the addresses.
    words: Box<[AtomicU64]>,
}

impl Notebook {
    fn new() -> Notebook {
        let words = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        Notebook { in_use: AtomicBool::new(false), next: AtomicUsize::new(0), words }
    }

    fn note(&self, stack: &[u64]) {
        let start = self.next.fetch_add(stack.len() + 1, Ordering::SeqCst);
        // A full notebook takes no more; what was begun beyond its end is not read.
        let Some(place) = self.words.get(start..start + stack.len() + 1) else { return };
        for (word, address) in place[1..].iter().zip(stack) {
            word.store(*address, Ordering::Relaxed);
        }
        place[0].store(stack.len() as u64, Ordering::Release);
    }

    fn stacks(&self) -> Vec<Vec<u64>> {
        let end = self.next.load(Ordering::SeqCst).min(WORDS);
        let mut stacks = Vec::new();
        let mut at = 0;
        while at < end {
            // Zero: a handler has taken the place and not yet filled it. Nothing behind it can be found.
            let length = self.words[at].swap(0, Ordering::Acquire) as usize;
            let Some(stack) = self.words.get(at + 1..at + 1 + length) else { break };
            if length == 0 {
                break;
            }
            stacks.push(stack.iter().map(|word| word.load(Ordering::Relaxed)).collect());
            at += length + 1;
        }
        // The next profile must not take what is left here for its own.
        self.words[at.min(end)..end].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        stacks
    }
}

/// It stays installed: a signal that comes late would otherwise end the process, for that is what it does by default.
fn install_handler() -> io::Result<()> {
    // SAFETY: zero is a valid value of every field of this plain C struct, and what matters is set below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    // Restart: whoever waits in the kernel goes on waiting, where the kernel can arrange it.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the action is filled in, and its handler does only what a handler may.
    check(unsafe { libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()) })
}

fn set_timer(period: Duration) -> io::Result<()> {
    let time = libc::timeval { tv_sec: 0, tv_usec: period.subsec_micros().into() };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the timer is filled in and only read.
    check(unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs on the stack of whoever was interrupted. No allocation and no locks of ours; the unwinder has none either where
/// it can find its tables without (glibc since 2.35, and static programs).
extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(notebook) = NOTEBOOK.get() else { return };
    let saved = errno();
    let mut frames = Frames { addresses: [0; DEEPEST], length: 0 };
    // SAFETY: the callback is of the type the unwinder calls, and `frames` outlives the call.
    unsafe { _Unwind_Backtrace(on_frame, (&raw mut frames).cast()) };
    let stack = &frames.addresses[..frames.length];
    // SAFETY: the kernel passes a ucontext to handlers that ask for it (SA_SIGINFO).
    let interrupted = unsafe { program_counter(context) };
    // The innermost frames are our own: the stack begins where the signal struck. Where the unwinder cannot see through
    // the signal, at least that place is known.
    match stack.iter().position(|address| *address == interrupted) {
        Some(start) => notebook.note(&stack[start..]),
        None => notebook.note(&[interrupted]),
    }
    set_errno(saved);
}

struct Frames {
    addresses: [u64; DEEPEST],
    length: usize,
}

extern "C" fn on_frame(context: *mut c_void, frames: *mut c_void) -> libc::c_int {
    const GO_ON: libc::c_int = 0;
    const STOP: libc::c_int = 5;
    // SAFETY: this is the `frames` that was given to the unwinder, and nobody else has it meanwhile.
    let frames = unsafe { &mut *frames.cast::<Frames>() };
    // SAFETY: the unwinder's own context, passed on while it is valid.
    let address = unsafe { _Unwind_GetIP(context) } as u64;
    match frames.addresses.get_mut(frames.length) {
        Some(place) => {
            *place = address;
            frames.length += 1;
            GO_ON
        }
        None => STOP,
    }
}

// The unwinder that panics use: part of every Rust program.
unsafe extern "C" {
    fn _Unwind_Backtrace(
        callback: extern "C" fn(*mut c_void, *mut c_void) -> libc::c_int,
        argument: *mut c_void,
    ) -> libc::c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// # Safety
/// `context` is a ucontext.
unsafe fn program_counter(context: *mut c_void) -> u64 {
    // SAFETY: as promised by the caller.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.pc;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return 0;
}

/// Whoever was interrupted may be about to read it.
fn errno() -> libc::c_int {
    // SAFETY: every thread has an errno of its own, always there.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: libc::c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written_and_a_full_notebook_takes_no_more() {
        let notebook = Notebook::new();
        notebook.note(&[1, 2, 3]);
        notebook.note(&[4]);
        assert_eq!(notebook.stacks(), [vec![1, 2, 3], vec![4]]);
        notebook.next.store(0, Ordering::SeqCst);
        assert_eq!(notebook.stacks(), Vec::<Vec<u64>>::new());
        let deep = [7; 60];
        (0..WORDS).for_each(|_| notebook.note(&deep));
        assert_eq!(notebook.stacks().len(), WORDS / 61);
    }

    #[test]
    fn work_is_found_by_its_address() {
        let stop = AtomicBool::new(false);
        let profile = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let profile = runtime.block_on(async {
                let other = tokio::spawn(record(Duration::from_millis(700)));
                tokio::task::yield_now().await;
                assert!(record(PERIOD).await.is_err(), "one at a time");
                other.await.unwrap()
            });
            stop.store(true, Ordering::Relaxed);
            profile.unwrap()
        });
        assert!(!profile.stacks.is_empty(), "somebody was busy all the time");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mappings = super::super::pprof::mappings(&maps);
        let known = |address: &u64| mappings.iter().any(|it| it.range.contains(address));
        let inside = profile.stacks.iter().filter(|stack| known(&stack[0])).count();
        assert!(inside * 2 > profile.stacks.len(), "{inside} of {}", profile.stacks.len());
        assert!(profile.stacks.iter().any(|stack| stack.len() > 2), "callers are found, too");
    }
}
