//! Figures of this process from the Windows API.

use windows_sys::Win32::Foundation::{CloseHandle, FILETIME, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, GetProcessHandleCount, GetProcessTimes};

use crate::process::Figures;

pub use crate::any::process::{raise_open_files_limit, threads};

/// File times count units of 100 ns since 1601-01-01.
const UNITS_PER_SECOND: f64 = 1e7;
/// The seconds from 1601-01-01 to 1970-01-01.
const UNIX_EPOCH_SECONDS: f64 = 11_644_473_600.0;

pub fn figures() -> Figures {
    let times = times();
    let memory = memory();
    Figures {
        cpu_seconds: times.map(|times| times.cpu_seconds),
        start_time_seconds: times.map(|times| times.start_seconds),
        resident_bytes: memory.map(|memory| memory.WorkingSetSize as u64),
        virtual_bytes: memory.map(|memory| memory.PagefileUsage as u64),
        threads: thread_count(),
        open_files: handles(),
        ..Figures::default()
    }
}

#[derive(Clone, Copy)]
struct Times {
    cpu_seconds: f64,
    start_seconds: f64,
}

fn times() -> Option<Times> {
    let mut times = [FILETIME::default(); 4];
    let [created, exited, kernel, user] = &mut times;
    // SAFETY: the handle of this process is always valid, and all four places live here.
    let done = unsafe { GetProcessTimes(GetCurrentProcess(), created, exited, kernel, user) };
    let [created, _, kernel, user] = times.map(seconds);
    (done != 0).then_some(Times { cpu_seconds: kernel + user, start_seconds: created - UNIX_EPOCH_SECONDS })
}

fn seconds(time: FILETIME) -> f64 {
    (u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)) as f64 / UNITS_PER_SECOND
}

fn memory() -> Option<PROCESS_MEMORY_COUNTERS> {
    let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    let mut counters = PROCESS_MEMORY_COUNTERS { cb: size, ..PROCESS_MEMORY_COUNTERS::default() };
    // SAFETY: the place for the counters has the size that is passed with it.
    let done = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, size) };
    (done != 0).then_some(counters)
}

/// From the list of processes: Windows has no shorter way.
fn thread_count() -> Option<u64> {
    // SAFETY: has no preconditions; the snapshot is closed below.
    let snapshot = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0) };
    if snapshot == INVALID_HANDLE_VALUE {
        return None;
    }
    let here = std::process::id();
    let mut entry =
        PROCESSENTRY32W { dwSize: size_of::<PROCESSENTRY32W>() as u32, ..PROCESSENTRY32W::default() };
    // SAFETY: the snapshot is open, and the entry has the size that it states.
    let mut found = unsafe { Process32FirstW(snapshot, &raw mut entry) };
    while found != 0 && entry.th32ProcessID != here {
        // SAFETY: as above.
        found = unsafe { Process32NextW(snapshot, &raw mut entry) };
    }
    // SAFETY: nothing uses the snapshot after this.
    unsafe { CloseHandle(snapshot) };
    (found != 0).then_some(entry.cntThreads.into())
}

fn handles() -> Option<u64> {
    let mut count = 0;
    // SAFETY: the handle of this process is always valid, and the place for the count lives here.
    let done = unsafe { GetProcessHandleCount(GetCurrentProcess(), &raw mut count) };
    (done != 0).then_some(count.into())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn threads_are_counted_as_they_come() {
        let before = figures();
        let (ends, held): (Vec<_>, Vec<_>) = (0..20)
            .map(|_| {
                let (end, wait) = mpsc::channel::<()>();
                (end, thread::spawn(move || drop(wait.recv())))
            })
            .unzip();
        let between = figures();
        // Other tests of this process begin and end threads, too.
        assert!(between.threads.unwrap() >= before.threads.unwrap() + 10, "{before:?} {between:?}");
        drop(ends);
        held.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
