//! Edits of our tables by other programs: every sort of edit is noticed, repaired and counted. Tables of other programs
//! are left alone, whatever they contain.

use ferroxy_lab::Protocol;

use crate::support::{self, Agent, Cluster, DEADLINE, Service, listing, nft, pod_from, wait_until};

fn cluster() -> Cluster {
    let cluster = Cluster::new();
    let ips = ["10.96.0.80", "fd00:10:96::80"];
    let web = Service::new("web", &ips).node_port(Protocol::Tcp, 80, 8080, 30080).endpoints(&["a1", "b1"]);
    let sticky = Service::new("sticky", &["10.96.0.81"]).port(Protocol::Tcp, 80, 80).affinity(600);
    cluster.write_service(&web);
    cluster.write_service(&sticky.endpoints(&["a1", "b1"]));
    cluster
        .write_service(&Service::new("sole", &["10.96.0.82"]).port(Protocol::Tcp, 80, 80).endpoints(&["a1"]));
    cluster
}

/// The edit is repaired: the tables are as before, and the log counts one more.
fn is_repaired(what: &str, edit: &str) {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let agent = Agent::start(&node, &cluster);
    let before = listing(&node);
    assert!(before.iter().any(|line| line.contains("10.96.0.80 . tcp . 80")), "{before:?}");

    nft(&node, &[edit]);
    let seen = || agent.said("drift repaired (1 so far)") > 0 && listing(&node) == before;
    let took = wait_until(&format!("{what} is repaired"), DEADLINE, seen);
    println!("{what}: repaired after {took:.1?}");
    assert_eq!(agent.differences(&node), [""; 0]);
    assert_eq!(agent.warned("cannot"), 0, "the repair went wrong at first:\n{}", agent.log());

    // The repair itself is no drift, and the agent goes on as before.
    cluster.remove("sticky.yaml");
    agent.settle(&node);
    assert_eq!(agent.said("drift repaired"), 1, "{}", agent.log());
}

macro_rules! repaired {
    ($($edit:ident: $script:expr;)*) => {
        $(
            #[test]
            fn $edit() {
                is_repaired(&stringify!($edit).replace('_', " "), $script);
            }
        )*
    };
}

repaired! {
    a_flush_of_our_table: "flush table ip ferroxy";
    a_deletion_of_our_table: "delete table ip ferroxy";
    a_deletion_of_both_tables: "delete table ip ferroxy; delete table ip6 ferroxy";
    a_flush_of_everything: "flush ruleset";
    a_table_made_dormant: "add table ip ferroxy { flags dormant; }";
    a_deleted_element: "delete element ip ferroxy frontends { 10.96.0.80 . tcp . 80 }";
    a_deleted_element_of_ipv6: "delete element ip6 ferroxy cluster-ips { fd00:10:96::80 }";
    a_flushed_map: "flush map ip ferroxy endpoints-4";
    a_changed_element:
        "delete element ip ferroxy frontends { 10.96.0.80 . tcp . 80 };
         add element ip ferroxy frontends { 10.96.0.80 . tcp . 80 : 1401:4d }";
    an_endpoint_led_elsewhere:
        "delete element ip ferroxy endpoints-4 { 0 . 10.96.0.80 . tcp . 80 };
         add element ip ferroxy endpoints-4 { 0 . 10.96.0.80 . tcp . 80 : 10.244.9.9 . 99 }";
    a_sole_endpoint_led_elsewhere:
        "delete element ip ferroxy sole-endpoints { 10.96.0.82 . tcp . 80 };
         add element ip ferroxy sole-endpoints { 10.96.0.82 . tcp . 80 : 10.244.9.9 . 99 }";
    a_forgotten_hairpin: "flush set ip ferroxy hairpins";
    a_treatment_that_does_something_else:
        "delete element ip ferroxy treatments { 1401:2 };
         add element ip ferroxy treatments { 1401:2 : drop }";
    a_foreign_element_of_a_set: "add element ip ferroxy cluster-ips { 192.0.2.1 }";
    a_foreign_element_of_a_map: "add element ip ferroxy frontends { 192.0.2.1 . tcp . 80 : 1401:2 }";
    a_foreign_range: "add element ip ferroxy allowed-sources { 10.96.0.80 . tcp . 80 . 192.0.2.0/24 }";
    a_foreign_rule: "insert rule ip ferroxy services ip daddr 192.0.2.1 counter drop";
    a_foreign_rule_with_a_set_of_its_own:
        "add rule ip ferroxy services ip daddr { 192.0.2.1, 192.0.2.2 } tcp dport 80-90 drop";
    a_deleted_rule: "flush chain ip ferroxy masquerading";
    a_foreign_chain: "add chain ip ferroxy foreign; add rule ip ferroxy foreign drop";
    a_foreign_chain_that_our_rules_lead_to:
        "add chain ip ferroxy foreign; add rule ip ferroxy foreign drop;
         insert rule ip ferroxy services jump foreign";
    a_foreign_chain_that_our_map_leads_to:
        "add chain ip ferroxy foreign; add rule ip ferroxy foreign drop;
         add element ip ferroxy treatments { 99:1 : goto foreign }";
    a_foreign_base_chain:
        "add chain ip ferroxy foreign { type filter hook forward priority 10; policy drop; }";
    a_foreign_set: "add set ip ferroxy foreign { type ipv4_addr; flags interval; };
                    add element ip ferroxy foreign { 192.0.2.0/24 }";
    a_foreign_map_that_leads_to_a_foreign_chain:
        "add chain ip ferroxy foreign;
         add map ip ferroxy foreign-map { type ipv4_addr : verdict; };
         add element ip ferroxy foreign-map { 192.0.2.1 : goto foreign };
         insert rule ip ferroxy services ip daddr vmap @foreign-map";
    a_base_chain_with_another_policy:
        "add chain ip ferroxy filter-input { type filter hook input priority 0; policy drop; }";
    a_base_chain_with_another_priority:
        "flush chain ip ferroxy nat-output; delete chain ip ferroxy nat-output;
         add chain ip ferroxy nat-output { type nat hook output priority -50; policy accept; };
         add rule ip ferroxy nat-output jump services";
    a_deleted_base_chain: "flush chain ip6 ferroxy nat-output; delete chain ip6 ferroxy nat-output";
    a_pick_chain_that_picks_otherwise:
        "flush chain ip ferroxy pick-2-in-4; add rule ip ferroxy pick-2-in-4 drop";
}

#[test]
fn edits_again_and_again_are_counted() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let agent = Agent::start(&node, &cluster);
    for number in 1..=5 {
        nft(&node, &["delete element ip ferroxy frontends { 10.96.0.80 . tcp . 80 }"]);
        agent.wait_for(&format!("drift repaired ({number} so far)"));
        assert_eq!(agent.differences(&node), [""; 0]);
    }
}

#[test]
fn traffic_flows_again_after_a_deletion() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let agent = Agent::start(ka, &cluster);
    for number in 1..=3 {
        nft(ka, &["flush", "ruleset"]);
        agent.wait_for(&format!("drift repaired ({number} so far)"));
        for target in ["10.96.0.80:80", "[fd00:10:96::80]:80"] {
            let pod = pod_from(&network, "a2", Protocol::Tcp, target);
            assert!(["a1", "b1"].contains(&pod.as_str()), "{pod}");
        }
        pod_from(&network, "ext", Protocol::Tcp, "172.18.0.2:30080");
    }
}

#[test]
fn what_clients_taught_is_no_drift() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let agent = Agent::start(ka, &cluster);
    let pod = pod_from(&network, "a2", Protocol::Tcp, "10.96.0.81:80");
    let entries = || nft(ka, &["list", "map", "ip", "ferroxy", "sticky-clients"]);
    assert!(entries().contains("10.244.1.6 . "), "{}", entries());
    // A repair of another object leaves the affinity entry.
    nft(ka, &["delete element ip ferroxy cluster-ips { 10.96.0.80 }"]);
    agent.wait_for("drift repaired (1 so far)");
    assert!(entries().contains("10.244.1.6 . "), "{}", entries());
    assert_eq!(pod_from(&network, "a2", Protocol::Tcp, "10.96.0.81:80"), pod);
    assert_eq!(agent.said("drift repaired"), 1, "{}", agent.log());
}

/// Names that collide with ours, kinds of sets and objects we never write, and other families.
const FOREIGN_TABLES: &str = r#"
table ip foreign {
    comment "not Ferroxy's"
    counter hits { packets 7 bytes 420 }
    quota most { over 25 mbytes }
    limit slow { rate 10/second }
    set services { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/8 . 80-443 } }
    map frontends { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.80 . tcp . 80 : jump pick-2-in-4 } }
    chain pick-2-in-4 { counter name "hits" return; }
    chain services { type filter hook prerouting priority -200; policy accept; ip daddr . tcp dport @services accept; }
}
table ip ferroxy-foreign {
    chain c { ip protocol { tcp, udp } accept; }
}
table inet odd {
    set marks { type mark; elements = { 0x1, 0xff } }
    set names { type ifname; flags interval; elements = { "veth*" } }
    map ports { type inet_service : inet_service; flags interval; elements = { 1-10 : 99, 20 : 100 } }
    map addresses { type ipv4_addr . ipv4_addr : ipv4_addr . inet_service; elements = { 1.1.1.1 . 2.2.2.2 : 3.3.3.3 . 4 } }
    set seen { type ipv6_addr; size 65535; flags dynamic,timeout; timeout 1h; }
    chain c { type filter hook input priority 5; policy accept; update @seen { ip6 saddr timeout 30m } meta mark @marks tcp dport vmap { 22 : accept, 80-90 : drop }; }
}
table inet ferroxy {
    chain services { type filter hook forward priority 7; policy accept; counter; }
}
table bridge ferroxy {
    set macs { type ether_addr; elements = { 02:00:00:00:00:01 } }
}
table arp foreign {
    chain c { type filter hook input priority 0; policy accept; arp operation request accept; }
}
"#;

#[test]
fn foreign_tables_are_none_of_our_business() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("foreign.nft");
    std::fs::write(&file, FOREIGN_TABLES).unwrap();
    nft(&node, &["-f".as_ref(), file.as_os_str()]);
    let tables = [
        ["ip", "foreign"],
        ["ip", "ferroxy-foreign"],
        ["inet", "odd"],
        ["inet", "ferroxy"],
        ["bridge", "ferroxy"],
        ["arp", "foreign"],
    ];
    let foreign = || tables.map(|[family, name]| nft(&node, &["list", "table", family, name]));
    let before = foreign();

    let agent = Agent::start(&node, &cluster);
    assert_eq!(foreign(), before, "after the start");
    cluster.remove("sticky.yaml");
    agent.settle(&node);
    assert_eq!(foreign(), before, "after a change");
    // Edits of other programs, also of tables that are created and deleted.
    for round in 0..3 {
        nft(&node, &[format!("add table ip other{round}; add chain ip other{round} services")]);
        nft(&node, &["insert rule ip foreign pick-2-in-4 drop; add element inet odd marks { 0x77 }"]);
        nft(&node, &["delete element inet odd marks { 0x77 }; flush chain ip foreign pick-2-in-4"]);
        nft(&node, &["add rule ip foreign pick-2-in-4 counter name hits return"]);
        nft(&node, &[format!("delete table ip other{round}")]);
    }
    // The agent sees this edit of its own table. By then it has also handled the notifications of the edits above.
    nft(&node, &["delete element ip ferroxy cluster-ips { 10.96.0.80 }"]);
    agent.wait_for("drift repaired");
    assert!(agent.log().contains("drift repaired (1 so far): 1 operation, for example: "), "{}", agent.log());
    assert_eq!(foreign(), before, "after a repair");

    drop(agent.terminate());
    assert_eq!(support::ferroxy(&node, &["cleanup"]).code, 0);
    assert_eq!(foreign(), before, "after the cleanup");
    let left = nft(&node, &["list", "tables"]);
    let expected: Vec<String> =
        tables.iter().map(|[family, name]| format!("table {family} {name}")).collect();
    let mut left: Vec<&str> = left.lines().collect();
    left.sort_unstable();
    assert!(
        expected.iter().all(|table| left.contains(&table.as_str())) && left.len() == expected.len(),
        "{left:?}"
    );
}
