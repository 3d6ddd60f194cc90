//! SIGTERM and SIGINT through a signalfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;

use crate::StopReason;

pub fn watch(mut on_stop: Box<dyn FnMut(io::Result<StopReason>) + Send>) -> io::Result<()> {
    let signals = block_stop_signals()?;
    let work = move || {
        loop {
            let next = next(signals.as_fd());
            let is_last = next.is_err();
            on_stop(next);
            if is_last {
                break;
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(work).map(drop)
}

fn next(signals: BorrowedFd<'_>) -> io::Result<StopReason> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(signals, &mut info))?;
    if length != info.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
    let interrupted = number == libc::SIGINT as u32;
    Ok(if interrupted { StopReason::Interrupted } else { StopReason::Terminated })
}

fn block_stop_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use; signalfd returns a new descriptor that we own, or -1.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_cannot_read_signals_says_so() {
        let nothing = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(next(nothing.as_fd()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let folder = std::fs::File::open("/").unwrap();
        assert!(next(folder.as_fd()).is_err());
    }
}
