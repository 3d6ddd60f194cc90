//! SIGTERM and SIGINT through a signalfd.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::thread;

use crate::StopReason;

pub fn watch(mut on_stop: Box<dyn FnMut(StopReason) + Send>) -> io::Result<()> {
    let signals = block_stop_signals()?;
    let work = move || {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::retry_on_intr(|| rustix::io::read(signals.as_fd(), &mut info))
            .is_ok_and(|length| length == info.len())
        {
            let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            let interrupted = number == libc::SIGINT as u32;
            on_stop(if interrupted { StopReason::Interrupted } else { StopReason::Terminated });
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(work).map(drop)
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
