//! Console events: Ctrl-C and Ctrl-Break; the console is closed, the system shuts down.

use std::io;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_LOGOFF_EVENT, SetConsoleCtrlHandler,
};

use crate::StopReason;

type OnStop = Box<dyn FnMut(io::Result<StopReason>) + Send>;

/// The handler takes no argument of ours.
static ON_STOP: Mutex<Option<OnStop>> = Mutex::new(None);

/// Windows ends the process when the handler of these events returns, and after a few seconds in any case. So the
/// handler waits, to leave that time to the watcher.
const TIME_TO_STOP: Duration = Duration::from_secs(30);

pub fn watch(on_stop: OnStop) -> io::Result<()> {
    if let Ok(mut place) = ON_STOP.lock() {
        *place = Some(on_stop);
    }
    // SAFETY: the handler has the type that the system calls and lives as long as the process.
    if unsafe { SetConsoleCtrlHandler(Some(on_event), 1) } == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The system calls this on a thread of its own.
unsafe extern "system" fn on_event(event: u32) -> i32 {
    i32::from(happened(event))
}

/// Whether the event is handled, so that the system does not end the process for it.
pub(super) fn happened(event: u32) -> bool {
    // Services get this event when any user logs off. Programs of that user are ended without it.
    if event == CTRL_LOGOFF_EVENT {
        return true;
    }
    let interrupted = matches!(event, CTRL_C_EVENT | CTRL_BREAK_EVENT);
    stop(if interrupted { StopReason::Interrupted } else { StopReason::Terminated });
    if !interrupted {
        thread::sleep(TIME_TO_STOP);
    }
    true
}

/// Calls the watcher. `false`: there is none.
pub(super) fn stop(reason: StopReason) -> bool {
    let mut place = ON_STOP.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    place.as_mut().map(|on_stop| on_stop(Ok(reason))).is_some()
}
