//! Texts of the Windows API: sixteen-bit units that end with a zero.

use windows_sys::Win32::System::Com::CoTaskMemFree;

pub(super) fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// A place for a text that a function allocates. It is freed here.
#[derive(Debug)]
pub(super) struct Returned(*mut u16);

impl Default for Returned {
    fn default() -> Returned {
        Returned(std::ptr::null_mut())
    }
}

impl Returned {
    /// For one call.
    pub(super) fn place(&mut self) -> *mut *mut u16 {
        &raw mut self.0
    }

    /// `None` if the function returned none.
    pub(super) fn into_text(self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the function returned a text that ends with a zero, and every place before it can be read.
        let units = (0..).map(|at| unsafe { *self.0.add(at) }).take_while(|unit| *unit != 0);
        Some(String::from_utf16_lossy(&units.collect::<Vec<u16>>()))
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        // SAFETY: null, or allocated by the function with the allocator that this belongs to.
        unsafe { CoTaskMemFree(self.0.cast_const().cast()) };
    }
}
