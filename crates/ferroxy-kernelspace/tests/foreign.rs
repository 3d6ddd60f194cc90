//! Objects of other programs in HNS: kube-proxy's load balancers are adopted and later deleted; objects that others refer to stay.

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
use ferroxy_dataplane::{Dataplane, TakesOver, Verifies};
use ferroxy_hcn::{Code, Guid, Kind, Version};
use ferroxy_kernelspace::Kernelspace;
use serde_json::{Value, json};
use support::{Host, NODE_IP};

const NEWEST: Version = Version::NEWEST;
const OLD: Version = Version::new(9, 3);

fn intent(services: impl IntoIterator<Item = (ServiceName, Arc<ServiceIntent>)>) -> Intent {
    let mut node = NodeIntent { primary_family: Some(Family::V4), ..NodeIntent::default() };
    node.v4.node_ip = Some(NODE_IP.parse().unwrap());
    Intent { node, services: services.into_iter().collect() }
}

fn started(host: &Host, intent: &Intent) -> Kernelspace {
    let mut dataplane = host.open();
    assert_eq!(dataplane.start(intent).unwrap().refused, []);
    dataplane
}

fn ids(host: &Host, kind: Kind) -> BTreeSet<Guid> {
    host.fake.service().documents(kind).map(|(id, _)| id).collect()
}

/// The objects that Ferroxy would make, as kube-proxy makes them: the same documents, without an owner, with other ids.
fn as_kube_proxy_made_it(host: &Host, intent: &Intent) -> BTreeSet<Guid> {
    drop(started(host, intent));
    let mut service = host.fake.service();
    let mut renamed: Vec<(String, String)> = Vec::new();
    let mut made = BTreeSet::new();
    for kind in [Kind::Endpoint, Kind::LoadBalancer] {
        let ours: Vec<(Guid, Value)> = service
            .documents(kind)
            .filter(|(_, it)| it["Owner"] == "ferroxy")
            .map(|(id, it)| (id, it.clone()))
            .collect();
        for (id, document) in ours {
            let mut text = document.to_string();
            for (before, after) in &renamed {
                text = text.replace(before.as_str(), after);
            }
            let mut document: Value = serde_json::from_str(&text).unwrap();
            document.as_object_mut().unwrap().remove("Owner");
            service.remove(kind, id);
            let new = service.add(kind, document);
            renamed.push((id.to_string(), new.to_string()));
            made.insert(new);
        }
    }
    made
}

/// A load balancer of another program that names this endpoint.
fn foreign(endpoint: Guid, owner: &str) -> Value {
    let mapping = json!({ "Protocol": 6, "InternalPort": 80, "ExternalPort": 443 });
    json!({ "HostComputeEndpoints": [endpoint], "FrontendVIPs": ["192.0.2.1"], "PortMappings": [mapping],
        "Owner": owner })
}

/// The endpoint with this address.
fn endpoint(host: &Host, ip: &str) -> Option<Guid> {
    let service = host.fake.service();
    let ip = json!(ip);
    service
        .documents(Kind::Endpoint)
        .find(|(_, it)| it["IpConfigurations"][0]["IpAddress"] == ip)
        .map(|it| it.0)
}

#[test]
fn an_adopted_load_balancer_is_deleted_with_its_service() {
    for (is_overlay, version) in [(false, NEWEST), (false, OLD), (true, NEWEST)] {
        let host = Host::new(is_overlay, version);
        let both = intent([service(1, [300]), service(2, [301])]);
        let made = as_kube_proxy_made_it(&host, &both);
        let changes = host.fake.service().changes();
        let mut dataplane = started(&host, &both);
        assert_eq!(host.fake.service().changes(), changes, "all of it is right");
        assert_eq!(dataplane.verify().unwrap().operations, 0);
        // Each change deletes the load balancer of its own Service only.
        let outcome = dataplane.change(vec![(service(1, []).0, None)]).unwrap();
        assert!(!outcome.drift, "{outcome:?}");
        let left = ids(&host, Kind::LoadBalancer);
        assert_eq!(left.len(), 1, "{:?}", host.lines());
        assert!(left.is_subset(&made));
        assert_eq!(dataplane.change(vec![(service(2, []).0, None)]).unwrap().refused, []);
        assert_eq!(ids(&host, Kind::LoadBalancer), BTreeSet::new());
        assert!(endpoint(&host, "10.244.1.44").is_none() && endpoint(&host, "10.244.1.45").is_none());
    }
}

/// The Service is deleted while no proxy runs: the endpoints of the load balancer show that it was kube-proxy's.
#[test]
fn an_adopted_load_balancer_whose_service_went_while_nobody_ran_is_a_leftover() {
    for is_overlay in [false, true] {
        let host = Host::new(is_overlay, NEWEST);
        let both = intent([service(1, [300]), service(2, [301])]);
        as_kube_proxy_made_it(&host, &both);
        drop(started(&host, &both));
        let mut again = started(&host, &intent([service(2, [301])]));
        let left = again.remove_leftovers(InForce::Yes, Established::GoOn);
        assert_eq!((left.removed.len(), left.failed), (1, vec![]), "{:?}", left.removed);
        assert_eq!(again.verify().unwrap().unrepaired, None);
        assert_eq!(ids(&host, Kind::LoadBalancer).len(), 1);
        assert_eq!(endpoint(&host, "10.244.1.44"), None);
    }
}

#[test]
fn an_endpoint_that_others_name_stays_and_is_no_failure() {
    for owner in ["them", ""] {
        let host = Host::new(false, NEWEST);
        let mut dataplane = started(&host, &intent([service(1, [300]), service(2, [301])]));
        let named = endpoint(&host, "10.244.1.44").unwrap();
        let theirs = host.fake.service().add(Kind::LoadBalancer, foreign(named, owner));
        assert_eq!(dataplane.verify().unwrap().operations, 0);
        let before = host.fake.service().counted.get("HcnDeleteEndpoint").copied();
        let outcome = dataplane.change(vec![(service(1, []).0, None)]).unwrap();
        assert!(!outcome.drift, "{outcome:?}");
        let repair = dataplane.verify().unwrap();
        assert_eq!((repair.operations, repair.unrepaired), (0, None));
        assert_eq!(host.fake.service().counted.get("HcnDeleteEndpoint").copied(), before, "not even tried");
        assert_eq!(endpoint(&host, "10.244.1.44"), Some(named));
        // It is used again if a Service needs it, and deleted when no Service does.
        let (name, again) = service(1, [300]);
        assert_eq!(dataplane.change(vec![(name, Some(again))]).unwrap().refused, []);
        dataplane.change(vec![(service(1, []).0, None)]).unwrap();
        host.fake.service().remove(Kind::LoadBalancer, theirs);
        assert_eq!(dataplane.verify().unwrap().unrepaired, None);
        assert_eq!(endpoint(&host, "10.244.1.44"), None);
    }
}

/// We notice such a load balancer only when HNS refuses: it was made since the last look, or it cannot be read.
#[test]
fn an_endpoint_that_something_unseen_names_stays_and_is_no_failure() {
    for is_readable in [true, false] {
        let host = Host::new(false, NEWEST);
        let mut dataplane = started(&host, &intent([service(1, [300]), service(2, [301])]));
        let named = endpoint(&host, "10.244.1.44").unwrap();
        let theirs = host.fake.service().add(Kind::LoadBalancer, foreign(named, "them"));
        host.fake.service().unreadable = (!is_readable).then_some(theirs).into_iter().collect();
        let outcome = dataplane.change(vec![(service(1, []).0, None)]).unwrap();
        assert!(!outcome.drift, "{outcome:?}");
        for _ in 0..3 {
            let repair = dataplane.verify().unwrap();
            assert_eq!((repair.operations, repair.unrepaired), (0, None));
        }
        host.fake.service().remove(Kind::LoadBalancer, theirs);
        assert_eq!(dataplane.verify().unwrap().unrepaired, None);
        assert_eq!(endpoint(&host, "10.244.1.44"), None);
    }
}

/// The unreadable load balancer stays, but no longer names the endpoint.
#[test]
fn an_endpoint_that_something_unreadable_named_goes_in_the_end() {
    let host = Host::new(false, NEWEST);
    let mut dataplane = started(&host, &intent([service(1, [300]), service(2, [301])]));
    let named = endpoint(&host, "10.244.1.44").unwrap();
    let theirs = host.fake.service().add(Kind::LoadBalancer, foreign(named, "them"));
    host.fake.service().unreadable = [theirs].into();
    assert!(!dataplane.change(vec![(service(1, []).0, None)]).unwrap().drift);
    assert_eq!(endpoint(&host, "10.244.1.44"), Some(named));
    let pod = endpoint(&host, "10.244.1.5").unwrap();
    host.fake.service().replace(Kind::LoadBalancer, theirs, foreign(pod, "them"));
    for _ in 0..20 {
        assert_eq!(dataplane.verify().unwrap().unrepaired, None);
    }
    assert_eq!(endpoint(&host, "10.244.1.44"), None);
    assert!(ids(&host, Kind::LoadBalancer).contains(&theirs));
}

/// HNS is listed again in the middle of a Plan, and another program has the frontend of a later operation.
#[test]
fn a_frontend_that_others_took_since_the_plan_was_made_stays_theirs() {
    for version in [NEWEST, OLD] {
        for is_wanted in [true, false] {
            let host = Host::new(false, version);
            let mut dataplane = started(&host, &intent([service(1, [300]), service(2, [301])]));
            ids(&host, Kind::LoadBalancer)
                .into_iter()
                .for_each(|id| host.fake.service().remove(Kind::LoadBalancer, id));
            let pod = endpoint(&host, "10.244.1.5").unwrap();
            let mut document = foreign(pod, "them");
            document["FrontendVIPs"] = json!(["10.96.0.2"]);
            document["PortMappings"][0]["ExternalPort"] = json!(80);
            let theirs = host.fake.service().add(Kind::LoadBalancer, document);
            let before = host.fake.service().document(Kind::LoadBalancer, theirs).cloned();
            let (first, second) = (service(1, [302]), service(2, [303]));
            let second = (second.0, is_wanted.then_some(second.1));
            let outcome = dataplane.change(vec![(first.0, Some(first.1)), second.clone()]).unwrap();
            assert_eq!(host.fake.service().document(Kind::LoadBalancer, theirs).cloned(), before);
            assert_eq!(ids(&host, Kind::LoadBalancer).len(), 2, "the first Service is in force");
            let refused: Vec<_> = outcome.refused.iter().map(|it| it.service.clone()).collect();
            assert_eq!(refused, if is_wanted { vec![second.0] } else { vec![] });
            assert!(outcome.refused.iter().all(|it| it.reason.contains("belongs to them")), "{outcome:?}");
        }
    }
}

/// In any order of ids, our load balancer is seen, and the other program's is left alone.
#[test]
fn a_second_load_balancer_at_a_frontend_hides_none_of_ours() {
    for owner in ["them", "ferroxy"] {
        let host = Host::new(false, NEWEST);
        let mut dataplane = started(&host, &intent([service(1, [300])]));
        let ours = ids(&host, Kind::LoadBalancer).into_iter().next().unwrap();
        let document = host.fake.service().document(Kind::LoadBalancer, ours).unwrap().clone();
        let others: Vec<Guid> = (0..3)
            .map(|_| {
                let mut second = document.clone();
                second["Owner"] = json!(owner);
                host.fake.service().add(Kind::LoadBalancer, second)
            })
            .collect();
        let repair = dataplane.verify().unwrap();
        assert_eq!(repair.unrepaired, None);
        let is_theirs = owner == "them";
        assert_eq!(repair.operations, usize::from(!is_theirs), "{:?}", repair.examples);
        assert_eq!(ids(&host, Kind::LoadBalancer).len(), if is_theirs { 4 } else { 1 });
        if is_theirs {
            host.fake.service().remove(Kind::LoadBalancer, others[0]);
        }
        assert_eq!(dataplane.verify().unwrap().operations, 0);
        dataplane.change(vec![(service(1, []).0, None)]).unwrap();
        let left: BTreeSet<Guid> = others[1..].iter().copied().filter(|_| is_theirs).collect();
        assert_eq!(ids(&host, Kind::LoadBalancer), left);
    }
}

/// A route changes, and the endpoint behind it cannot be recreated: our load balancers keep using it.
#[test]
fn an_outdated_endpoint_that_others_name_takes_no_load_balancer_away() {
    let host = Host::new(true, NEWEST);
    let mut dataplane = started(&host, &intent([service(1, [2 * 256 + 7])]));
    let named = endpoint(&host, "10.244.2.7").unwrap();
    host.fake.service().add(Kind::LoadBalancer, foreign(named, "them"));
    dataplane.verify().unwrap();
    let changed = host.fake.service().document(Kind::Network, host.network).unwrap().to_string();
    let changed = serde_json::from_str(&changed.replace("172.18.0.3", "172.18.0.4")).unwrap();
    host.fake.service().replace(Kind::Network, host.network, changed);
    let repair = dataplane.verify().unwrap();
    assert_eq!((repair.operations, repair.unrepaired), (0, None));
    assert_eq!(ids(&host, Kind::LoadBalancer).len(), 2);
}

/// Another program changes an object of ours, in whatever way.
fn tampered(document: &Value, round: usize, other: Guid) -> Value {
    let mut changed = document.clone();
    match round {
        0 => changed["HostComputeEndpoints"] = json!([other]),
        1 => changed["PortMappings"][0]["InternalPort"] = json!(9),
        2 => changed["PortMappings"][0]["DistributionType"] = json!(2),
        3 => changed["PortMappings"][0]["Flags"] = json!(2),
        4 => changed["Flags"] = json!(1),
        _ => changed["SourceVIP"] = json!("192.0.2.9"),
    }
    changed
}

#[test]
fn what_others_change_is_repaired_by_the_next_verification() {
    for lacks_lists in [false, true] {
        let host = Host::new(false, NEWEST);
        host.fake.service().setup.lacks_lists = lacks_lists;
        let services = (1..=40u16).map(|number| service(number, [300 + number]));
        let mut dataplane = started(&host, &intent(services));
        let right = host.lines();
        let other = endpoint(&host, "10.244.1.5").unwrap();
        // Also what was written since the last look, and what was not.
        for round in 0..6 {
            let all: Vec<(Guid, Value)> =
                host.fake.service().documents(Kind::LoadBalancer).map(|(id, it)| (id, it.clone())).collect();
            for (id, document) in &all {
                host.fake.service().replace(Kind::LoadBalancer, *id, tampered(document, round, other));
            }
            let repair = dataplane.verify().unwrap();
            assert_eq!(repair.unrepaired, None);
            assert_eq!(host.lines(), right, "round {round}");
            assert_eq!(dataplane.verify().unwrap().operations, 0);
        }
        let changed = endpoint(&host, "10.244.1.50").unwrap();
        let mut document = host.fake.service().document(Kind::Endpoint, changed).unwrap().clone();
        document["MacAddress"] = json!("02-11-00-00-00-01");
        host.fake.service().replace(Kind::Endpoint, changed, document);
        assert_eq!(dataplane.verify().unwrap().unrepaired, None);
        assert_eq!(host.lines(), right);
    }
}

/// A change is noticed even if it could not be read at first, or if the lists do not have the object.
#[test]
fn what_a_list_does_not_vouch_for_is_read() {
    for is_unlisted in [false, true] {
        let host = Host::new(false, NEWEST);
        let services = (1..=40u16).map(|number| service(number, [300 + number]));
        let mut dataplane = started(&host, &intent(services));
        let right = host.lines();
        assert_eq!(dataplane.verify().unwrap().operations, 0);
        let balancers = ids(&host, Kind::LoadBalancer);
        if is_unlisted {
            host.fake.service().unlisted = balancers.clone();
        }
        for id in &balancers {
            let document = host.fake.service().document(Kind::LoadBalancer, *id).unwrap().clone();
            host.fake.service().replace(Kind::LoadBalancer, *id, tampered(&document, 1, Guid::ZERO));
        }
        if !is_unlisted {
            host.fake.service().unreadable = balancers.clone();
            dataplane.verify().unwrap();
            host.fake.service().unreadable.clear();
        }
        assert_eq!(dataplane.verify().unwrap().operations, 40, "unlisted: {is_unlisted}");
        assert_eq!(host.lines(), right);
        let changed = endpoint(&host, "10.244.1.50").unwrap();
        let mut document = host.fake.service().document(Kind::Endpoint, changed).unwrap().clone();
        document["MacAddress"] = json!("02-11-00-00-00-01");
        host.fake.service().replace(Kind::Endpoint, changed, document);
        if is_unlisted {
            host.fake.service().unlisted.insert(changed);
        } else {
            host.fake.service().unreadable = [changed].into();
            dataplane.verify().unwrap();
            host.fake.service().unreadable.clear();
        }
        assert_eq!(dataplane.verify().unwrap().unrepaired, None);
        assert_eq!(host.lines(), right);
    }
}

/// With twice as many objects, a verification makes the same calls, plus those for the share that it reads.
#[test]
fn a_verification_costs_a_list_and_a_share() {
    let calls = |count: u16| {
        let host = Host::new(false, NEWEST);
        let services = (1..=count).map(|number| service(number, [300 + number]));
        let mut dataplane = started(&host, &intent(services));
        let before = dataplane.calls().total();
        // All shares.
        for _ in 0..20 {
            assert_eq!(dataplane.verify().unwrap().operations, 0);
        }
        dataplane.calls().total() - before
    };
    let (small, large) = (calls(200), calls(400));
    // Open and query, for each load balancer and each endpoint, once in twenty verifications.
    assert_eq!(large - small, 200 * 2 * 2);
}

/// A list that fails once is asked for again.
#[test]
fn a_list_that_fails_once_is_not_missing() {
    let host = Host::new(false, NEWEST);
    let services = (1..=200).map(|number| service(number, [300 + number]));
    let mut dataplane = started(&host, &intent(services));
    let mut calls = || {
        let before = dataplane.calls().total();
        let repair = dataplane.verify();
        (dataplane.calls().total() - before, repair.is_ok())
    };
    host.fake.fail_first("/policylists/", Some(Code::SERVER_BUSY), 1);
    let (_, is_ok) = calls();
    assert!(!is_ok, "nothing is known");
    let (usual, is_ok) = calls();
    assert!(is_ok && usual < 200, "{usual} calls");
    host.fake.fail_first("/policylists/", None, 1);
    let (blind, is_ok) = calls();
    assert!(is_ok && blind > 400, "{blind} calls: each load balancer is read");
    let (usual, is_ok) = calls();
    assert!(is_ok && usual < 200, "{usual} calls");
}
