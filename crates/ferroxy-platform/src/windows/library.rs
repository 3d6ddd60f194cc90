//! Functions of the system that not every Windows has: libraries are loaded at run time, from the system's folder only, so that
//! no file beside the program can take their place.

use std::ffi::{CStr, c_void};
use std::io;

use windows_sys::Win32::Foundation::HMODULE;
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW,
};

/// Text as the system takes it: UTF-16 with a zero at the end.
pub fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Stays loaded until the process ends.
#[derive(Debug, Clone, Copy)]
pub struct Library(HMODULE);

// SAFETY: the handle of a loaded library belongs to the process, not to a thread.
unsafe impl Send for Library {}
// SAFETY: as above; looking a function up changes nothing.
unsafe impl Sync for Library {}

impl Library {
    pub fn load(name: &str) -> io::Result<Library> {
        // SAFETY: the name ends with a zero, and the system runs only code of its own folder.
        let module = unsafe {
            LoadLibraryExW(wide(name).as_ptr(), std::ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32)
        };
        if module.is_null() { Err(io::Error::last_os_error()) } else { Ok(Library(module)) }
    }

    /// # Safety
    /// `F` is the type of that function's pointer.
    pub unsafe fn function<F: Copy>(self, name: &CStr) -> io::Result<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
        // SAFETY: the module is loaded, and the name ends with a zero.
        let found = unsafe { GetProcAddress(self.0, name.as_ptr().cast()) };
        let found = found.ok_or_else(|| {
            let text = format!("this system has no function {}", name.to_string_lossy());
            io::Error::new(io::ErrorKind::Unsupported, text)
        })?;
        // SAFETY: as promised by the caller; both are pointers to functions.
        Ok(unsafe { std::mem::transmute_copy(&found) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_an_error() {
        assert!(Library::load("no such library.dll").is_err());
        let kernel = Library::load("kernel32.dll").unwrap();
        type Tick = unsafe extern "system" fn() -> u32;
        // SAFETY: this function has this type.
        let tick: Tick = unsafe { kernel.function(c"GetTickCount") }.unwrap();
        // SAFETY: it takes nothing and only reads a clock.
        assert!(unsafe { tick() } > 0);
        // SAFETY: there is no such function.
        let missing = unsafe { kernel.function::<Tick>(c"NoSuchFunction") }.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::Unsupported);
    }
}
