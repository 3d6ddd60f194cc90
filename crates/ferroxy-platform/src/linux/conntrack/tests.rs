//! Which settings are written, and where, under a root directory made for the test.

use super::*;

const NOTHING: Settings = Settings {
    max_per_core: 0,
    min: 0,
    tcp_established_timeout: Duration::ZERO,
    tcp_close_wait_timeout: Duration::ZERO,
    tcp_be_liberal: false,
    udp_timeout: Duration::ZERO,
    udp_stream_timeout: Duration::ZERO,
};

const DEFAULT: Settings = Settings {
    max_per_core: 32768,
    min: 131_072,
    tcp_established_timeout: Duration::from_secs(86400),
    tcp_close_wait_timeout: Duration::from_secs(3600),
    ..NOTHING
};

#[test]
fn the_number_of_connections_grows_with_the_cores() {
    // (per core, min, cores) and the result.
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
        let settings = Settings { max_per_core, min, ..NOTHING };
        assert_eq!(max_connections(&settings, cpus), expected, "{max_per_core} {min} {cpus}");
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
fn a_value_that_an_operator_made_larger_stays() {
    assert_eq!(wanted(&Settings { max_per_core: 1000, ..NOTHING }, 2, |_| Some(1 << 22)), []);
    let smaller = wanted(&Settings { max_per_core: 1000, ..NOTHING }, 2, |_| Some(10));
    assert_eq!(smaller.iter().map(|it| it.value).collect::<Vec<_>>(), [2000, 500]);
    // Timeouts are set in either direction: neither is better.
    let shorter = Settings { udp_timeout: Duration::from_secs(30), ..NOTHING };
    assert_eq!(wanted(&shorter, 2, |_| Some(60)), [Write { setting: Setting::UdpTimeout, value: 30 }]);
}

#[test]
fn every_setting_has_its_field() {
    let second = Duration::from_secs(1);
    let settings = Settings {
        tcp_be_liberal: true,
        udp_timeout: second,
        udp_stream_timeout: 2 * second,
        tcp_established_timeout: 3 * second,
        tcp_close_wait_timeout: 4 * second,
        ..NOTHING
    };
    let found: Vec<_> = wanted(&settings, 1, |_| None).iter().map(|it| (it.setting, it.value)).collect();
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

/// A root directory with 8 CPUs and these files.
fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, value) in [("sys/devices/system/cpu/online", "0-7")].iter().chain(files) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{value}\n")).unwrap();
    }
    root
}

/// Puts a directory in place of a file, which then can be neither read nor written, not even by root.
fn make_unusable(root: &tempfile::TempDir, path: &str) {
    fs::create_dir_all(root.path().join(path)).unwrap();
}

const SYSCTL: &str = "proc/sys/net/netfilter/nf_conntrack_buckets";
const PARAMETER: &str = "sys/module/nf_conntrack/parameters/hashsize";

#[test]
fn a_host_is_brought_to_the_configuration() {
    let path = |setting: Setting| setting.paths()[0];
    let root = host(&[
        (path(Setting::Max), "65536"),
        (SYSCTL, "65536"),
        (path(Setting::TcpTimeoutEstablished), "432000"),
    ]);
    make_unusable(&root, path(Setting::TcpTimeoutCloseWait));
    let report = apply_under(root.path(), &Settings { tcp_be_liberal: true, ..DEFAULT });
    let written: Vec<String> = report.written.iter().map(ToString::to_string).collect();
    let expected = [
        "set /proc/sys/net/netfilter/nf_conntrack_max to 262144",
        "set /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established to 86400",
        "set /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal to 1",
    ];
    assert_eq!(written, expected);
    assert_eq!(read(root.path(), Setting::Max), Some(262_144));
    assert_eq!(read(root.path(), Setting::Buckets), Some(65536));
    assert_eq!(read(root.path(), Setting::TcpTimeoutEstablished), Some(86400));
    let [failed] = &report.failed[..] else { panic!("{report:?}") };
    let words =
        "cannot set /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait to 3600: Is a directory";
    assert!(failed.to_string().starts_with(words), "{failed}");
}

/// Only root can read the module's parameter, so an agent that is not root must not depend on it.
#[test]
fn enough_buckets_are_no_failure_when_the_modules_parameter_cannot_be_read() {
    let root = host(&[(SYSCTL, "65536")]);
    make_unusable(&root, PARAMETER);
    let report = apply_under(root.path(), &Settings { max_per_core: 32768, ..NOTHING });
    assert!(report.failed.iter().all(|it| !it.name.contains("hashsize")), "{report:?}");
    assert_eq!(read(root.path(), Setting::Buckets), Some(65536));
}

#[test]
fn buckets_are_written_where_they_can_be() {
    let max = Settings { max_per_core: 32768, ..NOTHING };
    let root = host(&[(SYSCTL, "1024"), (PARAMETER, "1024")]);
    apply_under(root.path(), &max);
    assert_eq!(fs::read_to_string(root.path().join(SYSCTL)).unwrap(), "65536");
    assert_eq!(fs::read_to_string(root.path().join(PARAMETER)).unwrap(), "1024\n");

    let root = host(&[(PARAMETER, "1024")]);
    make_unusable(&root, SYSCTL);
    let report = apply_under(root.path(), &max);
    assert_eq!(fs::read_to_string(root.path().join(PARAMETER)).unwrap(), "65536");
    assert!(report.written.iter().any(|it| it.name == format!("/{PARAMETER}")), "{report:?}");

    let root = host(&[]);
    make_unusable(&root, SYSCTL);
    make_unusable(&root, PARAMETER);
    let report = apply_under(root.path(), &max);
    assert_eq!(report.failed.last().unwrap().name, format!("/{SYSCTL}"));
}
