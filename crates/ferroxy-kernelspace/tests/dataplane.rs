//! The dataplane against a Host Networking Service in memory: calls that a change costs, changes by other programs, and their repair.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use ferroxy_core::testing::service;
use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::capability::leftovers::{Established, InForce};
use ferroxy_dataplane::{Dataplane, FailureKind, Persists, Programmed, TakesOver, Verifies};
use ferroxy_hcn::testing::Setup;
use ferroxy_hcn::{Code, Guid, Kind, Version};
use ferroxy_kernelspace::Kernelspace;
use serde_json::json;
use support::{Host, NODE_IP};

const NEWEST: Version = Version::NEWEST;
const OLD: Version = Version::new(9, 3);

fn node() -> NodeIntent {
    let mut node = NodeIntent { primary_family: Some(Family::V4), ..NodeIntent::default() };
    node.v4.node_ip = Some(NODE_IP.parse().unwrap());
    node
}

fn intent(services: impl IntoIterator<Item = (ServiceName, Arc<ServiceIntent>)>) -> Intent {
    Intent { node: node(), services: services.into_iter().collect() }
}

/// Services 1…, each with five endpoints of its own.
fn many(count: u16) -> Intent {
    intent((1..=count).map(|number| service(number, (0..5).map(|it| 256 + 5 * number + it))))
}

fn started(host: &Host, intent: &Intent) -> Kernelspace {
    let mut dataplane = host.open();
    let outcome = dataplane.start(intent).unwrap();
    assert_eq!(outcome.refused, []);
    dataplane
}

fn change(dataplane: &mut Kernelspace, changed: (ServiceName, Arc<ServiceIntent>)) -> (u64, usize) {
    let before = dataplane.calls();
    let outcome = dataplane.change(vec![(changed.0, Some(changed.1))]).unwrap();
    assert_eq!(outcome.refused, []);
    (dataplane.calls().total() - before.total(), outcome.operations)
}

fn ids(host: &Host, kind: Kind) -> BTreeSet<Guid> {
    host.fake.service().documents(kind).map(|(id, _)| id).collect()
}

/// The load balancer of Service `number`.
fn balancer(host: &Host, number: u16) -> Guid {
    let [high, low] = number.to_be_bytes();
    let vip = json!([format!("10.96.{high}.{low}")]);
    let service = host.fake.service();
    service.documents(Kind::LoadBalancer).find(|(_, it)| it["FrontendVIPs"] == vip).unwrap().0
}

#[test]
fn the_first_sync_costs_a_call_for_each_object_and_a_change_those_of_its_service() {
    for version in [NEWEST, OLD] {
        let host = Host::new(false, version);
        let mut dataplane = started(&host, &many(2000));
        let calls = dataplane.calls().total();
        assert!(calls <= 2000 * 5 + 2000 + 20, "{calls} calls");
        // One endpoint leaves, another comes.
        let costs: Vec<_> = (1..=4)
            .map(|number| {
                let endpoints = (1..6).map(move |it| 256 + 5 * number + it);
                change(&mut dataplane, service(number, endpoints.chain([60_000 + number])))
            })
            .collect();
        let most = costs[1..].iter().map(|(calls, _)| *calls).max().unwrap();
        assert!(most <= 5, "{costs:?}: create, change, delete");
        let before = dataplane.calls().total();
        assert_eq!(dataplane.verify().unwrap().operations, 0);
        let looked = dataplane.calls().total() - before;
        assert!(looked <= 12_000 / 20 * 2 + 600, "{looked} calls to verify");
    }
}

#[test]
fn a_restart_only_reads() {
    let host = Host::new(true, NEWEST);
    let intent = many(50);
    drop(started(&host, &intent));
    let changes = host.fake.service().changes();
    let mut again = started(&host, &intent);
    assert_eq!(host.fake.service().changes(), changes);
    let service = intent.services.values().next().unwrap();
    let parts = again.programmed(&intent, service).unwrap();
    assert!(
        matches!(parts, Programmed::Parts { right, wanted } if right == wanted && right > 0),
        "{parts:?}"
    );
    assert!(!again.is_cold().unwrap());
}

#[test]
fn a_changed_load_balancer_keeps_its_id_and_is_never_away_where_hns_can_change_it() {
    for (version, is_modified) in [(NEWEST, 1), (OLD, 0)] {
        let host = Host::new(false, version);
        let mut dataplane = started(&host, &many(2));
        let before = ids(&host, Kind::LoadBalancer);
        change(&mut dataplane, service(1, [300, 301]));
        assert_eq!(ids(&host, Kind::LoadBalancer), before);
        let modified = host.fake.service().counted.get("HcnModifyLoadBalancer").copied().unwrap_or(0);
        assert_eq!(modified, is_modified);
    }
}

#[test]
fn an_hns_that_ignores_changes_is_found_out() {
    let host = Host::new(false, NEWEST);
    host.fake.service().setup = Setup { ignores_modify: true, ..Setup::of(NEWEST) };
    let mut dataplane = started(&host, &many(1));
    change(&mut dataplane, service(1, [300]));
    let expected = host.lines();
    assert!(expected.iter().any(|line| line.contains("endpoints [10.244.1.44]")), "{expected:?}");
    change(&mut dataplane, service(1, [301]));
    dataplane.verify().unwrap();
    change(&mut dataplane, service(1, [302]));
    assert_eq!(host.fake.service().counted["HcnModifyLoadBalancer"], 1, "it is asked once");
}

#[test]
fn an_hns_without_changes_is_found_out() {
    let host = Host::new(false, NEWEST);
    let mut dataplane = started(&host, &many(1));
    host.fake.fail("HcnModifyLoadBalancer", Code::NOT_IMPLEMENTED, 1);
    change(&mut dataplane, service(1, [300]));
    change(&mut dataplane, service(1, [301]));
    assert_eq!(host.fake.service().counted["HcnModifyLoadBalancer"], 1);
    assert!(dataplane.verify().unwrap().operations == 0);
}

#[test]
fn what_others_delete_is_made_anew() {
    for version in [NEWEST, OLD] {
        let host = Host::new(false, version);
        let mut dataplane = started(&host, &many(3));
        let before = host.lines();
        let lost = balancer(&host, 2);
        host.fake.service().remove(Kind::LoadBalancer, lost);
        assert_eq!(dataplane.verify().unwrap().operations, 1);
        assert_eq!(host.lines(), before);
        // Noticed by a change, too.
        host.fake.service().remove(Kind::LoadBalancer, lost);
        change(&mut dataplane, service(2, [300]));
        assert!(host.lines().iter().any(|line| line.contains("10.96.0.2") && line.contains("10.244.1.44")));
        let endpoint = host.fake.service().referred().into_iter().next().unwrap();
        let reached = host.lines();
        host.fake.service().remove(Kind::Endpoint, endpoint);
        let repair = dataplane.verify().unwrap();
        assert_eq!((repair.operations, repair.unrepaired), (2, None), "the endpoint, and who names it");
        assert_eq!(host.lines(), reached);
    }
}

#[test]
fn silence_is_not_absence() {
    let host = Host::new(false, NEWEST);
    let mut dataplane = started(&host, &many(3));
    let before = host.lines();
    host.fake.stop();
    assert!(dataplane.verify().is_err());
    let (name, wanted) = service(1, [300]);
    assert!(dataplane.change(vec![(name.clone(), Some(wanted.clone()))]).is_err());
    assert!(host.open().start(&many(3)).is_err());
    host.fake.resume();
    assert_eq!(host.lines(), before, "nothing was dropped");
    let outcome = dataplane.change(vec![(name, Some(wanted))]).unwrap();
    assert_eq!(outcome.refused, []);
    assert!(host.lines().iter().any(|line| line.contains("endpoints [10.244.1.44]")));
    assert_eq!(dataplane.verify().unwrap().operations, 0);
}

/// HNS stops answering at the nth call, for many n: the next attempt still reaches the wanted state.
#[test]
fn silence_at_any_call_is_survived() {
    let wanted = service(1, [300, 301]);
    for at in 0..40 {
        for function in
            ["HcnCreateEndpoint", "HcnCreateLoadBalancer", "HcnModifyLoadBalancer", "HcnDeleteEndpoint"]
        {
            let host = Host::new(false, if at % 2 == 0 { NEWEST } else { OLD });
            let mut dataplane = started(&host, &many(2));
            host.fake.fail(function, Code::NOT_RUNNING, at / 8 + 1);
            for _ in 0..8 {
                drop(dataplane.change(vec![(wanted.0.clone(), Some(wanted.1.clone()))]));
            }
            assert_eq!(dataplane.verify().unwrap().operations, 0, "{function} {at}");
            assert!(host.lines().iter().any(|line| line.contains("[10.244.1.44 10.244.1.45]")));
        }
    }
}

#[test]
fn a_network_that_is_made_anew_is_programmed_at_once_and_a_missing_one_drops_nothing() {
    for is_overlay in [false, true] {
        let mut host = Host::new(is_overlay, NEWEST);
        let mut dataplane = started(&host, &many(3));
        let before = host.lines();
        let network = host.network;
        let document = host.fake.service().document(Kind::Network, network).unwrap().clone();
        host.fake.service().remove(Kind::Network, network);
        let failure = dataplane.verify().unwrap_err();
        assert_eq!(failure.kind, FailureKind::Other);
        assert!(failure.to_string().contains("what is in force stays"), "{failure}");
        assert_eq!(host.lines(), before);
        host.network = host.fake.service().add(Kind::Network, document);
        host.renew_network(is_overlay);
        let repair = dataplane.verify().unwrap();
        assert!(repair.operations > 0 && repair.unrepaired.is_none());
        assert_eq!(host.lines(), before);
        change(&mut dataplane, service(1, [300]));
    }
}

#[test]
fn a_network_that_is_not_there_is_named_with_those_that_are() {
    let mut host = Host::new(false, NEWEST);
    host.options.network = Some("CBR1".into());
    let failure = host.open().start(&many(1)).unwrap_err();
    assert!(failure.to_string().contains("HNS has no network CBR1 (it has: cbr0)"), "{failure}");
    host.options.network = Some("CBR0".into());
    started(&host, &many(1));
    host.options.network = None;
    let failure = host.open().probe(&node()).unwrap_err();
    assert!(failure.to_string().contains("--network-name"), "{failure}");
}

#[test]
fn a_version_that_is_too_old_is_refused_and_so_is_dsr_without_hns() {
    let old = Host::new(false, Version::new(9, 1));
    assert_eq!(old.open().probe(&node()).unwrap_err().kind, FailureKind::Unsupported);
    let mut without = Host::new(false, Version::new(9, 2));
    without.open().probe(&node()).unwrap();
    without.options.enable_dsr = true;
    assert_eq!(without.open().probe(&node()).unwrap_err().kind, FailureKind::Unsupported);
}

#[test]
fn the_source_vip_is_found_or_asked_for() {
    let mut host = Host::new(true, NEWEST);
    host.options.source_vip = None;
    let failure = host.open().start(&many(1)).unwrap_err();
    assert!(failure.to_string().contains("winkernel.sourceVip"), "{failure}");
    host.add_pod("Calico_ep", &["10.244.1.40"]);
    let far = service(8, [3 * 256 + 7]);
    started(&host, &intent([far]));
    assert!(host.lines().iter().any(|line| line.contains("source [172.18.0.2]")), "{:?}", host.lines());
    let near = service(9, [2 * 256 + 7]);
    started(&host, &intent([near]));
    assert!(host.lines().iter().any(|line| line.contains("source [10.244.1.40]")), "{:?}", host.lines());
    host.options.source_vip = Some("nonsense".into());
    assert!(host.open().start(&many(1)).is_err());
}

/// A pod with this address would get the answers to all connections through load balancers.
#[test]
fn a_source_vip_of_a_pod_is_refused_at_the_start_and_reported_later() {
    let mut host = Host::new(true, NEWEST);
    host.options.source_vip = Some("10.244.1.5".into());
    let failure = host.open().start(&many(1)).unwrap_err();
    assert!(failure.to_string().contains("10.244.1.5 is the address of the endpoint \"a1\""), "{failure}");
    assert_eq!(host.lines(), BTreeSet::new());
    host.options.source_vip = Some("10.244.1.9".into());
    let mut dataplane = started(&host, &many(1));
    host.add_pod("late", &["10.244.1.9"]);
    dataplane.verify().unwrap();
    change(&mut dataplane, service(1, [300]));
    // An EndpointSlice with that address does not take it, either.
    change(&mut dataplane, service(2, [256 + 9, 301]));
    assert!(!host.lines().iter().any(|line| line.contains("10.244.1.9 flags 1")), "{:?}", host.lines());
}

/// Pods of this node come from the network plugin, sometimes late.
#[test]
fn a_pod_that_hns_does_not_know_yet_is_left_out_and_tried_again() {
    let mut host = Host::new(false, NEWEST);
    let (name, mut here) = service(1, [256 + 5, 256 + 50]);
    Arc::make_mut(&mut here).ports[0].cluster.iter_mut().for_each(|pod| pod.is_local = true);
    let mut dataplane = host.open();
    let outcome = dataplane.start(&intent([(name.clone(), here.clone())])).unwrap();
    assert!(outcome.refused[0].reason.contains("10.244.1.50"), "{outcome:?}");
    assert!(host.lines().iter().any(|line| line.contains("endpoints [10.244.1.5]")), "the other serves");
    assert!(dataplane.acknowledged().service(&name).is_none());
    host.add_pod("late", &["10.244.1.50"]);
    let before = dataplane.calls();
    let outcome = dataplane.change(vec![(name.clone(), Some(here))]).unwrap();
    assert_eq!(outcome.refused, []);
    assert!(host.lines().iter().any(|line| line.contains("endpoints [10.244.1.5 10.244.1.50]")));
    assert!(dataplane.calls().total() - before.total() <= 8);
    assert!(dataplane.acknowledged().service(&name).is_some());
}

/// An address moves here: the endpoint that stood for the remote pod must go, and no load balancer may name it.
#[test]
fn a_pod_of_this_node_ends_what_stood_for_it_elsewhere() {
    let mut host = Host::new(false, NEWEST);
    let mut dataplane = started(&host, &intent([service(1, [300])]));
    let remote = ids(&host, Kind::Endpoint);
    let local = host.add_pod("moved", &["10.244.1.44"]);
    let repair = dataplane.verify().unwrap();
    assert_eq!(repair.unrepaired, None);
    let expected = json!([local]);
    let balancer = balancer(&host, 1);
    assert_eq!(
        host.fake.service().document(Kind::LoadBalancer, balancer).unwrap()["HostComputeEndpoints"],
        expected
    );
    let left = ids(&host, Kind::Endpoint);
    assert_eq!(left.intersection(&remote).count(), 3, "only those of the network plugin");
}

/// The same, noticed by a change of the Service: the pod is here now, with its address.
#[test]
fn a_pod_that_moves_here_with_its_address_is_named_by_its_own_endpoint() {
    for version in [NEWEST, OLD] {
        let mut host = Host::new(false, version);
        let mut dataplane = started(&host, &intent([service(1, [300])]));
        let local = host.add_pod("moved", &["10.244.1.44"]);
        let (name, mut here) = service(1, [300]);
        Arc::make_mut(&mut here).ports[0].cluster[0].is_local = true;
        change(&mut dataplane, (name, here));
        let balancer = balancer(&host, 1);
        let document = host.fake.service().document(Kind::LoadBalancer, balancer).unwrap().clone();
        assert_eq!(document["HostComputeEndpoints"], json!([local]));
        assert_eq!(ids(&host, Kind::Endpoint).len(), 4, "what stood for it is gone");
        assert_eq!(dataplane.verify().unwrap().operations, 0);
    }
}

/// kube-proxy's load balancers are adopted if they are right, replaced if not, and removed if no Service wants them; others' stay.
#[test]
fn taking_over_from_kube_proxy() {
    let host = Host::new(false, NEWEST);
    let pod = host.fake.service().endpoints().into_keys().next().unwrap();
    let add = |vip: &str, port: u16, flags: u32, owner: &str| {
        let vips = if vip.is_empty() { json!([]) } else { json!([vip]) };
        let mapping = json!({ "Protocol": 6, "InternalPort": 80, "ExternalPort": port, "Flags": flags });
        let document = json!({ "HostComputeEndpoints": [pod], "FrontendVIPs": vips, "PortMappings": [mapping],
            "Owner": owner });
        host.fake.service().add(Kind::LoadBalancer, document)
    };
    let replaced = add("10.96.0.1", 80, 0, "");
    let stale = add("", 30_999, 18, "");
    let foreign = add("192.0.2.1", 443, 0, "");
    let owned = add("", 31_000, 18, "another");
    let mut dataplane = started(&host, &intent([service(1, [300])]));
    let left = dataplane.remove_leftovers(InForce::Yes, Established::GoOn);
    assert_eq!((left.removed, left.failed), (vec!["load balancer *:30999/tcp".to_owned()], vec![]));
    let now = ids(&host, Kind::LoadBalancer);
    assert!(now.contains(&foreign) && now.contains(&owned) && !now.contains(&stale));
    let ours = balancer(&host, 1);
    let changed = host.fake.service().document(Kind::LoadBalancer, ours).unwrap().clone();
    assert_eq!((ours, &changed["Owner"]), (replaced, &json!("ferroxy")), "changed in place, and ours now");
    dataplane.cleanup().unwrap();
    assert_eq!(ids(&host, Kind::LoadBalancer), BTreeSet::from([foreign, owned]));
}

/// `ferroxy cleanup` reads no configuration file, so it does not know the network. Ours may be in several.
#[test]
fn cleanup_without_a_network_name_removes_what_is_ours_in_every_network_and_nothing_else() {
    let mut host = Host::new(false, NEWEST);
    drop(started(&host, &many(2)));
    let before = ids(&host, Kind::Endpoint).len();
    let other = host.fake.add_network("second", "L2Bridge");
    host.options.network = Some("second".into());
    // Services 3 and 4: frontends are those of the host, endpoints those of a network.
    let more = [service(3, [300, 301]), service(4, [301])];
    let mut dataplane = host.open();
    dataplane.keep_unknown(true);
    assert_eq!(dataplane.start(&intent(more)).unwrap().refused, []);
    drop(dataplane);
    assert_eq!(ids(&host, Kind::Endpoint).len(), before + 2);
    let theirs = host.fake.add_pod(other, "theirs", &["10.244.9.9"]);
    host.options.network = None;
    let removed = host.open().cleanup().unwrap();
    assert_eq!(removed.len(), 4 + 8 + 2, "two of the ten are pods of this node: {removed:?}");
    assert_eq!(ids(&host, Kind::LoadBalancer), BTreeSet::new());
    let left = ids(&host, Kind::Endpoint);
    assert!(left.contains(&theirs) && left.len() == 4, "only those of the network plugin: {left:?}");
    assert_eq!(host.open().cleanup().unwrap(), Vec::<String>::new());
}

/// kube-proxy's load balancers name its own endpoints: these endpoints stay as long as the load balancers, and go with them.
#[test]
fn cleanup_leaves_what_load_balancers_of_kube_proxy_name_until_those_are_gone() {
    let mut host = Host::new(false, NEWEST);
    let remote = json!({ "HostComputeNetwork": host.network, "Flags": 1, "MacAddress": "02-11-0a-f4-02-05",
        "IpConfigurations": [{ "IpAddress": "10.244.2.5" }] });
    let remote = host.fake.service().add(Kind::Endpoint, remote);
    let mapping = json!({ "Protocol": 6, "InternalPort": 80, "ExternalPort": 30_080, "Flags": 18 });
    let balancer = json!({ "HostComputeEndpoints": [remote], "FrontendVIPs": [], "PortMappings": [mapping] });
    let balancer = host.fake.service().add(Kind::LoadBalancer, balancer);
    drop(started(&host, &many(1)));
    host.options.network = None;
    let mut dataplane = host.open();
    dataplane.cleanup().unwrap();
    assert_eq!(ids(&host, Kind::LoadBalancer), [balancer].into());
    assert!(ids(&host, Kind::Endpoint).contains(&remote));
    let left = dataplane.remove_leftovers(InForce::No, Established::End);
    assert_eq!(left.removed, ["load balancer *:30080/tcp", "endpoint 10.244.2.5"]);
    assert_eq!(left.failed, Vec::<String>::new());
    assert_eq!(ids(&host, Kind::Endpoint).len(), 3);
}

#[test]
fn a_frontend_of_another_program_is_refused_with_a_name() {
    let host = Host::new(false, NEWEST);
    let pod = host.fake.service().endpoints().into_keys().next().unwrap();
    let mapping = json!({ "Protocol": 6, "InternalPort": 80, "ExternalPort": 80 });
    let theirs = host.fake.service().add(
        Kind::LoadBalancer,
        json!({ "HostComputeEndpoints": [pod], "FrontendVIPs": ["10.96.0.1"], "PortMappings": [mapping], "Owner": "them" }),
    );
    let mut dataplane = host.open();
    let outcome = dataplane.start(&many(2)).unwrap();
    assert_eq!(outcome.refused.len(), 1, "the other Service is in force");
    assert!(outcome.refused[0].reason.contains("belongs to them"), "{:?}", outcome.refused);
    assert!(ids(&host, Kind::LoadBalancer).contains(&theirs));
    assert!(dataplane.verify().unwrap().unrepaired.is_some());
}

/// HNS is listed once for a Plan, however many frontends and endpoints other programs hold.
#[test]
fn conflicts_cost_one_list_for_a_plan() {
    let host = Host::new(false, NEWEST);
    let pod = host.fake.service().endpoints().into_keys().next().unwrap();
    for number in 1..=50 {
        let mapping = json!({ "Protocol": 6, "InternalPort": 80, "ExternalPort": 80 });
        let vip = format!("10.96.0.{number}");
        host.fake.service().add(
            Kind::LoadBalancer,
            json!({ "HostComputeEndpoints": [pod], "FrontendVIPs": [vip], "PortMappings": [mapping], "Owner": "them" }),
        );
    }
    let mut dataplane = host.open();
    assert_eq!(dataplane.start(&many(60)).unwrap().refused.len(), 50);
    let lists = |host: &Host| {
        let service = host.fake.service();
        service.counted["HcnEnumerateLoadBalancers"] + service.counted["HcnEnumerateEndpoints"]
    };
    let before = lists(&host);
    assert!(dataplane.verify().unwrap().unrepaired.is_some());
    assert_eq!(lists(&host) - before, 3, "the look, and one for the conflicts");
    let calls = dataplane.calls().total();
    dataplane.verify().unwrap();
    assert!(dataplane.calls().total() - calls <= 50 + 2 * 350 / 20 + 100, "one call for each conflict");
}

/// A route changes: endpoints of that node are recreated, one group after the other.
#[test]
fn a_route_that_changes_takes_away_one_service_at_a_time() {
    let mut host = Host::new(true, NEWEST);
    // Each Service has a pod on that node, and every other one has a pod elsewhere.
    let services = (1..=20u16).map(|number| {
        let elsewhere = (number % 2 == 0).then_some(3 * 256 + number);
        service(number, std::iter::once(2 * 256 + 100 + number).chain(elsewhere))
    });
    let intent = intent(services);
    let mut dataplane = started(&host, &intent);
    let changed = host.fake.service().document(Kind::Network, host.network).unwrap().clone();
    let changed = changed.to_string().replace("172.18.0.3", "172.18.0.4");
    host.fake.service().replace(Kind::Network, host.network, serde_json::from_str(&changed).unwrap());
    host.fake.service().fewest_balancers = Some(usize::MAX);
    let repair = dataplane.verify().unwrap();
    assert_eq!(repair.unrepaired, None);
    assert!(repair.operations >= 20 * 2, "{}", repair.operations);
    assert_eq!(host.fake.service().fewest_balancers, Some(19), "one at a time");
    let lines = host.lines();
    assert!(lines.iter().any(|line| line.contains("172.18.0.4")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("172.18.0.3")), "{lines:?}");
    host.renew_network(true);
}

#[test]
fn marks_that_hns_drops_are_not_needed() {
    for (chooses_ids, drops_owners) in [(true, false), (false, true)] {
        let host = Host::new(false, NEWEST);
        host.fake.service().setup = Setup { chooses_ids, drops_owners, ..Setup::of(NEWEST) };
        let mut dataplane = started(&host, &many(3));
        change(&mut dataplane, service(1, [300]));
        drop(dataplane);
        let mut again = host.open();
        again.start(&intent([service(2, [301])])).unwrap();
        assert_eq!(ids(&host, Kind::LoadBalancer).len(), 1, "what was left over is found");
        again.cleanup().unwrap();
        assert_eq!(host.lines(), BTreeSet::new());
    }
}

/// A failed delete is tried again, and does not hold back other changes.
#[test]
fn a_delete_that_fails_is_not_forgotten() {
    let host = Host::new(false, NEWEST);
    let mut dataplane = started(&host, &many(2));
    host.fake.fail("HcnDeleteLoadBalancer", Code::INVALID_POLICY, 1);
    let (name, _) = service(1, []);
    let outcome = dataplane.change(vec![(name, None)]).unwrap();
    assert!(outcome.drift);
    assert_eq!(dataplane.verify().unwrap().unrepaired, None);
    assert_eq!(ids(&host, Kind::LoadBalancer).len(), 1);
    assert_eq!(host.lines().len(), 1 + 5);
}

#[test]
fn a_refused_endpoint_keeps_its_service_queued_and_the_rest_serves() {
    let host = Host::new(false, NEWEST);
    host.fake.fail("HcnCreateEndpoint", Code::INVALID_IP, 1);
    let mut dataplane = host.open();
    let outcome = dataplane.start(&many(2)).unwrap();
    assert_eq!(outcome.refused.len(), 1);
    assert!(outcome.refused[0].reason.contains("0x803b001e"), "{:?}", outcome.refused);
    assert_eq!(ids(&host, Kind::LoadBalancer).len(), 2);
    let wanted = many(2);
    let again = wanted.services.iter().map(|(name, it)| (name.clone(), Some(it.clone()))).collect();
    assert_eq!(dataplane.change(again).unwrap().refused, []);
}
