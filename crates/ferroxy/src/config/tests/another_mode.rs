//! A mode that exists only here, with a block of its own in the file and flags of its own. No other code knows it: this is
//! what a new dataplane gets from its table of fields.

use clap::Command;
use ferroxy_dataplane::{Field, Flag, Kind, PeriodFields, Zero};
use ferroxy_iptables::settings::{MASQUERADE_ALL, MASQUERADE_BIT};
use ferroxy_kernelspace::settings::SOURCE_VIP;

use super::*;
use crate::config::reload::{self, Reload};
use crate::modes::Modes;

static LEVEL: Field = Field {
    name: "tested.level",
    kind: Kind::Number { default: 5, least: 1, most: 9 },
    flag: Some(Flag { name: "tested-level", help: "How much of it", value_name: "LEVEL" }),
    is_live: true,
    is_of_the_original: true,
};

static RANGES: Field = Field {
    name: "tested.ranges",
    kind: Kind::Cidrs,
    flag: Some(Flag { name: "tested-ranges", help: "Where it works", value_name: "CIDR,…" }),
    is_live: false,
    is_of_the_original: true,
};

static SYNC_PERIOD: Field = Field {
    name: "tested.syncPeriod",
    kind: Kind::Duration { default: Duration::from_secs(20), default_in_file: None, zero: Zero::Refused },
    flag: Some(Flag { name: "tested-sync-period", help: "How often", value_name: "DURATION" }),
    is_live: true,
    is_of_the_original: true,
};

static MIN_SYNC_PERIOD: Field = Field {
    name: "tested.minSyncPeriod",
    kind: Kind::Duration {
        default: Duration::from_secs(2),
        default_in_file: Some(Duration::from_secs(3)),
        zero: Zero::DefaultInFile,
    },
    flag: None,
    is_live: true,
    is_of_the_original: true,
};

static FIELDS: [Field; 7] =
    [MASQUERADE_ALL, MASQUERADE_BIT, LEVEL, RANGES, SYNC_PERIOD, MIN_SYNC_PERIOD, SOURCE_VIP];

/// The modes of the binary, and one more.
fn modes() -> Modes {
    let like = MODES.find("nftables").unwrap();
    let tested = Box::leak(Box::new(Mode {
        name: "tested",
        help: "a mode of this test",
        fields: &FIELDS,
        periods: PeriodFields { sync: &SYNC_PERIOD, min_sync: &MIN_SYNC_PERIOD },
        gate: Some("NativeHistograms"),
        metrics: &[],
        devices: &["tested0"],
        shape: |settings, policy| {
            policy.masquerade_all = settings.number(&LEVEL) > 5;
            policy.node_port_addresses = vec![NodePortAddress::Localhost];
        },
        ..*like
    }));
    Modes(MODES.iter().chain([&*tested]).collect::<Vec<_>>().leak())
}

fn text(lines: &str) -> String {
    format!("apiVersion: {}\nkind: {}\n{lines}\n", file::API_VERSION, file::KIND)
}

fn from_file(lines: &str) -> Result<(Config, Vec<String>), Vec<String>> {
    Config::from_text(&text(lines), &Flags::default(), modes())
}

fn from_flags(args: &[&str]) -> Result<(Config, Vec<String>), Vec<String>> {
    let flags = Flags::parse(args.iter().map(OsString::from), modes()).unwrap();
    Config::load(&flags, modes())
}

/// The level, the ranges, and the periods.
fn read(config: &Config) -> (i64, Vec<IpNet>, Periods) {
    let mode = config.mode.unwrap();
    let settings = config.settings(mode);
    (settings.number(&LEVEL), settings.cidrs(&RANGES), config.periods(mode))
}

fn cidrs(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_file_with_its_block() {
    let lines = "mode: tested\ntested: {level: 7, ranges: [10.0.0.0/8, 'fd00::/8'], syncPeriod: 1m}";
    let (config, warnings) = from_file(lines).unwrap();
    assert_eq!(config.mode.unwrap().name, "tested");
    let periods = Periods { sync: seconds(60), min_sync: seconds(3) };
    assert_eq!(read(&config), (7, cidrs(&["10.0.0.0/8", "fd00::/8"]), periods));
    assert_eq!(warnings, Vec::<String>::new());
    // If the list does not have the mode, neither the mode nor its block is known.
    let (_, warnings) = super::from_file("tested: {level: 7}").unwrap();
    assert_eq!(warnings, ["--config: parts of the file are ignored: unknown field tested"]);
    let error = format!("mode: \"tested\" is not one of {}", MODES.sentence("and"));
    assert_eq!(super::from_file("mode: tested").unwrap_err(), [error]);
}

#[test]
fn it_can_read_a_field_of_another_mode() {
    let vip = |config: &Config| config.settings(config.mode.unwrap()).text(&SOURCE_VIP);
    let (config, warnings) = from_file("mode: tested\nwinkernel: {sourceVip: 10.0.0.1}").unwrap();
    assert_eq!((vip(&config).as_str(), warnings), ("10.0.0.1", vec![]));
    let (config, warnings) = from_flags(&["--proxy-mode=tested", "--source-vip=10.0.0.2"]).unwrap();
    assert_eq!((vip(&config).as_str(), warnings), ("10.0.0.2", vec![]));
    let (_, warnings) = from_file("mode: tested\nwinkernel: {networkName: net}").unwrap();
    assert_eq!(warnings, ["ignored in this mode: winkernel.networkName"]);
    let (_, warnings) = super::from_file("mode: nftables\nwinkernel: {sourceVip: 10.0.0.1}").unwrap();
    assert_eq!(warnings, ["ignored in this mode: winkernel.sourceVip"]);
}

#[test]
fn its_defaults() {
    let lines = "mode: tested\ntested: {syncPeriod: 0s, minSyncPeriod: 0s, level: null}";
    let (config, _) = from_file(lines).unwrap();
    assert_eq!(read(&config), (5, vec![], Periods { sync: seconds(20), min_sync: seconds(3) }));
    let (config, _) = from_flags(&["--proxy-mode=tested"]).unwrap();
    assert_eq!(read(&config), (5, vec![], Periods { sync: seconds(20), min_sync: seconds(2) }));
}

#[test]
fn what_is_wrong_with_it() {
    for (lines, expected) in [
        ("mode: fast", &*format!("mode: \"fast\" is not one of {} and tested", MODES.names().join(", "))),
        (
            "mode: tested\nfeatureGates: {NativeHistograms: false}",
            "mode: tested is switched off by the feature gate NativeHistograms",
        ),
        ("mode: tested\ntested: {level: 10}", "tested.level: 10 is not between 1 and 9"),
        ("tested: {level: '3'}", "tested.level: is \"3\", must be a whole number"),
        ("tested: {ranges: here}", "tested.ranges: is \"here\", must be a list"),
        (
            "mode: tested\ntested: {ranges: [here]}",
            "tested.ranges[0]: \"here\" is not a CIDR such as 10.0.0.0/8 or fd00::/8",
        ),
        ("mode: tested\ntested: {syncPeriod: 1s}", "tested.minSyncPeriod: 3s is longer than syncPeriod, 1s"),
        (
            "mode: nftables\ntested: {syncPeriod: x}",
            "tested.syncPeriod: \"x\" is not a duration such as 30s or 1h30m",
        ),
        ("mode: tested\niptables: {masqueradeBit: 32}", "iptables.masqueradeBit: 32 is not between 0 and 31"),
    ] {
        assert_eq!(from_file(lines).unwrap_err(), [expected], "{lines}");
    }
    // Another mode does not read them.
    let (_, warnings) = from_file("mode: nftables\ntested: {level: 10, ranges: [here]}").unwrap();
    assert_eq!(warnings, ["ignored in this mode: tested.level tested.ranges"]);
}

#[test]
fn its_flags() {
    let args = ["--proxy-mode=tested", "--tested-level=7", "--tested-ranges=10.0.0.0/8,fd00::/8"];
    let (config, warnings) = from_flags(&args).unwrap();
    assert_eq!((read(&config).0, read(&config).1), (7, cidrs(&["10.0.0.0/8", "fd00::/8"])));
    assert_eq!(warnings, Vec::<String>::new());
    for (args, expected) in [
        (&["--proxy-mode=tested", "--tested-level=0"][..], "--tested-level: 0 is not between 1 and 9"),
        (
            &["--proxy-mode=tested", "--tested-sync-period=0"],
            "--tested-sync-period: must be longer than zero",
        ),
    ] {
        assert_eq!(from_flags(args).unwrap_err(), [expected]);
    }
    let (_, warnings) = from_flags(&["--proxy-mode=nftables", "--tested-level=2"]).unwrap();
    assert_eq!(warnings, ["ignored in this mode: --tested-level"]);
    let wrong = Flags::parse(["--tested-level=x"].map(OsString::from), modes()).unwrap_err();
    assert!(wrong.to_string().contains("invalid value 'x' for '--tested-level <LEVEL>'"), "{wrong}");
    assert!(Flags::parse(["--tested-level=3"].map(OsString::from), MODES).is_err());
    let list = ["--tested-ranges=10.0.0.0/8,", "--tested_ranges", "fd00::/8"];
    let flags = Flags::parse(list.map(OsString::from), modes()).unwrap();
    let all: BTreeMap<String, String> = flags.all(modes()).into_iter().collect();
    assert_eq!((all["tested-level"].as_str(), all["tested-ranges"].as_str()), ("5", "10.0.0.0/8,fd00::/8"));
}

#[test]
fn its_help() {
    let help = Flags::add_to(Command::new("test"), modes()).term_width(200).render_help().to_string();
    let line = |flag: &str| help.lines().find(|line| line.contains(flag)).unwrap_or(&help).trim().to_owned();
    let has = |flag: &str, words: &str| assert!(line(flag).ends_with(words), "{}", line(flag));
    has("--tested-level <LEVEL>", "How much of it (tested)");
    has("--iptables-masquerade-bit <BIT>", ", tested)");
    has("--proxy-mode <MODE>", &format!("{} or tested", MODES.names().join(", ")));
}

#[test]
fn it_is_written_back() {
    let lines = "mode: tested\ntested: {level: 7, ranges: [10.0.0.0/8], syncPeriod: 1m}\n\
                 iptables: {masqueradeAll: true}";
    let (config, _) = from_file(lines).unwrap();
    let yaml = config.to_yaml().unwrap();
    let (again, _) = Config::from_text(&yaml, &Flags::default(), modes()).unwrap();
    assert_eq!(again.settings(again.mode.unwrap()), config.settings(config.mode.unwrap()), "{yaml}");
    let json = config.to_json();
    assert_eq!(json["tested"]["ranges"], serde_json::json!(["10.0.0.0/8"]));
    assert_eq!(json["tested"]["syncPeriod"], "1m0s");
    assert_eq!(json["iptables"]["syncPeriod"], "0s");
    assert_eq!(json["iptables"]["masqueradeAll"], true);
    let (other, _) = from_file("mode: nftables\ntested: {level: 7, syncPeriod: 1m}").unwrap();
    let block = serde_json::json!({"level": 7, "minSyncPeriod": "0s", "ranges": null, "syncPeriod": "0s"});
    assert_eq!(other.to_json()["tested"], block);
}

#[test]
fn its_changes_apply_or_wait() {
    let to = text("mode: tested\ntested: {level: 6, ranges: [10.0.0.0/8]}");
    let changed = |current: &Config| match reload::judge(&to, &Flags::default(), current) {
        Some(Reload::Changed { new, live, needs_restart, .. }) => (*new, live, needs_restart),
        other => panic!("{other:?}"),
    };
    let (current, _) = from_file("mode: tested").unwrap();
    let (new, live, needs_restart) = changed(&current);
    assert_eq!((live, needs_restart), (vec!["tested.level".to_owned()], vec!["tested.ranges".to_owned()]));
    assert_eq!((read(&new).0, read(&new).1), (6, vec![]));
    // A mode that needs a restart: its settings wait for the restart, too.
    let (current, _) = from_file("mode: nftables").unwrap();
    let (new, live, needs_restart) = changed(&current);
    assert_eq!((live, needs_restart), (vec![], vec!["mode".to_owned()]));
    assert_eq!(new, current);
}

#[test]
fn it_shapes_the_policy_and_its_ranges_are_checked() {
    let (config, warnings) = from_file("mode: tested\ntested: {level: 6, ranges: ['fd00::/8']}").unwrap();
    let policy = config.policy(config.mode.unwrap(), "ka".into());
    assert_eq!((policy.masquerade_all, policy.node_port_addresses), (true, vec![NodePortAddress::Localhost]));
    assert_eq!(warnings, Vec::<String>::new());
    let expected = "tested.ranges: fd00::/8 is of the other IP family, and this host has only IPv4";
    assert_eq!(config.check_families(&[Family::V4]).unwrap(), [expected]);
    assert_eq!(modes().devices(), ["kube-ipvs0", "tested0"]);
}
