//! The host's name and time zone. The rest is what any platform has.

use std::path::{Path, PathBuf};

use windows_sys::Win32::System::SystemInformation::{ComputerNamePhysicalDnsHostname, GetComputerNameExW};
use windows_sys::Win32::System::Time::{GetTimeZoneInformation, TIME_ZONE_INFORMATION};

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

/// The present offset, for any time: callers only pass the present time.
pub fn utc_offset_seconds(_: i64) -> i32 {
    const DAYLIGHT: u32 = 2;
    const UNKNOWN: u32 = u32::MAX;
    let mut zone = TIME_ZONE_INFORMATION::default();
    // SAFETY: the place for the zone lives here.
    let minutes = match unsafe { GetTimeZoneInformation(&raw mut zone) } {
        UNKNOWN => 0,
        DAYLIGHT => zone.Bias.saturating_add(zone.DaylightBias),
        _ => zone.Bias.saturating_add(zone.StandardBias),
    };
    // The bias is what to add to local time to get UTC.
    minutes.saturating_mul(-60)
}

pub fn data_directory() -> PathBuf {
    let common = std::env::var_os("ProgramData").filter(|it| Path::new(it).is_absolute());
    common.map_or_else(|| PathBuf::from(r"C:\ProgramData"), PathBuf::from).join("ferroxy")
}
