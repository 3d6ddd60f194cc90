//! Facts about this host from uname and procfs.

use std::fs;

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
