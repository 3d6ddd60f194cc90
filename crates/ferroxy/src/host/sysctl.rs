//! The kernel's settings for connection tracking that the configuration asks for. What cannot be set stays as it is,
//! with a warning: unlike the original, which then refuses to start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use crate::config::Conntrack;

/// The most that `maxPerCore` asks for, however many cores there are.
const LARGEST_SCALED_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// How many connections may be tracked.
    Max,
    /// How many buckets the table of connections has. Fewer than a quarter of `Max` make it slow.
    Buckets,
    TcpTimeoutEstablished,
    TcpTimeoutCloseWait,
    TcpBeLiberal,
    UdpTimeout,
    UdpTimeoutStream,
}

/// A value to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    pub setting: Setting,
    pub value: u64,
}

impl Setting {
    /// Where it is, without the slash in front.
    fn path(self) -> &'static str {
        match self {
            Setting::Max => "proc/sys/net/netfilter/nf_conntrack_max",
            Setting::Buckets => "sys/module/nf_conntrack/parameters/hashsize",
            Setting::TcpTimeoutEstablished => "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
            Setting::TcpTimeoutCloseWait => "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            Setting::TcpBeLiberal => "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
            Setting::UdpTimeout => "proc/sys/net/netfilter/nf_conntrack_udp_timeout",
            Setting::UdpTimeoutStream => "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
        }
    }

    /// More of these is better: a larger value that somebody has chosen stays.
    fn only_grows(self) -> bool {
        matches!(self, Setting::Max | Setting::Buckets)
    }
}

/// Brings this host's settings to the configuration, and says what it did and what it could not.
pub fn apply(conntrack: &Conntrack) {
    apply_under(Path::new("/"), conntrack);
}

/// The same, with another root directory.
fn apply_under(root: &Path, conntrack: &Conntrack) -> Vec<Write> {
    let writes = wanted(conntrack, online_cpus(root), |setting| read(root, setting));
    let (mut written, mut failed) = (Vec::new(), Vec::new());
    for write in writes {
        match fs::write(root.join(write.setting.path()), write.value.to_string()) {
            Ok(()) => {
                info!("/{} is {} now", write.setting.path(), write.value);
                written.push(write);
            }
            Err(error) => failed.push(describe(write, &error)),
        }
    }
    if !failed.is_empty() {
        warn!("connection tracking is not as configured, and stays as it is: {}", failed.join("; "));
    }
    written
}

/// What to write where `current` says what is there (`None`: it cannot be read).
pub fn wanted(conntrack: &Conntrack, cpus: u64, current: impl Fn(Setting) -> Option<u64>) -> Vec<Write> {
    let max = max_connections(conntrack, cpus);
    let seconds = |duration: std::time::Duration| Some(duration.as_secs()).filter(|seconds| *seconds > 0);
    let settings = [
        (Setting::Max, max),
        (Setting::Buckets, max.map(|max| max / 4)),
        (Setting::TcpTimeoutEstablished, seconds(conntrack.tcp_established_timeout)),
        (Setting::TcpTimeoutCloseWait, seconds(conntrack.tcp_close_wait_timeout)),
        (Setting::TcpBeLiberal, conntrack.tcp_be_liberal.then_some(1)),
        (Setting::UdpTimeout, seconds(conntrack.udp_timeout)),
        (Setting::UdpTimeoutStream, seconds(conntrack.udp_stream_timeout)),
    ];
    let is_right = |setting: Setting, value: u64| {
        current(setting).is_some_and(|found| found == value || setting.only_grows() && found > value)
    };
    settings
        .into_iter()
        .filter_map(|(setting, value)| Some(Write { setting, value: value? }))
        .filter(|write| !is_right(write.setting, write.value))
        .collect()
}

/// `None` leaves it to the kernel. `min` is a floor, not subject to the cap; alone it means nothing.
fn max_connections(conntrack: &Conntrack, cpus: u64) -> Option<u64> {
    let per_core = u64::from(conntrack.max_per_core);
    let scaled = per_core * cpus;
    match per_core {
        0 => None,
        _ if scaled > LARGEST_SCALED_MAX => Some(LARGEST_SCALED_MAX),
        _ => Some(scaled.max(conntrack.min.into())),
    }
}

/// Those of the host, which may be more than this process may use.
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
    let path: PathBuf = root.join(setting.path());
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn describe(write: Write, error: &io::Error) -> String {
    format!("/{} cannot be set to {} ({error})", write.setting.path(), write.value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOTHING: Conntrack = Conntrack {
        max_per_core: 0,
        min: 0,
        tcp_established_timeout: Duration::ZERO,
        tcp_close_wait_timeout: Duration::ZERO,
        tcp_be_liberal: false,
        udp_timeout: Duration::ZERO,
        udp_stream_timeout: Duration::ZERO,
    };

    const DEFAULT: Conntrack = Conntrack {
        max_per_core: 32768,
        min: 131_072,
        tcp_established_timeout: Duration::from_secs(86400),
        tcp_close_wait_timeout: Duration::from_secs(3600),
        ..NOTHING
    };

    #[test]
    fn the_number_of_connections_grows_with_the_cores() {
        // (per core, min, cores) and what comes of it.
        let cases = [
            ((0, 500, 8), None),
            ((32768, 131_072, 2), Some(131_072)),
            ((32768, 131_072, 4), Some(131_072)),
            ((32768, 131_072, 5), Some(163_840)),
            ((32768, 0, 1), Some(32768)),
            ((32768, 131_072, 32), Some(1 << 20)),
            ((32768, 131_072, 33), Some(1 << 20)),
            ((32768, 2_000_000, 1), Some(2_000_000)),
            ((32768, 2_000_000, 64), Some(1 << 20)),
        ];
        for ((max_per_core, min, cpus), expected) in cases {
            let conntrack = Conntrack { max_per_core, min, ..NOTHING };
            assert_eq!(max_connections(&conntrack, cpus), expected, "{max_per_core} {min} {cpus}");
        }
    }

    #[test]
    fn only_what_differs_is_written() {
        let all = wanted(&DEFAULT, 2, |_| None);
        let write = |setting, value| Write { setting, value };
        let expected = [
            write(Setting::Max, 131_072),
            write(Setting::Buckets, 32768),
            write(Setting::TcpTimeoutEstablished, 86400),
            write(Setting::TcpTimeoutCloseWait, 3600),
        ];
        assert_eq!(all, expected);
        let right = |setting| expected.iter().find(|it| it.setting == setting).map(|it| it.value);
        assert_eq!(wanted(&DEFAULT, 2, right), []);
        let other = |setting| if setting == Setting::TcpTimeoutCloseWait { Some(60) } else { right(setting) };
        assert_eq!(wanted(&DEFAULT, 2, other), [write(Setting::TcpTimeoutCloseWait, 3600)]);
        assert_eq!(wanted(&NOTHING, 2, |_| None), []);
    }

    #[test]
    fn what_an_operator_made_larger_stays() {
        assert_eq!(wanted(&Conntrack { max_per_core: 1000, ..NOTHING }, 2, |_| Some(1 << 22)), []);
        let smaller = wanted(&Conntrack { max_per_core: 1000, ..NOTHING }, 2, |_| Some(10));
        assert_eq!(smaller.iter().map(|it| it.value).collect::<Vec<_>>(), [2000, 500]);
        // Timeouts are set, whichever way: neither is better.
        let shorter = Conntrack { udp_timeout: Duration::from_secs(30), ..NOTHING };
        assert_eq!(wanted(&shorter, 2, |_| Some(60)), [Write { setting: Setting::UdpTimeout, value: 30 }]);
    }

    #[test]
    fn every_setting_has_its_field() {
        let second = Duration::from_secs(1);
        let conntrack = Conntrack {
            tcp_be_liberal: true,
            udp_timeout: second,
            udp_stream_timeout: 2 * second,
            tcp_established_timeout: 3 * second,
            tcp_close_wait_timeout: 4 * second,
            ..NOTHING
        };
        let found: Vec<_> = wanted(&conntrack, 1, |_| None).iter().map(|it| (it.setting, it.value)).collect();
        let expected = [
            (Setting::TcpTimeoutEstablished, 3),
            (Setting::TcpTimeoutCloseWait, 4),
            (Setting::TcpBeLiberal, 1),
            (Setting::UdpTimeout, 1),
            (Setting::UdpTimeoutStream, 2),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn cores_are_counted_from_the_kernels_list() {
        for (list, expected) in [("0", Some(1)), ("0-3", Some(4)), ("0-3,5,8-9", Some(7))] {
            assert_eq!(count(list), expected, "{list}");
        }
        for damaged in ["", "x", "3-1", "0-", "0-3,"] {
            assert_eq!(count(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn a_host_is_brought_to_the_configuration() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, value: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        };
        put("sys/devices/system/cpu/online", "0-7\n");
        put(Setting::Max.path(), "65536\n");
        put(Setting::Buckets.path(), "65536\n");
        put(Setting::TcpTimeoutEstablished.path(), "432000\n");
        // A directory in its place: cannot be written, and keeps nothing else from being.
        fs::create_dir_all(root.path().join(Setting::TcpTimeoutCloseWait.path())).unwrap();
        let written = apply_under(root.path(), &Conntrack { tcp_be_liberal: true, ..DEFAULT });
        let settings: Vec<Setting> = written.iter().map(|it| it.setting).collect();
        assert_eq!(settings, [Setting::Max, Setting::TcpTimeoutEstablished, Setting::TcpBeLiberal]);
        assert_eq!(read(root.path(), Setting::Max), Some(262_144));
        assert_eq!(read(root.path(), Setting::Buckets), Some(65536));
        assert_eq!(read(root.path(), Setting::TcpTimeoutEstablished), Some(86400));
    }
}
