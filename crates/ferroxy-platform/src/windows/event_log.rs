//! The Event Log, through advapi32. A source that is not registered works: its events are shown with a note about that.

use std::io;

use windows_sys::Win32::Foundation::HANDLE;

use super::library::{Library, wide};
use crate::event_log::Severity;

type Register = unsafe extern "system" fn(*const u16, *const u16) -> HANDLE;
type Deregister = unsafe extern "system" fn(HANDLE) -> i32;
type Report = unsafe extern "system" fn(
    HANDLE,
    u16,
    u16,
    u32,
    *mut core::ffi::c_void,
    u16,
    u32,
    *const *const u16,
    *const core::ffi::c_void,
) -> i32;

const EVENTLOG_ERROR_TYPE: u16 = 1;
const EVENTLOG_WARNING_TYPE: u16 = 2;

/// The system refuses strings of more than 31,839 characters.
const MOST_UNITS: usize = 16_000;

/// One number for all events: they differ in their text.
const EVENT: u32 = 1;

#[derive(Debug)]
pub struct Source {
    handle: HANDLE,
    report: Report,
    deregister: Deregister,
}

// SAFETY: the handle belongs to the process, and the system takes reports from any thread.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

impl Source {
    pub fn open(name: &str) -> io::Result<Source> {
        let library = Library::load("advapi32.dll")?;
        // SAFETY: these functions have these types.
        let (register, deregister, report): (Register, Deregister, Report) = unsafe {
            (
                library.function(c"RegisterEventSourceW")?,
                library.function(c"DeregisterEventSource")?,
                library.function(c"ReportEventW")?,
            )
        };
        // SAFETY: the name ends with a zero; a null server name means this host.
        let handle = unsafe { register(std::ptr::null(), wide(name).as_ptr()) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Source { handle, report, deregister })
    }

    pub fn write(&self, severity: Severity, text: &str) -> io::Result<()> {
        let kind = match severity {
            Severity::Warning => EVENTLOG_WARNING_TYPE,
            Severity::Error => EVENTLOG_ERROR_TYPE,
        };
        // A zero would end the text.
        let text: Vec<u16> =
            text.encode_utf16().filter(|unit| *unit != 0).take(MOST_UNITS).chain([0]).collect();
        let texts = [text.as_ptr()];
        let nothing = std::ptr::null_mut();
        // SAFETY: the handle is open; there is one string, which ends with a zero, no user and no data.
        let done =
            unsafe { (self.report)(self.handle, kind, 0, EVENT, nothing, 1, 0, texts.as_ptr(), nothing) };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nothing uses it any more.
        unsafe { (self.deregister)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_takes_events_of_any_length() {
        let source = Source::open("ferroxy-test").unwrap();
        source.write(Severity::Warning, "a warning").unwrap();
        source.write(Severity::Error, &"\0x\u{1f980}".repeat(40_000)).unwrap();
    }
}
