//! Files that are accepted, and files that are refused.

use super::*;
use crate::modes::MODES;

fn read(text: &str) -> Result<(File, Vec<String>), Vec<String>> {
    decode(text, MODES)
}

fn text(rest: &str) -> String {
    format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{rest}")
}

#[test]
fn an_empty_file_has_nothing_written() {
    let (file, warnings) = read(&text("")).unwrap();
    let head = File { api_version: Some(API_VERSION.into()), kind: Some(KIND.into()), ..File::default() };
    assert_eq!((file, warnings), (head, vec![]));
}

#[test]
fn null_is_not_written() {
    let (file, warnings) =
        read(&text("conntrack: null\niptables: {masqueradeBit: null}\nmode: null")).unwrap();
    assert_eq!(file.modes, Written::new());
    assert_eq!((file.mode, warnings), (None, vec![]));
}

#[test]
fn unknown_fields_are_one_warning() {
    let (file, warnings) = read(&text("mode: ipvs\nnonsense: 1\nconntrack: {max: 3, min: 5}")).unwrap();
    assert_eq!((file.mode.as_deref(), file.conntrack.min), (Some("ipvs"), Some(5)));
    let expected = "--config: parts of the file are ignored: \
                    unknown field conntrack.max; unknown field nonsense";
    assert_eq!(warnings, [expected]);
}

#[test]
fn a_field_written_twice_is_a_warning() {
    let (file, warnings) = read(&text("mode: ipvs\nmode: nftables")).unwrap();
    assert_eq!(file.mode.as_deref(), Some("nftables"));
    let expected =
        "--config: parts of the file are ignored: duplicate field mode, the last value is used (line 4)";
    assert_eq!(warnings, [expected]);
}

#[test]
fn all_wrong_types_are_reported() {
    let rest = "mode: 7\nconntrack: []\noomScoreAdj: 1.5\nnodePortAddresses: [1]\n\
                featureGates: {A: yes please}\niptables: {masqueradeAll: 'true', masqueradeBit: '3'}\n\
                logging: {vmodule: [{filePattern: a, verbosity: high}]}";
    let expected = [
        "conntrack: is [], must be a mapping",
        "featureGates.A: is \"yes please\", must be true or false",
        "iptables.masqueradeAll: is \"true\", must be true or false",
        "iptables.masqueradeBit: is \"3\", must be a whole number",
        "logging.vmodule[0].verbosity: is \"high\", must be a whole number",
        "mode: is 7, must be text",
        "nodePortAddresses[0]: is 1, must be text",
        "oomScoreAdj: is 1.5, must be a whole number",
    ];
    assert_eq!(read(&text(rest)).unwrap_err(), expected);
}

#[test]
fn numbers_where_the_original_takes_them() {
    let rest =
        "clientConnection: {qps: 5}\nlogging: {flushFrequency: 0, options: {text: {infoBufferSize: 0}}}";
    let (file, warnings) = read(&text(rest)).unwrap();
    assert_eq!((file.client_connection.qps, warnings), (Some(5.0), vec![]));
    assert_eq!(file.logging.flush_frequency.as_deref(), Some("0"));
}

#[test]
fn truth_values_of_the_older_yaml() {
    let masquerade_all = |file: &File| file.modes["iptables.masqueradeAll"].as_bool();
    // As the original reads them: unquoted they are no text.
    let (file, _) = read(&text("enableProfiling: yes\niptables: {masqueradeAll: On}")).unwrap();
    assert_eq!((file.enable_profiling, masquerade_all(&file)), (Some(true), Some(true)));
    let (file, _) = read(&text("enableProfiling: NO\niptables: {masqueradeAll: off}")).unwrap();
    assert_eq!((file.enable_profiling, masquerade_all(&file)), (Some(false), Some(false)));
    assert_eq!(read(&text("mode: yes")).unwrap_err(), ["mode: is true, must be text"]);
}

#[test]
fn only_the_first_document_counts() {
    let (file, warnings) = read(&format!("---\n{}\n---\n{}", text("mode: ipvs"), text("mode: 7"))).unwrap();
    assert_eq!(file.mode.as_deref(), Some("ipvs"));
    assert_eq!(warnings, ["--config: parts of the file are ignored: 2 documents, only the first is used"]);
    assert_eq!(read(&format!("---\n{}\n...\n", text("mode: ipvs"))).unwrap().1, Vec::<String>::new());
}

#[test]
fn another_kind_of_file_is_refused() {
    let error = read("apiVersion: v1\nkind: ConfigMap").unwrap_err();
    assert_eq!(error.len(), 2);
    assert_eq!(read("mode: ipvs").unwrap_err().len(), 2);
    assert!(read("").is_err());
    assert!(read("just text").is_err());
    assert!(read("a: [").unwrap_err()[0].contains("line"));
}

#[test]
fn json_will_do() {
    let json = format!(r#"{{"apiVersion": "{API_VERSION}", "kind": "{KIND}", "mode": "nftables"}}"#);
    assert_eq!(read(&json).unwrap().0.mode.as_deref(), Some("nftables"));
}
