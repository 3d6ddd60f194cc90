//! Ring 1: both variants without their tools, compared with the tools: the bytes in the kernel are the same, and the tool treats
//! our rules as its own. Needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

#[path = "support/bytes.rs"]
mod bytes;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "support/host.rs"]
mod host;

use std::process::Command;

use bytes::{assert_writers_agree, has_our_form, legacy_tables, nft_chains};
use ferroxy_core::testing::service;
use ferroxy_core::{Family, Intent, NodeIntent};
use ferroxy_dataplane::{Dataplane, Verifies};
use ferroxy_iptables::program::{Parameters, owns};
use ferroxy_iptables::tool::{Limits, Variant};
use ferroxy_iptables::xt::Sets;
use ferroxy_iptables::{TableName, render};
use ferroxy_lab::capability::skip;
use ferroxy_lab::conformance::{Mode, Trial};
use ferroxy_lab::{Capability, Namespace, require};
use ferroxy_netlink::nftables::{self, Connection};
use host::{Host, Writer};

const TOOL: Writer = Writer::Tool(Variant::NfTables);
const BUILTIN: Writer = Writer::Builtin(Variant::NfTables);

fn with_host(test: impl Fn(&mut Host) + Sync) {
    if require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        Namespace::new("builtin").unwrap().run(|| test(&mut Host::new(BUILTIN))).unwrap();
    }
}

fn cluster(services: std::ops::Range<u16>) -> Intent {
    Intent { node: NodeIntent::default(), services: services.map(|number| service(number, 0..3)).collect() }
}

#[test]
fn what_is_written_is_byte_for_byte_what_the_tool_writes() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    if !has_our_form(Variant::NfTables) {
        return skip("no iptables 1.8.9: this version writes the same rules in another form");
    }
    for trial in Trial::all(Mode::Iptables).unwrap() {
        let written_by = |writer: Writer| {
            let start = || {
                writer.dataplane(Limits::default()).start(&trial.intent).unwrap();
                nft_chains()
            };
            Namespace::new("bytes").unwrap().run(start).unwrap()
        };
        let (ours, theirs) = (written_by(BUILTIN), written_by(TOOL));
        for (chain, rules) in &theirs {
            assert_eq!(ours.get(chain), Some(rules), "{}: {chain}", trial.case.name);
        }
        assert_eq!(ours.len(), theirs.len(), "{}", trial.case.name);
    }
}

/// With any version of the tool, each writer reads and removes what the other wrote.
#[test]
fn writers_agree_on_every_ruleset() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for trial in Trial::all(Mode::Iptables).unwrap() {
        let rules = render(&trial.intent, Parameters::default(), &Family::ALL);
        assert_writers_agree(&trial.case.name, &rules, owns, Sets::default);
    }
}

/// Base chains are made as the tool makes them, too: with type, hook, priority and policy.
#[test]
fn base_chains_are_those_of_the_tool() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    let listed = |writer: Writer| {
        let start = || {
            writer.dataplane(Limits::default()).start(&cluster(0..1)).unwrap();
            let output = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let mut lines: Vec<String> =
                text.lines().filter(|line| line.contains(" hook ")).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        Namespace::new("base").unwrap().run(start).unwrap()
    };
    let ours = listed(BUILTIN);
    assert_eq!(ours, listed(TOOL));
    assert_eq!(ours.len(), 12, "{ours:?}");
}

#[test]
fn the_tool_finds_and_deletes_each_of_our_rules() {
    with_host(|host| {
        host.start(&cluster(0..3));
        let wanted = host.dataplane.ledger().state();
        for ((family, table), contents) in &wanted.tables {
            let mut input = format!("*{table}\n");
            for (chain, rules) in contents.jumps.iter().chain(&contents.chains) {
                rules.iter().for_each(|rule| input += &format!("-D {chain} {rule}\n"));
            }
            let tools = &host.tools[*family as usize];
            ferroxy_iptables::tool::restore(tools, &(input + "COMMIT\n"), &Limits::default()).unwrap();
        }
        let left: usize =
            host.state().tables.values().flat_map(|it| it.chains.values()).map(|it| it.len()).sum();
        assert_eq!(left, 0);
        let listed = Command::new("iptables-nft").args(["-t", "nat", "-L", "-n"]).output().unwrap();
        assert!(listed.status.success() && listed.stderr.is_empty(), "{listed:?}");
        host.dataplane.verify().unwrap();
        assert_eq!(host.state().to_string(), host.wanted());
    });
}

#[test]
fn the_two_writers_take_over_from_each_other_without_writing_anything() {
    with_host(|host| {
        let intent = cluster(0..20);
        host.start(&intent);
        for writer in [TOOL, BUILTIN, TOOL, BUILTIN] {
            let generation = host.generation();
            host.dataplane = writer.dataplane(Limits::default());
            assert_eq!(host.start(&intent).receipt.commits, 0, "{writer:?}");
            assert_eq!(host.generation(), generation, "{writer:?}");
        }
        // And each continues from the rules that the other wrote.
        for (writer, number) in [(TOOL, 30), (BUILTIN, 31), (TOOL, 32)] {
            host.dataplane = writer.dataplane(Limits::default());
            host.start(&intent);
            let (name, new) = service(number, 0..2);
            assert_eq!(host.change(vec![(name, Some(new))]).refused, []);
            assert_eq!(host.state().to_string(), host.wanted(), "{writer:?}");
        }
    });
}

/// Handles of the rules of a chain, in order.
fn handles(table: TableName, chain: &str) -> Vec<u64> {
    let mut handles = Vec::new();
    let mut each = |rule: &nftables::CompatRule<'_>| {
        handles.push(rule.handle);
        Ok(())
    };
    let mut connection = Connection::open().unwrap();
    connection.compat_rules(nftables::Family::Ip, table.as_str(), chain, &mut each).unwrap();
    handles
}

#[test]
fn a_change_leaves_all_other_rules_of_a_shared_chain_as_they_are() {
    with_host(|host| {
        host.start(&cluster(0..40));
        for round in 0..3_u16 {
            // Another program puts a rule into the middle; it is not ours, and stays until everything is compared.
            host.edit("*nat\n-I KUBE-SERVICES 9 -j MINE\nCOMMIT\n");
            let before = handles(TableName::Nat, "KUBE-SERVICES");
            let (name, new) = service(200 + round, 0..2);
            let (gone, _) = service(7 + round, 0..3);
            let outcome = host.change(vec![(name, Some(new)), (gone, None)]);
            assert_eq!((outcome.receipt.commits, outcome.refused.len()), (1, 0));
            let after = handles(TableName::Nat, "KUBE-SERVICES");
            let kept = after.iter().filter(|handle| before.contains(handle)).count();
            assert_eq!((kept, after.len()), (before.len() - 1, before.len()), "round {round}");
            host.dataplane.verify().unwrap();
            assert_eq!(host.state().to_string(), host.wanted());
        }
    });
}

#[test]
fn rules_that_only_the_tool_knows_stay_in_built_in_chains_and_leave_ours() {
    with_host(|host| {
        let foreign = "*nat\n:MINE - [0:0]\n-A PREROUTING -m limit --limit 5/sec -m comment --comment mine -j MINE\nCOMMIT\n";
        host.edit(foreign);
        host.start(&cluster(0..2));
        let limited = "-A PREROUTING -m limit --limit 5/sec -m comment --comment mine -j MINE";
        assert!(host.save()[0].contains(limited));
        // In our own chain, and as a jump to it, such a rule is drift.
        host.edit("*nat\n-I KUBE-SERVICES -m limit --limit 5/sec -j ACCEPT\n-I PREROUTING -m limit --limit 7/sec -j KUBE-SERVICES\nCOMMIT\n");
        let repair = host.dataplane.verify().unwrap();
        assert!(repair.operations > 0 && repair.unrepaired.is_none(), "{repair:?}");
        assert_eq!(host.state().to_string(), host.wanted());
        assert!(host.save()[0].contains(limited));
        assert!(!host.save()[0].contains("7/sec"));
    });
}

#[test]
fn what_foreign_rules_have_counted_is_kept() {
    with_host(|host| {
        let counted = "[7:588] -A MINE -m comment --comment counted -j RETURN";
        let input = format!("*nat\n:MINE - [0:0]\n{counted}\n-A PREROUTING -j MINE\nCOMMIT\n");
        host.edit(&input);
        host.start(&cluster(0..5));
        let (name, more) = service(2, 0..5);
        host.change(vec![(name, Some(more))]);
        host.dataplane.cleanup().unwrap();
        let saved = Command::new("iptables-nft-save").args(["-c", "-t", "nat"]).output().unwrap();
        let saved = String::from_utf8(saved.stdout).unwrap();
        assert!(saved.lines().any(|line| line == counted), "{saved}");
        assert!(!saved.contains("KUBE-"), "{saved}");
    });
}

/// Without tools, the variant is the one in which the kubelet or others have written.
#[test]
fn the_variant_is_found_in_the_kernel() {
    use ferroxy_dataplane::{Settings, Value};
    use ferroxy_iptables::door::Door;
    use ferroxy_iptables::settings::PROGRAM;
    use ferroxy_iptables::tool::restore;
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    let mut settings = Settings::default();
    settings.set(&PROGRAM, Value::Text("builtin".into()));
    let hint = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
    let mine = "*filter\n:MINE - [0:0]\nCOMMIT\n";
    let found = |legacy: Option<&str>, nft: Option<&str>| {
        let look = || {
            for (variant, input) in [(Variant::Legacy, legacy), (Variant::NfTables, nft)] {
                let tools = host::tools_of(Family::V4, variant);
                input.map(|input| restore(&tools, input, &Limits::default()).unwrap());
            }
            Door::open(Family::V4, &settings).map(|door| door.variant).map_err(|error| error.to_string())
        };
        Namespace::new("variant").unwrap().run(look).unwrap()
    };
    assert_eq!(found(None, None), Ok(Variant::NfTables));
    assert_eq!(found(Some(mine), Some(mine)), Ok(Variant::NfTables));
    assert_eq!(found(Some(hint), Some(hint)), Ok(Variant::NfTables));
    assert_eq!(found(Some(hint), Some(mine)), Ok(Variant::Legacy));
    assert_eq!(found(Some(mine), None), Ok(Variant::Legacy));
}

#[test]
fn legacy_tables_are_byte_for_byte_what_the_tool_writes() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for trial in Trial::all(Mode::Iptables).unwrap() {
        let written_by = |writer: Writer| {
            let start = || {
                // With rules of others, and a change.
                let mut host = Host::new(writer);
                host.start(&trial.intent);
                host.change(
                    vec![service(7, 0..3), service(9, 0..1)]
                        .into_iter()
                        .map(|(name, it)| (name, Some(it)))
                        .collect(),
                );
                legacy_tables()
            };
            Namespace::new("bytes").unwrap().run(start).unwrap()
        };
        let ours = written_by(Writer::Builtin(Variant::Legacy));
        assert_eq!(ours, written_by(Writer::Tool(Variant::Legacy)), "{}", trial.case.name);
        assert_eq!(ours.len(), 6);
    }
}

#[test]
fn what_legacy_rules_have_counted_is_kept() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    let test = || {
        let mut host = Host::new(Writer::Builtin(Variant::Legacy));
        let counted = "[7:588] -A MINE -m limit --limit 5/sec -m comment --comment counted -j RETURN";
        host.edit(&format!("*nat\n:MINE - [0:0]\n{counted}\n-A PREROUTING -j MINE\nCOMMIT\n"));
        host.start(&cluster(0..5));
        let (name, more) = service(2, 0..5);
        host.change(vec![(name, Some(more))]);
        host.dataplane.cleanup().unwrap();
        let saved = Command::new("iptables-legacy-save").args(["-c", "-t", "nat"]).output().unwrap();
        let saved = String::from_utf8(saved.stdout).unwrap();
        assert!(saved.lines().any(|line| line == counted), "{saved}");
        assert!(!saved.contains("KUBE-"), "{saved}");
    };
    Namespace::new("counted").unwrap().run(test).unwrap();
}
