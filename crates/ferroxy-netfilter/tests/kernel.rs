//! Tests against the real kernel, each in a network namespace of its own: connections are swept, notifications arrive,
//! leftovers are removed. Needs root.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::fs::OpenOptions;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ferroxy_core::{Family, Protocol};
use ferroxy_dataplane::SweepsConnections;
use ferroxy_dataplane::capability::connections::{Connection, Selection};
use ferroxy_dataplane::capability::leftovers::{Established, Leftovers};
use ferroxy_lab::{Capability, Namespace, PATIENCE, require};
use ferroxy_netfilter::connections::Conntrack;
use ferroxy_netfilter::leftovers::{self, Own};
use ferroxy_netfilter::watch::watch;
use ferroxy_netlink::nftables::Notice;
use rustix::fs::{FlockOperation, flock};

/// Ends a test that hangs.
const FOREVER: Duration = Duration::from_secs(600);

fn namespace(name: &str) -> Option<Namespace> {
    let needs = [Capability::NetworkNamespaces, Capability::NfTables, Capability::NftTool];
    require(&needs).then(|| Namespace::new(name).unwrap())
}

/// Runs `nft` in the network namespace of this thread.
fn nft(script: &str) -> String {
    let done = Command::new("nft").arg(script).output().unwrap();
    assert!(done.status.success(), "{script}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

const FRONTEND: &str = "127.0.0.10:53";

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Sweeps the connections that `is_stale` accepts. Returns the endpoints of all selected connections, and how many were deleted.
fn sweep(selection: Selection, is_stale: impl Fn(&Connection) -> bool) -> (Vec<SocketAddr>, u64) {
    let (mut seen, mut count) = (Vec::new(), 0);
    let mut judge = |connections: &[Connection]| {
        seen.extend(connections.iter().map(|connection| connection.endpoint));
        connections.iter().map(&is_stale).collect()
    };
    let mut deleted = |family, number| {
        assert_eq!(family, Family::V4);
        count += number;
    };
    Conntrack.sweep(&[selection], &mut judge, &mut deleted).unwrap();
    seen.sort();
    (seen, count)
}

#[test]
fn stale_connections_are_deleted_and_others_stay() {
    let Some(namespace) = namespace("sweep") else { return };
    let work = || {
        // More than one chunk.
        const CLIENTS: u16 = 600;
        nft("table ip t { chain c { type nat hook output priority -100; \
             ip daddr 127.0.0.10 udp sport < 20000 udp dport 53 dnat to 127.0.0.20:5353; \
             ip daddr 127.0.0.10 udp dport 53 dnat to 127.0.0.21:5353; }; }");
        let send = |port: u16, to: &str| {
            UdpSocket::bind(("127.0.0.1", port)).unwrap().send_to(b"?", at(to)).unwrap();
        };
        (0..CLIENTS).for_each(|number| send(10_000 + number, FRONTEND));
        send(30_000, FRONTEND);
        send(30_001, "127.0.0.30:53");

        let (old, new) = (at("127.0.0.20:5353"), at("127.0.0.21:5353"));
        let all =
            Selection { family: Family::V4, protocol: Protocol::Udp, frontend: None, translated_only: false };
        let translated = Selection { translated_only: true, ..all };
        let at_frontend = Selection { frontend: Some(at(FRONTEND)), ..translated };
        let (seen, deleted) = sweep(all, |_| false);
        assert_eq!((seen.len(), deleted), (usize::from(CLIENTS) + 2, 0), "all are listed");
        assert!(seen.contains(&at("127.0.0.30:53")), "untranslated ones, too");
        assert!(!sweep(translated, |_| false).0.contains(&at("127.0.0.30:53")));

        let is_old = |connection: &Connection| {
            assert!(connection.is_translated && connection.protocol == Protocol::Udp);
            assert_eq!(connection.frontend, at(FRONTEND));
            connection.endpoint == old
        };
        assert_eq!(sweep(at_frontend, is_old).1, u64::from(CLIENTS));
        assert_eq!(sweep(at_frontend, is_old), (vec![new], 0));
        assert_eq!(sweep(all, |_| false).0.len(), 2);
    };
    namespace.run(work).unwrap();
}

#[test]
fn notices_are_reported_in_order_until_the_receiver_is_gone() {
    let Some(namespace) = namespace("watch") else { return };
    let work = || {
        let (sender, notified) = mpsc::channel();
        let (seen_sender, seen) = mpsc::channel();
        let report = move |notice: &Notice| {
            seen_sender.send(notice.clone()).unwrap();
            matches!(notice, Notice::Changed { table, .. } if table == "mine").then_some("mine changed")
        };
        // The callback answers that the receiver is gone: the watch ends, and drops its ends of the channels.
        let _watch = watch(report, Box::new(move |reason| sender.send(reason).is_err())).unwrap();
        nft("add table ip other");
        nft("add table ip mine");
        nft("add table ip later");
        assert_eq!(notified.recv_timeout(FOREVER), Ok("mine changed"));
        assert_eq!(notified.recv_timeout(FOREVER), Err(mpsc::RecvTimeoutError::Disconnected));
        let tables: Vec<String> = seen
            .iter()
            .filter_map(|notice| match notice {
                Notice::Changed { table, .. } => Some(table),
                _ => None,
            })
            .collect();
        assert_eq!(tables, ["other", "mine"]);
    };
    namespace.run(work).unwrap();
}

#[test]
fn leftovers_depend_on_the_mode_in_force() {
    let Some(namespace) = namespace("leftovers") else { return };
    let set_up = || {
        nft("table ip ferroxy { chain c { counter; }; }; \
             table ip kube-proxy { comment \"rules for kube-proxy\"; }; \
             table ip6 kube-proxy { chain mine { counter; }; }; \
             table ip nat { chain KUBE-SERVICES { counter; }; chain KUBE-SVC-LOLE4ISW44XBNF3G { counter; }; \
             chain MINE { counter; }; };");
    };
    let work = || {
        set_up();
        let left = leftovers::remove(Some(Own::Nftables), Established::GoOn);
        assert_eq!(left.removed, ["table ip kube-proxy", "2 chains of ip nat"], "{left:?}");
        assert!(left.own.is_empty() && left.failed.is_empty() && left.kept.is_empty(), "{left:?}");
        assert_eq!(nft("list table ip nat").matches("chain").count(), 1);

        nft("flush ruleset");
        set_up();
        let left = leftovers::remove(Some(Own::Iptables), Established::GoOn);
        assert_eq!(
            (left.removed, left.own),
            (vec!["table ip kube-proxy".into()], vec!["table ip ferroxy".into()])
        );

        let left = leftovers::remove(None, Established::End);
        assert_eq!(left.removed, ["2 chains of ip nat"]);
        assert_eq!(leftovers::remove(None, Established::End), Leftovers::default(), "nothing is left");
        assert!(nft("list tables").contains("table ip6 kube-proxy"), "a table with only the name stays");
    };
    namespace.run(work).unwrap();
}

/// Runs `iptables-legacy` in the network namespace of this thread.
fn iptables(arguments: &str) -> String {
    let done =
        Command::new("iptables-legacy").args(["-w", "600"]).args(arguments.split(' ')).output().unwrap();
    assert!(done.status.success(), "{arguments}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn legacy_leftovers_stay_while_another_program_holds_the_lock() {
    let Some(namespace) = namespace("lock") else { return };
    let work = || {
        iptables("-t nat -N KUBE-SERVICES");
        let lock = OpenOptions::new().append(true).create(true).open("/run/xtables.lock").unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let left = leftovers::remove(None, Established::End);
        drop(lock);
        let why = "1 chains of legacy ip nat stay until the next attempt: \
                   another program holds /run/xtables.lock (waited 5s)";
        assert_eq!(left, Leftovers { failed: vec![why.to_owned()], ..Leftovers::default() });
        assert!(iptables("-t nat -S").contains("KUBE-SERVICES"));

        // A test in another process may hold the lock for a while: then the next attempt removes the chains.
        let deadline = Instant::now() + PATIENCE;
        let left = loop {
            let left = leftovers::remove(None, Established::End);
            if left.failed.is_empty() || Instant::now() >= deadline {
                break left;
            }
        };
        assert_eq!(left.removed, ["1 chains of legacy ip nat"], "{left:?}");
        assert!(!iptables("-t nat -S").contains("KUBE-SERVICES"));
    };
    namespace.run(work).unwrap();
}
