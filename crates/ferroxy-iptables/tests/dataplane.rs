//! Ring 2: the running dataplane in both variants, with the host's real tools and without them, each test in namespaces of its
//! own. Needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

#[path = "support/host.rs"]
mod host;
mod support;

use std::fs::OpenOptions;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ferroxy_core::testing::{clusters, service};
use ferroxy_core::{Facts, Family, Intent, NodeIntent, ServiceIntent, resolve};
use ferroxy_dataplane::capability::RuleCount;
use ferroxy_dataplane::{
    Change, Changed, Counted, CountsRules, Dataplane, Persists, Programmed, Settings, Value, Verifies,
};
use ferroxy_iptables::settings::MASQUERADE_BIT;
use ferroxy_iptables::tool::{Limits, Tools, Variant};
use ferroxy_iptables::{Iptables, TableName, render};
use ferroxy_lab::PATIENCE;
use host::{FOREIGN, Host, Writer, with_hosts};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rustix::fs::{FlockOperation, flock};
use support::{changes, turned_into};

/// The saved lines, without counters and without the tool's own comments.
fn rules(saved: &[String]) -> Vec<String> {
    let lines = saved.iter().flat_map(|saved| saved.lines()).filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.strip_prefix(':').and_then(|it| it.split(' ').next()).unwrap_or(line).to_owned())
        .collect()
}

fn cluster(services: std::ops::Range<u16>) -> Intent {
    let mut node = NodeIntent::default();
    node.v4.node_ports_on_loopback = true;
    Intent { node, services: services.map(|number| service(number, 0..3)).collect() }
}

/// A Service that every tool refuses: an address of the other family.
fn impossible(number: u16) -> Change {
    let (name, service) = service(number, 0..1);
    let mut service = ServiceIntent::clone(&service);
    service.ports[0].cluster[0].ip = "fd00::1".parse().unwrap();
    (name, Some(Arc::new(service)))
}

#[test]
fn a_start_writes_what_is_missing_and_a_restart_nothing() {
    with_hosts(|host| {
        assert!(host.dataplane.is_cold().unwrap());
        let intent = cluster(0..20);
        assert_eq!(
            host.dataplane.programmed(&intent, intent.services.values().next().unwrap()).unwrap(),
            Programmed::Nothing
        );
        assert!(host.start(&intent).operations > 20);
        assert_eq!(host.state().to_string(), host.wanted());
        for service in intent.services.values() {
            let Programmed::Parts { right, wanted } = host.dataplane.programmed(&intent, service).unwrap()
            else {
                panic!("nothing is there")
            };
            assert_eq!((right, wanted), (5, 5), "a chain, three for endpoints, a rule");
        }
        let before = host.generation();
        host.restart();
        assert!(!host.dataplane.is_cold().unwrap());
        let outcome = host.start(&intent);
        assert_eq!((outcome.operations, outcome.receipt.commits, outcome.receipt.bytes), (0, 0, 0));
        assert_eq!(host.dataplane.preview(&intent).unwrap().text, "");
        assert_eq!(host.dataplane.verify().unwrap().operations, 0);
        assert_eq!(host.generation(), before, "nothing was written");
        // Fewer Services, and another one: only the difference is written.
        host.restart();
        let outcome = host.start(&cluster(1..21));
        assert!(outcome.receipt.messages < 60, "{outcome:?}");
        assert_eq!(host.state().to_string(), host.wanted());
    });
}

#[test]
fn random_clusters_end_where_a_fresh_start_ends() {
    let mut runner = TestRunner::deterministic();
    let some: Vec<_> = (0..4).map(|_| clusters().new_tree(&mut runner).unwrap().current()).collect();
    for cluster in some {
        with_hosts(|host| {
            let mut facts = Facts::new(cluster.policy.clone());
            let mut intent = resolve::all(&facts).0;
            host.start(&intent);
            for events in cluster.events.chunks(5) {
                let (before, seen) = (intent.clone(), host.state());
                for event in events {
                    let touched = facts.apply(event.clone());
                    resolve::update(&facts, &touched, &mut intent);
                }
                host.dataplane.change_node(intent.node.clone()).unwrap();
                assert_eq!(host.change(changes(&before, &intent)).refused, []);
                let parameters = host.dataplane.ledger().parameters();
                let fresh = render(&intent, parameters, &Family::ALL);
                assert_eq!(host.state().to_string(), turned_into(&seen, &fresh).to_string());
                for count in host.dataplane.rule_counts() {
                    let RuleCount { family, group, total, .. } = count;
                    let table = fresh.table(family, TableName::parse(group).unwrap());
                    let rules: usize =
                        table.map_or(0, |table| table.chains.values().map(|rules| rules.len()).sum());
                    assert_eq!(total, rules as u64, "{count:?}");
                }
            }
            host.restart();
            assert_eq!(host.start(&intent).operations, 0);
        });
    }
}

#[test]
fn one_endpoint_costs_its_own_service_only() {
    with_hosts(|host| {
        host.start(&cluster(0..400));
        let untouched = host.state();
        let (name, fewer) = service(200, 0..2);
        let outcome = host.change(vec![(name, Some(fewer))]);
        // The chain that chooses, and the chain of the endpoint that left.
        assert_eq!((outcome.operations, outcome.receipt.commits), (2, 1));
        // A legacy table is handed over as a whole.
        let most = if host.writer == Writer::Builtin(Variant::Legacy) { usize::MAX } else { 1000 };
        assert!(outcome.receipt.messages <= 8 && outcome.receipt.bytes < most, "{outcome:?}");
        assert_eq!(host.state().to_string(), host.wanted());
        let (before, after) = (untouched.to_string(), host.state().to_string());
        let gone = before.lines().filter(|line| !after.lines().any(|other| other == *line)).count();
        assert!(gone <= 6, "{gone} lines changed");
        // A new Service edits the chain that all Services share, and does not rewrite it.
        let (name, come) = service(900, 0..1);
        assert!(host.change(vec![(name, Some(come))]).receipt.messages <= 9);
        assert_eq!(host.state().to_string(), host.wanted());
    });
}

#[test]
fn a_service_that_is_refused_holds_back_no_other() {
    with_hosts(|host| {
        let mut intent = cluster(0..3);
        let (bad, refused) = impossible(5);
        intent.services.insert(bad.clone(), refused.clone().unwrap());
        let outcome = host.dataplane.start(&intent).unwrap();
        let failed: Vec<_> = outcome.refused.iter().map(|refusal| refusal.service.clone()).collect();
        assert_eq!(failed, std::slice::from_ref(&bad), "{outcome:?}");
        assert_eq!(host.dataplane.acknowledged().len(), 3);
        assert_eq!(host.state().to_string(), host.wanted());

        // Other Services change in `filter` and in `nat` in the same restore.
        let (other, without) = service(1, 0..0);
        let (new, come) = service(6, 0..2);
        let outcome =
            host.change(vec![(other, Some(without)), (bad.clone(), refused.clone()), (new, Some(come))]);
        assert_eq!(outcome.refused.len(), 1, "{outcome:?}");
        assert_eq!(host.dataplane.acknowledged().len(), 4);
        assert_eq!(host.state().to_string(), host.wanted());
        assert_eq!(host.change(vec![(bad, refused)]).refused.len(), 1, "alone it is refused, too");
        assert_eq!(host.state().to_string(), host.wanted());
    });
}

/// A tool that, if the input contains a certain Service, applies all but the last table and then fails without an error message.
#[test]
fn a_restore_that_fails_half_way_is_made_good() {
    with_hosts(|host| {
        if matches!(host.writer, Writer::Builtin(_)) {
            return;
        }
        let restore = format!("{}/tests/fake/half-{}", env!("CARGO_MANIFEST_DIR"), host.variant).into();
        let half = Tools { restore, ..host.tools[0].clone() };
        let tools = vec![half, host.tools[1].clone()];
        host.dataplane = Iptables::with_tools(tools.clone(), Limits::default());
        host.start(&cluster(0..3));
        let ((name, without), (fatal, come)) = (service(1, 0..0), service(666, 0..1));
        let outcome =
            host.change(vec![(name.clone(), Some(without.clone())), (fatal.clone(), Some(come.clone()))]);
        let failed: Vec<_> = outcome.refused.iter().map(|refusal| refusal.service.clone()).collect();
        assert_eq!(failed, std::slice::from_ref(&fatal), "the other is in force");
        assert_eq!(host.dataplane.acknowledged().service(&name), Some(without));
        assert_eq!(host.state().to_string(), host.wanted(), "the half that was done is undone");
        let (other, fewer) = service(2, 0..1);
        host.change(vec![(other, Some(fewer))]);
        assert_eq!(host.state().to_string(), host.wanted());

        // At the start, the refused Service does not hold back the others either.
        host.restart();
        host.dataplane.cleanup().unwrap();
        let mut intent = cluster(0..3);
        intent.services.insert(fatal, come);
        host.dataplane = Iptables::with_tools(tools, Limits::default());
        let outcome = host.dataplane.start(&intent).unwrap();
        assert_eq!((outcome.refused.len(), host.dataplane.acknowledged().len()), (1, 3));
        assert_eq!(host.dataplane.verify().unwrap().unrepaired, None);
        assert_eq!(host.state().to_string(), host.wanted());
    });
}

#[test]
fn a_tool_that_always_fails_is_no_services_fault() {
    with_hosts(|host| {
        if matches!(host.writer, Writer::Builtin(_)) {
            return;
        }
        let failing = |tools: &Tools| Tools { restore: "/bin/false".into(), ..tools.clone() };
        let tools = host.tools.iter().map(failing).collect();
        host.dataplane = Iptables::with_tools(tools, Limits::default());
        assert!(host.dataplane.start(&cluster(0..20)).is_err());
        assert_eq!(host.dataplane.acknowledged().len(), 0);
    });
}

#[test]
fn drift_is_mended_and_foreign_rules_stay() {
    with_hosts(|host| {
        host.start(&cluster(0..10));
        let (before, wanted) = (rules(&host.save()), host.wanted());
        let edits = [
            "*nat\n-F\nCOMMIT\n",
            "*filter\n-F\nCOMMIT\n",
            "*mangle\n-X KUBE-PROXY-CANARY\nCOMMIT\n",
            "*nat\n-F KUBE-SERVICES\nCOMMIT\n",
            "*nat\n-D KUBE-MARK-MASQ 1\nCOMMIT\n",
            "*nat\n-D PREROUTING 1\nCOMMIT\n",
            "*nat\n-I KUBE-SERVICES -p icmp -j ACCEPT\nCOMMIT\n",
            "*filter\n-D FORWARD 2\nCOMMIT\n",
            "*nat\n:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]\nCOMMIT\n",
            // Replaces a rule with one of the same size.
            "*nat\n-R KUBE-MARK-MASQ 1 -j MARK --set-xmark 0x8000/0x8000\nCOMMIT\n",
        ];
        for edit in edits {
            host.edit(edit);
            assert_eq!(host.dataplane.changed_by_others().unwrap(), Changed::Ours, "{edit}");
            let repair = host.dataplane.verify().unwrap();
            assert!(repair.operations > 0 && repair.unrepaired.is_none(), "{edit}: {repair:?}");
            assert_eq!(host.state().to_string(), wanted, "{edit}");
            assert_eq!(host.dataplane.verify().unwrap().operations, 0, "{edit}");
            assert_eq!(host.dataplane.changed_by_others().unwrap(), Changed::Nothing, "{edit}");
            if edit.contains("-F\n") {
                // A flush takes the rules of others, too: they put theirs back.
                let table = edit.lines().next().unwrap();
                let theirs = FOREIGN.split_inclusive("COMMIT\n").find(|part| part.starts_with(table));
                host.edit(theirs.unwrap());
            }
        }
        let mut after = rules(&host.save());
        let mut before = before;
        before.sort();
        after.sort();
        assert_eq!(after, before, "others' rules are as they were");

        // A foreign rule above ours is not drift.
        host.edit("*nat\n-I PREROUTING -p icmp -j MINE\nCOMMIT\n");
        assert_eq!(host.dataplane.verify().unwrap().operations, 0);
        let nat = &host.save()[0];
        let first = nat.lines().position(|line| line.contains("-A PREROUTING -p icmp")).unwrap();
        assert!(first < nat.lines().position(|line| line.contains("-A PREROUTING -m comment")).unwrap());
    });
}

#[test]
fn a_change_after_a_flush_mends_what_was_flushed() {
    with_hosts(|host| {
        host.start(&cluster(0..5));
        host.edit("*nat\n-F\nCOMMIT\n");
        // This change removes a rule from a chain that no longer contains it.
        let gone = (service(2, 0..0).0, None);
        assert_eq!(host.change(vec![gone]).refused, []);
        assert_eq!(host.state().to_string(), host.wanted());
    });
}

#[test]
fn what_is_not_known_is_kept_while_it_may_be_needed() {
    with_hosts(|host| {
        host.start(&cluster(0..5));
        host.restart();
        host.dataplane.keep_unknown(true);
        host.start(&cluster(2..3));
        let has = |host: &Host, number: u16| {
            host.state().to_string().contains(&format!("\"default/s{number}:http cluster IP\""))
        };
        assert!((0..5).all(|number| has(host, number)), "{}", host.state());
        // Enough changes for the shared chain to be rewritten.
        let many = (100..130).map(|number| service(number, 0..1)).map(|(name, it)| (name, Some(it)));
        host.change(many.collect());
        assert!((0..5).chain(100..130).all(|number| has(host, number)));
        host.dataplane.keep_unknown(false);
        host.dataplane.verify().unwrap();
        assert!(!has(host, 0) && has(host, 2) && has(host, 129));
        assert_eq!(host.state().to_string(), host.wanted());
    });
}

#[test]
fn cleanup_leaves_no_trace() {
    with_hosts(|host| {
        let before = rules(&host.save());
        assert_eq!(host.dataplane.cleanup().unwrap(), [] as [&str; 0]);
        host.start(&cluster(0..30));
        let removed = host.dataplane.cleanup().unwrap();
        // 30 Services with a chain and three endpoints each, and five chains that do not depend on Services.
        assert!(removed.contains(&"125 chains of ip nat".to_owned()), "{removed:?}");
        let ours: Vec<String> =
            rules(&host.save()).into_iter().filter(|line| !before.contains(line)).collect();
        // Only KUBE-FIREWALL, which the kubelet uses, too, and the jump to it in `filter` OUTPUT, which had no rule before.
        assert!(ours.iter().all(|line| line.contains("KUBE-FIREWALL")), "{ours:?}");
        let left: Vec<String> =
            rules(&host.save()).into_iter().filter(|line| !line.contains("KUBE-FIREWALL")).collect();
        assert_eq!(left, before);
        assert_eq!(host.dataplane.cleanup().unwrap(), [] as [&str; 0], "nothing is left");
    });
}

#[test]
fn another_masquerade_bit_takes_effect_with_the_node() {
    with_hosts(|host| {
        let intent = cluster(0..2);
        host.start(&intent);
        assert!(host.dataplane.has_node(&intent.node).unwrap());
        let settings: Settings = [(MASQUERADE_BIT.name, Value::Number(3))].into_iter().collect();
        host.dataplane.configure(&settings);
        assert!(!host.dataplane.has_node(&intent.node).unwrap());
        assert_eq!(host.dataplane.verify().unwrap().operations, 0, "the old mark is still in force");
        host.dataplane.change_node(intent.node.clone()).unwrap();
        assert!(host.dataplane.has_node(&intent.node).unwrap());
        assert_eq!(host.dataplane.ledger().parameters().masquerade_mark, 0x8);
        assert_eq!(host.state().to_string(), host.wanted());
        assert!(host.wanted().contains("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x8/0x8"));
        // A preview uses the configured mark, too.
        assert_eq!(host.dataplane.preview(&intent).unwrap().text, "");
    });
}

#[test]
fn changes_of_others_are_noticed_and_our_own_are_not() {
    with_hosts(|host| {
        let (sender, notices) = mpsc::channel();
        let notify = Box::new(move |reason| sender.send(reason).is_ok());
        let Some(watches) = host.dataplane.watches() else {
            assert_eq!(host.variant, Variant::Legacy, "legacy tables send no notifications");
            return;
        };
        watches.watch(notify).unwrap();
        host.start(&cluster(0..5));
        let (name, more) = service(1, 0..4);
        host.change(vec![(name, Some(more))]);
        assert_eq!(host.dataplane.changed_by_others().unwrap(), Changed::Nothing);
        host.edit("*nat\n-I KUBE-SERVICES -p icmp -j ACCEPT\nCOMMIT\n");
        let reason = notices.recv_timeout(PATIENCE).unwrap();
        assert_eq!(reason, "another program changed our chains, or chains that jump to them");
        assert_eq!(host.dataplane.verify().unwrap().operations, 1);
        assert_eq!(notices.try_recv().ok(), None, "our own changes are left out");
    });
}

#[test]
fn packet_counters_have_the_keys_of_the_metrics() {
    with_hosts(|host| {
        host.start(&cluster(0..1));
        let read = host.dataplane.counts_packets().unwrap().read().unwrap();
        let mut keys: Vec<_> = read.into_iter().map(|(key, _)| Counted::Packets(key)).collect();
        keys.retain(|key| !ferroxy_iptables::MODE.metrics.iter().any(|metric| metric.counts == *key));
        assert_eq!(keys, []);
    });
}

#[test]
fn the_lock_is_waited_for_within_bounds_and_nothing_is_lost() {
    with_hosts(|host| {
        if host.variant != Variant::Legacy {
            return;
        }
        let writer = host.writer;
        let limits = Limits { lock: Duration::from_secs(1), attempts: 1, ..Limits::default() };
        host.dataplane = writer.dataplane(limits);
        let lock = OpenOptions::new().append(true).create(true).open("/run/xtables.lock").unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let error = host.dataplane.start(&cluster(0..2)).unwrap_err();
        assert!(error.to_string().contains("held the xtables lock during 1 runs"), "{error}");
        drop(lock);
        let limits = Limits { attempts: 100, ..limits };
        host.dataplane = writer.dataplane(limits);
        host.start(&cluster(0..2));

        // The lock is released while a change waits for it. A busy machine may start the tool later than that.
        let lock = OpenOptions::new().append(true).open("/run/xtables.lock").unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let (name, more) = service(1, 0..4);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(1300));
                drop(lock);
            });
            host.change(vec![(name, Some(more))])
        });
        assert_eq!((outcome.receipt.commits, outcome.refused.len()), (1, 0), "{outcome:?}");
        assert_eq!(host.state().to_string(), host.wanted());
    });
}
