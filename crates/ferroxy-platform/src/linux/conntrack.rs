//! Settings of nf_conntrack under `/proc/sys/net/netfilter`.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::conntrack::{Failed, Report, Settings, Written};

/// The largest value that `max_per_core` gives, however many CPUs there are.
const LARGEST_SCALED_MAX: u64 = 1 << 20;

pub fn apply(settings: &Settings) -> Report {
    apply_under(Path::new("/"), settings)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// How many connections may be tracked.
    Max,
    /// How many buckets the hash table of connections has. With fewer than a quarter of `Max` lookups become slow.
    Buckets,
    TcpTimeoutEstablished,
    TcpTimeoutCloseWait,
    TcpBeLiberal,
    UdpTimeout,
    UdpTimeoutStream,
}

/// A value to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Write {
    setting: Setting,
    value: u64,
}

impl Setting {
    /// The files of the setting, without the leading slash: read from the first that can be read, written to the first
    /// that can be written.
    fn paths(self) -> &'static [&'static str] {
        match self {
            Setting::Max => &["proc/sys/net/netfilter/nf_conntrack_max"],
            // Everyone can read the sysctl, and CAP_NET_ADMIN can write it. Only root can read or write the module's
            // parameter, which is for kernels whose sysctl is read-only.
            Setting::Buckets => &[
                "proc/sys/net/netfilter/nf_conntrack_buckets",
                "sys/module/nf_conntrack/parameters/hashsize",
            ],
            Setting::TcpTimeoutEstablished => {
                &["proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"]
            }
            Setting::TcpTimeoutCloseWait => &["proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"],
            Setting::TcpBeLiberal => &["proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"],
            Setting::UdpTimeout => &["proc/sys/net/netfilter/nf_conntrack_udp_timeout"],
            Setting::UdpTimeoutStream => &["proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream"],
        }
    }

    /// A larger value than the wanted one stays: an operator has chosen it.
    fn only_grows(self) -> bool {
        matches!(self, Setting::Max | Setting::Buckets)
    }
}

/// As [`apply`], with another root directory.
fn apply_under(root: &Path, settings: &Settings) -> Report {
    let mut report = Report::default();
    for Write { setting, value } in wanted(settings, online_cpus(root), |setting| read(root, setting)) {
        match write(root, setting, value) {
            Ok(path) => report.written.push(Written { name: format!("/{path}"), value }),
            Err((path, error)) => report.failed.push(Failed { name: format!("/{path}"), value, error }),
        }
    }
    report
}

/// The values to write. `current` returns the present value (`None`: it cannot be read).
fn wanted(settings: &Settings, cpus: u64, current: impl Fn(Setting) -> Option<u64>) -> Vec<Write> {
    let max = max_connections(settings, cpus);
    let seconds = |duration: Duration| Some(duration.as_secs()).filter(|seconds| *seconds > 0);
    let values = [
        (Setting::Max, max),
        (Setting::Buckets, max.map(|max| max / 4)),
        (Setting::TcpTimeoutEstablished, seconds(settings.tcp_established_timeout)),
        (Setting::TcpTimeoutCloseWait, seconds(settings.tcp_close_wait_timeout)),
        (Setting::TcpBeLiberal, settings.tcp_be_liberal.then_some(1)),
        (Setting::UdpTimeout, seconds(settings.udp_timeout)),
        (Setting::UdpTimeoutStream, seconds(settings.udp_stream_timeout)),
    ];
    let is_right = |setting: Setting, value: u64| {
        current(setting).is_some_and(|found| found == value || setting.only_grows() && found > value)
    };
    values
        .into_iter()
        .filter_map(|(setting, value)| Some(Write { setting, value: value? }))
        .filter(|write| !is_right(write.setting, write.value))
        .collect()
}

/// `None` leaves it to the kernel. More than the cap becomes the cap, even if `min` is larger; otherwise `min` is a
/// floor.
fn max_connections(settings: &Settings, cpus: u64) -> Option<u64> {
    let per_core = u64::from(settings.max_per_core);
    let scaled = per_core * cpus;
    match per_core {
        0 => None,
        _ if scaled > LARGEST_SCALED_MAX => Some(LARGEST_SCALED_MAX),
        _ => Some(scaled.max(settings.min.into())),
    }
}

/// The CPUs of the host, which may be more than this process may use.
fn online_cpus(root: &Path) -> u64 {
    let listed = fs::read_to_string(root.join("sys/devices/system/cpu/online")).ok();
    let usable = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    listed.and_then(|list| count(list.trim())).unwrap_or_else(usable)
}

/// How many numbers are in a list such as `0-3,5`.
fn count(list: &str) -> Option<u64> {
    let length = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').map(length).sum()
}

fn read(root: &Path, setting: Setting) -> Option<u64> {
    let value = |path: &&str| fs::read_to_string(root.join(path)).ok()?.trim().parse().ok();
    setting.paths().iter().find_map(value)
}

/// Returns the file that was written; or the first file, and why it cannot be written.
fn write(root: &Path, setting: Setting, value: u64) -> Result<&'static str, (&'static str, io::Error)> {
    let mut first = None;
    for path in setting.paths() {
        match fs::write(root.join(path), value.to_string()) {
            Ok(()) => return Ok(path),
            Err(error) => first = first.or(Some((*path, error))),
        }
    }
    Err(first.unwrap_or_else(|| ("", io::ErrorKind::Unsupported.into())))
}

#[cfg(test)]
mod tests;
