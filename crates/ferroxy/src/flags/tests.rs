//! How flags are spelled, and what is refused.

use super::*;
use crate::modes::MODES;

fn parse(args: &[&str]) -> Flags {
    Flags::parse(args.iter().map(OsString::from), MODES).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

fn refused(args: &[&str]) -> String {
    one_line(&Flags::parse(args.iter().map(OsString::from), MODES).unwrap_err())
}

#[test]
fn nothing_given_is_nothing_set() {
    assert_eq!(parse(&[]), Flags::default());
    assert_eq!(parse(&[]).given(), []);
}

#[test]
fn truth_values() {
    for (arg, value) in [
        ("--cleanup", true),
        ("--cleanup=true", true),
        ("--cleanup=1", true),
        ("--cleanup=T", true),
        ("--cleanup=false", false),
        ("--cleanup=F", false),
    ] {
        assert_eq!(parse(&[arg]).cleanup, Some(value), "{arg}");
    }
    assert!(refused(&["--cleanup=maybe"]).contains("must be true or false"));
    // The value of a truth flag comes after `=` or not at all, so this is a stray argument.
    assert!(refused(&["--cleanup", "false"]).contains("'false'"));
}

#[test]
fn values_after_a_space_or_an_equals_sign() {
    assert_eq!(parse(&["--cluster-cidr", "10.0.0.0/8"]).cluster_cidr.as_deref(), Some("10.0.0.0/8"));
    assert_eq!(parse(&["--cluster-cidr=10.0.0.0/8"]).cluster_cidr.as_deref(), Some("10.0.0.0/8"));
    assert_eq!(parse(&["--oom-score-adj", "-5"]).oom_score_adj, Some(-5));
    assert_eq!(parse(&["--healthz-bind-address="]).healthz_bind_address.as_deref(), Some(""));
    for args in [&["-v", "4"][..], &["-v=4"], &["-v4"], &["--v=4"], &["--v", "4"]] {
        assert_eq!(parse(args).v, Some(4), "{args:?}");
    }
}

#[test]
fn underscores_in_names_but_not_in_values() {
    let flags = parse(&["--hostname_override=a_b", "--cluster_cidr", "x_y", "--init_only"]);
    assert_eq!(flags.hostname_override.as_deref(), Some("a_b"));
    assert_eq!(flags.cluster_cidr.as_deref(), Some("x_y"));
    assert_eq!(flags.init_only, Some(true));
}

#[test]
fn the_last_of_several_counts_and_lists_grow() {
    let flags = parse(&["--proxy-mode=ipvs", "--proxy-mode=nftables", "--cleanup", "--cleanup=false"]);
    assert_eq!(flags.proxy_mode.as_deref(), Some("nftables"));
    assert_eq!(flags.cleanup, Some(false));
    let flags = parse(&["--nodeport-addresses=primary,10.0.0.0/8", "--nodeport-addresses", "localhost"]);
    assert_eq!(flags.nodeport_addresses.unwrap(), ["primary", "10.0.0.0/8", "localhost"]);
}

#[test]
fn maps() {
    let flags = parse(&["--feature-gates=A=true,B=false", "--feature-gates", "C=1"]);
    let expected = [("A".to_owned(), true), ("B".to_owned(), false), ("C".to_owned(), true)];
    assert_eq!(flags.feature_gates.unwrap(), expected);
    assert!(refused(&["--feature-gates=A"]).contains("NAME=true"));
    assert_eq!(parse(&["--vmodule=a=1,b=2"]).vmodule.unwrap(), ["a=1", "b=2"]);
}

#[test]
fn what_is_wrong_takes_one_line() {
    for (args, part) in [
        (&["--no-such-flag"][..], "--no-such-flag"),
        (&["stray"], "stray"),
        (&["--conntrack-min=many"], "--conntrack-min"),
        (&["--config-sync-period=soon"], "--config-sync-period"),
        (&["--config"], "--config"),
    ] {
        let line = refused(args);
        assert!(line.contains(part) && !line.contains('\n') && !line.starts_with("error"), "{line}");
    }
}

#[test]
fn an_error_names_what_is_missing_and_what_is_possible() {
    let service = Arg::new("service").value_name("NAMESPACE/SERVICE").required(true);
    let output = Arg::new("output").long("output").value_parser(["text", "json"]);
    let command = Command::new("ferroxy").subcommand(Command::new("explain").arg(service).arg(output));
    let refused = |args: &[&str]| {
        let args = std::iter::once("ferroxy").chain(args.iter().copied());
        one_line(&command.clone().try_get_matches_from(args).unwrap_err())
    };
    let missing = "the following required arguments were not provided: <NAMESPACE/SERVICE>";
    assert_eq!(refused(&["explain"]), missing);
    let impossible = refused(&["explain", "web", "--output=yaml"]);
    assert_eq!(impossible, "invalid value 'yaml' for '--output <output>' [possible values: text, json]");
    assert!(refused(&["explian"]).starts_with("unrecognized subcommand 'explian'"));
}

#[test]
fn names_of_given_flags_are_the_names_on_the_command_line() {
    let command = Flags::augment_args(Command::new("test"));
    let mut on_command_line: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
    let serde_json::Value::Object(all) = serde_json::to_value(Flags::default()).unwrap() else { panic!() };
    let of_modes = MODES.flags();
    let of_modes = of_modes.iter().map(|it| it.flag.name);
    let mut listed: Vec<_> = all.keys().map(String::as_str).chain(of_modes).collect();
    on_command_line.sort_unstable();
    listed.sort_unstable();
    assert_eq!(on_command_line, listed);
}

#[test]
fn headings_of_the_help_are_in_the_order_in_which_flags_are_declared() {
    // The modes' flags are added twice: by clap, and for the list of modes in use.
    let help = Flags::add_to(Command::new("test"), MODES).render_help().to_string();
    let is_heading = |line: &&str| line.ends_with(':') && !line.starts_with(' ');
    let headings: Vec<&str> = help.lines().filter(is_heading).collect();
    let expected = [
        "Options:",
        "Configuration:",
        "One-shot actions:",
        "API server:",
        "Addresses and node HTTP services:",
        "Dataplane:",
        "Cluster network:",
        "Node settings:",
        "Logging:",
        "Ferroxy only:",
        "Modes:",
    ];
    assert_eq!(headings, expected);
    let dataplane = &help[help.find("Dataplane:").unwrap()..];
    assert!(dataplane.lines().nth(1).unwrap().trim_start().starts_with("--proxy-mode <MODE>"), "{help}");
}

#[test]
fn windows_flags_are_taken() {
    let flags = parse(&["--windows-service", "--source-vip=10.0.0.1", "--enable-dsr=true"]);
    assert_eq!(flags.given().len(), 3);
}

#[test]
fn a_version_can_be_asked_for() {
    assert_eq!(parse(&["--version"]).version.as_deref(), Some("true"));
    assert_eq!(parse(&["--version=raw"]).version.as_deref(), Some("raw"));
    assert_eq!(parse(&["--version=0"]).version.as_deref(), Some("false"));
    assert_eq!(parse(&["--version=v1.37.0-ours"]).version.as_deref(), Some("v1.37.0-ours"));
    assert!(refused(&["--version=new"]).contains("must be true, false or raw"));
}

#[test]
fn flags_of_our_own() {
    let flags = parse(&["--traffic_metrics", "--traffic-metrics-max-series=7"]);
    assert_eq!((flags.traffic_metrics, flags.traffic_metrics_max_series), (Some(true), Some(7)));
    assert!(refused(&["--traffic-metrics-max-series=0"]).contains("--traffic-metrics-max-series"));
    assert_eq!(parse(&["--service-max-entries=7"]).service_max_entries, Some(7));
    assert!(refused(&["--service-max-endpoints=65536"]).contains("--service-max-endpoints"));
}

#[test]
fn every_flag_has_a_value() {
    let flags = parse(&[
        "--proxy-mode=ipvs",
        "--feature-gates=A=true,B=false",
        "--nodeport-addresses=primary,10.0.0.0/8",
        "-v2",
    ]);
    let all: BTreeMap<String, String> = flags.all(MODES).into_iter().collect();
    for (name, value) in [
        ("proxy-mode", "ipvs"),
        ("feature-gates", "A=true,B=false"),
        ("nodeport-addresses", "primary,10.0.0.0/8"),
        ("v", "2"),
        ("bind-address", "0.0.0.0"),
        ("cleanup", "false"),
        ("config", ""),
        ("config-sync-period", "15m0s"),
        ("conntrack-max-per-core", "32768"),
        ("healthz-bind-address", "0.0.0.0:10256"),
        ("healthz-port", "10256"),
        ("ipvs-min-sync-period", "1s"),
        ("iptables-localhost-nodeports", "true"),
        ("log-text-info-buffer-size", "0"),
        ("masquerade-all", "false"),
        ("metrics-port", "10249"),
        ("namespace-max-frontends", "200000"),
        ("node-max-frontends", "1000000"),
        ("service-max-endpoints", "20000"),
        ("service-max-entries", "250000"),
        ("service-max-frontends", "10000"),
        ("traffic-metrics-max-series", "20000"),
        ("version", "false"),
    ] {
        assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
    }
    let common = serde_json::to_value(Flags::default()).unwrap().as_object().unwrap().len();
    assert_eq!(all.len(), common + MODES.flags().len());
}
