//! The host's name. The rest is what any platform has.

use windows_sys::Win32::System::SystemInformation::{ComputerNamePhysicalDnsHostname, GetComputerNameExW};

pub use crate::any::host::{has_ipv6, kernel_release};

pub fn name() -> Option<String> {
    // A DNS name has at most 255 characters.
    let mut buffer = [0u16; 256];
    let mut length = buffer.len() as u32;
    // SAFETY: the buffer has the length that is passed with it; the call writes no more and updates the length.
    let done =
        unsafe { GetComputerNameExW(ComputerNamePhysicalDnsHostname, buffer.as_mut_ptr(), &raw mut length) };
    let name = buffer.get(..length as usize).filter(|_| done != 0)?;
    String::from_utf16(name).ok()
}
