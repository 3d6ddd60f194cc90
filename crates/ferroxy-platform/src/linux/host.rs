//! Facts about this host from uname, procfs and the C library.

use std::fs;
use std::path::PathBuf;

pub fn name() -> Option<String> {
    Some(rustix::system::uname().nodename().to_string_lossy().into_owned())
}

pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

pub fn has_ipv6() -> bool {
    let present = fs::exists("/proc/net/if_inet6").unwrap_or(false);
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    present && disabled.is_ok_and(|value| value.trim() != "1")
}

pub fn utc_offset_seconds(unix_seconds: i64) -> i32 {
    let seconds = unix_seconds as libc::time_t;
    // SAFETY: `tm` is numbers and a pointer that may be null, so zeros are a value of it.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values that live here; the function keeps neither. If it fails (the year is too large)
    // it writes nothing, and the zeros mean UTC.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut time) };
    i32::try_from(time.tm_gmtoff).unwrap_or_default()
}

pub fn data_directory() -> PathBuf {
    PathBuf::from("/var/lib/ferroxy")
}
