//! Samples stacks by SIGPROF: the kernel interrupts the running thread once for each [`PERIOD`] of CPU time, and the
//! handler records what is on its stack.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::profile::{Mapping, PERIOD};

/// Frames beyond this depth are left out.
const DEEPEST: usize = 64;
/// For all samples of a profile, each with its length: 4 MB, allocated by the first profile.
const WORDS: usize = 512 * 1024;

#[derive(Debug)]
pub struct Sampling(());

impl Sampling {
    pub fn start() -> io::Result<Sampling> {
        let notebook = NOTEBOOK.get_or_init(Notebook::new);
        if notebook.in_use.swap(true, Ordering::SeqCst) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another profile is being recorded"));
        }
        // Dropping it, also after an error below, stops the timer and lets the next profile begin.
        let sampling = Sampling(());
        notebook.next.store(0, Ordering::SeqCst);
        install_handler()?;
        set_timer(PERIOD)?;
        Ok(sampling)
    }

    pub fn finish(self) -> io::Result<Vec<Vec<u64>>> {
        set_timer(Duration::ZERO)?;
        Ok(NOTEBOOK.get().map(Notebook::stacks).unwrap_or_default())
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        // Stopping a running timer cannot fail.
        let _ = set_timer(Duration::ZERO);
        if let Some(notebook) = NOTEBOOK.get() {
            notebook.in_use.store(false, Ordering::SeqCst);
        }
    }
}

pub fn mappings() -> Vec<Mapping> {
    parse_mappings(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// The executable lines of `/proc/self/maps`.
fn parse_mappings(maps: &str) -> Vec<Mapping> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let line = |line: &str| {
        // start-end permissions offset device inode file
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let executable = fields.next()?.contains('x');
        let offset = number(fields.next()?)?;
        let file = fields.nth(2).unwrap_or_default().to_owned();
        executable.then_some(Mapping { range: number(start)?..number(end)?, offset, file })
    };
    maps.lines().filter_map(line).collect()
}

static NOTEBOOK: OnceLock<Notebook> = OnceLock::new();

/// The memory that the handler writes to: the handler may not allocate, and several threads may run it at once.
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
        // A full notebook takes no more; samples beyond its end are not read.
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
            // Zero: a handler has reserved this place and not yet filled it. Nothing behind it can be found.
            let length = self.words[at].swap(0, Ordering::Acquire) as usize;
            let Some(stack) = self.words.get(at + 1..at + 1 + length) else { break };
            if length == 0 {
                break;
            }
            stacks.push(stack.iter().map(|word| word.load(Ordering::Relaxed)).collect());
            at += length + 1;
        }
        // The next profile must not read what is left over here.
        self.words[at.min(end)..end].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        stacks
    }
}

/// The handler stays installed: the default action of a late signal is to end the process.
fn install_handler() -> io::Result<()> {
    // SAFETY: zero is a valid value of every field of this plain C struct, and what matters is set below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    // Restart interrupted system calls, where the kernel can.
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

/// Runs on the stack of the interrupted thread. It neither allocates nor locks; nor does the unwinder where it finds its
/// tables without a lock (glibc since 2.35, and static programs).
extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(notebook) = NOTEBOOK.get() else { return };
    let saved = errno();
    let mut frames = Frames { addresses: [0; DEEPEST], length: 0 };
    // SAFETY: the callback is of the type the unwinder calls, and `frames` outlives the call.
    unsafe { _Unwind_Backtrace(on_frame, (&raw mut frames).cast()) };
    let stack = &frames.addresses[..frames.length];
    // SAFETY: the kernel passes a ucontext to handlers that ask for it (SA_SIGINFO).
    let interrupted = unsafe { program_counter(context) };
    // The innermost frames are our own: the sample begins at the interrupted instruction. Where the unwinder cannot
    // see through the signal frame, at least that instruction is known.
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
    // SAFETY: this is the `frames` that was passed to the unwinder, and nothing else uses it meanwhile.
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

/// The handler saves and restores errno, which the interrupted code may be about to read.
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
    use crate::profile::Recording;

    #[test]
    fn samples_are_read_as_they_were_written_and_a_full_notebook_takes_no_more() {
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
    fn code_is_found_among_the_mappings() {
        let maps = "55d0-55e0 r--p 00000000 08:01 17  /usr/bin/ferroxy\n\
                    55e0-55f0 r-xp 00001000 08:01 17  /usr/bin/ferroxy\n\
                    7000-7100 rw-p 00000000 00:00 0\nnonsense\n7ffe-7fff r-xp 00000000 00:00 0  [vdso]\n";
        let expected = [
            Mapping { range: 0x55e0..0x55f0, offset: 0x1000, file: "/usr/bin/ferroxy".into() },
            Mapping { range: 0x7ffe..0x7fff, offset: 0, file: "[vdso]".into() },
        ];
        assert_eq!(parse_mappings(maps), expected);
    }

    /// Works until there are enough samples, however long that takes.
    #[test]
    fn a_busy_thread_is_found_by_its_addresses() {
        let recording = Recording::start().unwrap();
        let busy = Recording::start().unwrap_err();
        assert_eq!(busy.to_string(), "another profile is being recorded");
        let words = 5 * DEEPEST;
        while NOTEBOOK.get().unwrap().next.load(Ordering::SeqCst) < words {
            std::hint::spin_loop();
        }
        let profile = recording.finish().unwrap();
        assert!(!profile.stacks.is_empty(), "this thread was busy all the time");
        let mappings = mappings();
        let known = |address: &u64| mappings.iter().any(|it| it.range.contains(address));
        let inside = profile.stacks.iter().filter(|stack| known(&stack[0])).count();
        assert!(inside * 2 > profile.stacks.len(), "{inside} of {}", profile.stacks.len());
        assert!(profile.stacks.iter().any(|stack| stack.len() > 2), "callers are found, too");
        drop(Recording::start().unwrap());
    }
}
