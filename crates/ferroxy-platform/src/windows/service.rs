//! The service control manager: it starts the process, requests its stop, and expects reports of its state.

use std::io;
use std::process;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use windows_sys::Win32::Foundation::{ERROR_CALL_NOT_IMPLEMENTED, ERROR_SERVICE_SPECIFIC_ERROR, NO_ERROR};
use windows_sys::Win32::System::Services::{
    RegisterServiceCtrlHandlerExW, SERVICE_ACCEPT_PRESHUTDOWN, SERVICE_ACCEPT_SHUTDOWN, SERVICE_ACCEPT_STOP,
    SERVICE_CONTROL_INTERROGATE, SERVICE_CONTROL_PRESHUTDOWN, SERVICE_CONTROL_SHUTDOWN, SERVICE_CONTROL_STOP,
    SERVICE_RUNNING, SERVICE_START_PENDING, SERVICE_STATUS, SERVICE_STOP_PENDING, SERVICE_STOPPED,
    SERVICE_TABLE_ENTRYW, SERVICE_WIN32_OWN_PROCESS, SetServiceStatus, StartServiceCtrlDispatcherW,
};

use super::library::wide;
use super::signals;
use crate::StopReason;
use crate::service::Work;

/// The work for `service_main`, which the service manager calls on its own thread without an argument of ours.
static WORK: Mutex<Option<(&'static str, Work)>> = Mutex::new(None);

/// The handle of the service, as a number; 0 while there is none.
static HANDLE: AtomicUsize = AtomicUsize::new(0);

/// The state that was reported last. Locked until a report has reached the service manager, so that the last report is
/// the last state.
static STATE: Mutex<u32> = Mutex::new(SERVICE_START_PENDING);

/// How long the service manager waits for a service that says it is stopping.
const TIME_TO_STOP_MS: u32 = 30_000;

/// Why the handler of requests could not be registered; 0 when it was.
static UNREGISTERED: AtomicU32 = AtomicU32::new(0);

pub fn run(name: &'static str, work: Work) -> io::Result<()> {
    *WORK.lock().unwrap_or_else(PoisonError::into_inner) = Some((name, work));
    let mut wide = wide(name);
    let table = [
        SERVICE_TABLE_ENTRYW { lpServiceName: wide.as_mut_ptr(), lpServiceProc: Some(service_main) },
        SERVICE_TABLE_ENTRYW { lpServiceName: std::ptr::null_mut(), lpServiceProc: None },
    ];
    // SAFETY: the table ends with a null entry, and it and the name live until the call returns.
    if unsafe { StartServiceCtrlDispatcherW(table.as_ptr()) } == 0 {
        return Err(io::Error::last_os_error());
    }
    match UNREGISTERED.load(Ordering::SeqCst) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.cast_signed())),
    }
}

/// The service manager calls this on a thread of its own.
unsafe extern "system" fn service_main(_: u32, _: *mut windows_sys::core::PWSTR) {
    let work = WORK.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some((name, work)) = work else { return };
    // SAFETY: the name ends with a zero, and the handler has the type that the system calls.
    let handle =
        unsafe { RegisterServiceCtrlHandlerExW(wide(name).as_ptr(), Some(on_control), std::ptr::null()) };
    if handle.is_null() {
        // No stop request could arrive: the work does not begin, and `run` returns the reason.
        let code = io::Error::last_os_error().raw_os_error().unwrap_or_default().cast_unsigned();
        UNREGISTERED.store(code.max(1), Ordering::SeqCst);
        return;
    }
    HANDLE.store(handle as usize, Ordering::SeqCst);
    report(SERVICE_RUNNING, 0);
    let code = work();
    report(SERVICE_STOPPED, code);
}

unsafe extern "system" fn on_control(
    control: u32,
    _: u32,
    _: *mut core::ffi::c_void,
    _: *mut core::ffi::c_void,
) -> u32 {
    match control {
        SERVICE_CONTROL_STOP | SERVICE_CONTROL_SHUTDOWN | SERVICE_CONTROL_PRESHUTDOWN => {
            report(SERVICE_STOP_PENDING, 0);
            if !signals::stop(StopReason::Terminated) {
                // No watcher exists yet, so no work has begun.
                report(SERVICE_STOPPED, 0);
                process::exit(0);
            }
            NO_ERROR
        }
        SERVICE_CONTROL_INTERROGATE => {
            repeat();
            NO_ERROR
        }
        _ => ERROR_CALL_NOT_IMPLEMENTED,
    }
}

/// Nothing follows `SERVICE_STOPPED`.
fn report(state: u32, code: u32) {
    let mut last = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != SERVICE_STOPPED {
        *last = state;
        tell(state, code);
    }
}

/// Repeats the last state, except SERVICE_STOPPED, which was reported with its exit code.
fn repeat() {
    let last = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != SERVICE_STOPPED {
        tell(*last, 0);
    }
}

fn tell(state: u32, code: u32) {
    const ACCEPTED: u32 = SERVICE_ACCEPT_STOP | SERVICE_ACCEPT_SHUTDOWN | SERVICE_ACCEPT_PRESHUTDOWN;
    let status = SERVICE_STATUS {
        dwServiceType: SERVICE_WIN32_OWN_PROCESS,
        dwCurrentState: state,
        dwControlsAccepted: if state == SERVICE_RUNNING { ACCEPTED } else { 0 },
        dwWin32ExitCode: if code == 0 { NO_ERROR } else { ERROR_SERVICE_SPECIFIC_ERROR },
        dwServiceSpecificExitCode: code,
        dwCheckPoint: u32::from(state == SERVICE_STOP_PENDING),
        dwWaitHint: if state == SERVICE_STOP_PENDING { TIME_TO_STOP_MS } else { 0 },
    };
    let handle = HANDLE.load(Ordering::SeqCst);
    if handle == 0 {
        return;
    }
    // SAFETY: the handle is the one that the system gave; it never closes while the process lives. An error cannot be
    // reported to anything.
    unsafe { SetServiceStatus(handle as _, &raw const status) };
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_LOGOFF_EVENT};
    use windows_sys::Win32::System::Services::SERVICE_CONTROL_PAUSE;

    use super::*;

    fn control(code: u32) -> u32 {
        // SAFETY: the handler reads nothing but the code.
        unsafe { on_control(code, 0, std::ptr::null_mut(), std::ptr::null_mut()) }
    }

    /// One test, because a process has one state and one listener.
    #[test]
    fn requests_of_the_service_manager_and_the_console_reach_the_watcher() {
        let (sender, receiver) = mpsc::channel();
        crate::signals::watch(move |reason| sender.send(reason.unwrap()).unwrap()).unwrap();
        report(SERVICE_RUNNING, 0);
        assert_eq!(control(SERVICE_CONTROL_INTERROGATE), NO_ERROR);
        assert_eq!(control(SERVICE_CONTROL_PAUSE), ERROR_CALL_NOT_IMPLEMENTED);
        assert!(receiver.try_recv().is_err());
        assert_eq!(*STATE.lock().unwrap(), SERVICE_RUNNING, "neither changes anything");
        for request in [SERVICE_CONTROL_STOP, SERVICE_CONTROL_SHUTDOWN, SERVICE_CONTROL_PRESHUTDOWN] {
            report(SERVICE_RUNNING, 0);
            assert_eq!(control(request), NO_ERROR);
            assert_eq!(receiver.try_recv(), Ok(StopReason::Terminated), "{request}");
            assert_eq!(*STATE.lock().unwrap(), SERVICE_STOP_PENDING);
        }
        assert!(signals::happened(CTRL_LOGOFF_EVENT), "a user's logoff is not ours");
        assert!(receiver.try_recv().is_err());
        for event in [CTRL_C_EVENT, CTRL_BREAK_EVENT] {
            assert!(signals::happened(event), "it is handled");
            assert_eq!(receiver.try_recv(), Ok(StopReason::Interrupted));
        }
        report(SERVICE_STOPPED, 3);
        report(SERVICE_STOP_PENDING, 0);
        assert_eq!(control(SERVICE_CONTROL_INTERROGATE), NO_ERROR);
        assert_eq!(*STATE.lock().unwrap(), SERVICE_STOPPED, "nothing follows the end");
    }

    #[test]
    fn a_process_that_was_not_started_as_a_service_gets_an_error() {
        let error = run("ferroxy-test", Box::new(|| 0)).unwrap_err();
        // ERROR_FAILED_SERVICE_CONTROLLER_CONNECT
        assert_eq!(error.raw_os_error(), Some(1063));
    }
}
