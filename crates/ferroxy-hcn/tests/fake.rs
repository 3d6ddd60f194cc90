//! The typed API over the service in memory: what it keeps, what it refuses, what it costs.
#![cfg(feature = "testing")]

use ferroxy_hcn::testing::{Fake, Setup};
use ferroxy_hcn::{
    Code, Endpoint, ErrorKind, Guid, IpConfiguration, Kind, LoadBalancer, PortMapping, Version,
    endpoint_flag, load_balancer_flag,
};

fn remote(ip: &str) -> Endpoint {
    Endpoint {
        ip_configurations: vec![IpConfiguration { ip_address: ip.into(), ..IpConfiguration::default() }],
        flags: endpoint_flag::REMOTE,
        owner: "me".into(),
        ..Endpoint::default()
    }
}

fn balancer(vip: &str, endpoints: &[Guid]) -> LoadBalancer {
    LoadBalancer {
        owner: "me".into(),
        host_compute_endpoints: endpoints.to_vec(),
        frontend_vips: vec![vip.into()],
        port_mappings: vec![PortMapping {
            protocol: 6,
            internal_port: 80,
            external_port: 80,
            ..PortMapping::default()
        }],
        ..LoadBalancer::default()
    }
}

const NEWEST: Version = Version::NEWEST;

#[test]
fn objects_are_created_found_changed_and_deleted() {
    let fake = Fake::of(NEWEST);
    let network = fake.add_network("cbr0", "L2Bridge");
    let mut hcn = fake.hcn();
    assert_eq!(hcn.version(), Ok(NEWEST));
    assert_eq!(hcn.network("CBR0").unwrap().unwrap().id, Some(network));
    assert_eq!(hcn.network("other"), Ok(None));
    let one = hcn.create_endpoint(network, Guid::derived("1"), &remote("10.0.0.1")).unwrap();
    let two = hcn.create_endpoint(network, Guid::derived("2"), &remote("10.0.0.2")).unwrap();
    assert_eq!((one, hcn.endpoints(network).unwrap().len()), (Guid::derived("1"), 2));
    let id = hcn.create_load_balancer(Guid::derived("lb"), &balancer("10.96.0.1", &[one])).unwrap();
    hcn.modify_load_balancer(id, &balancer("10.96.0.1", &[one, two])).unwrap();
    let found = hcn.load_balancer(id).unwrap().unwrap();
    assert_eq!((found.host_compute_endpoints, found.id), (vec![one, two], Some(id)));
    hcn.delete(Kind::LoadBalancer, id).unwrap();
    hcn.delete(Kind::LoadBalancer, id).unwrap();
    assert_eq!(hcn.load_balancer(id), Ok(None));
    drop(hcn);
    assert_eq!(fake.service().open_handles(), 0);
}

#[test]
fn what_hns_would_refuse_is_refused() {
    let fake = Fake::of("9.2".parse().unwrap());
    let network = fake.add_network("cbr0", "L2Bridge");
    let mut hcn = fake.hcn();
    let one = hcn.create_endpoint(network, Guid::derived("1"), &remote("10.0.0.1")).unwrap();
    let code = |error: ferroxy_hcn::Error| error.code;
    let again = hcn.create_endpoint(network, Guid::derived("2"), &remote("10.0.0.1"));
    assert_eq!(again.map_err(code), Err(Code::ALREADY_EXISTS));
    let mut create = |balancer: &LoadBalancer| {
        hcn.create_load_balancer(Guid::derived(&format!("{balancer:?}")), balancer).map_err(code)
    };
    assert_eq!(create(&balancer("10.96.0.1", &[Guid::derived("?")])), Err(Code::ENDPOINT_NOT_FOUND));
    assert_eq!(create(&balancer("10.96.0.1", &[])), Err(Code::INVALID_POLICY));
    let dsr =
        LoadBalancer { flags: load_balancer_flag::DIRECT_SERVER_RETURN, ..balancer("10.0.0.9", &[one]) };
    let mut sctp = balancer("10.96.0.1", &[one]);
    sctp.port_mappings[0].protocol = 132;
    let mut nowhere = balancer("10.96.0.1", &[one]);
    nowhere.port_mappings[0].internal_port = 0;
    assert_eq!([dsr, sctp].map(|it| create(&it)), [Err(Code::INVALID_POLICY); 2]);
    assert_eq!(create(&nowhere), Err(Code::INVALID_INTERNAL_PORT));
    create(&balancer("10.96.0.1", &[one])).unwrap();
    let same = LoadBalancer { owner: "you".into(), ..balancer("10.96.0.1", &[one]) };
    assert_eq!(create(&same), Err(Code::PORT_EXISTS));
    let modified = hcn.modify_load_balancer(Guid::derived("x"), &balancer("10.96.0.1", &[one]));
    assert_eq!(modified.map_err(code), Err(Code::NOT_FOUND));
    assert_eq!(hcn.delete(Kind::Endpoint, one).map_err(code), Err(Code::HAS_REFERENCES));
}

#[test]
fn a_service_that_does_not_run_leaves_everything_unknown() {
    let fake = Fake::of(NEWEST);
    fake.add_network("cbr0", "L2Bridge");
    fake.stop();
    let error = fake.hcn().network("cbr0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    fake.resume();
    assert!(fake.hcn().network("cbr0").unwrap().is_some());
}

#[test]
fn an_id_that_the_service_chooses_is_learnt() {
    let fake = Fake::new(Setup { chooses_ids: true, ..Setup::of(NEWEST) });
    let network = fake.add_network("cbr0", "L2Bridge");
    let mut hcn = fake.hcn();
    for ip in ["10.0.0.1", "10.0.0.2"] {
        let id = hcn.create_endpoint(network, Guid::derived(ip), &remote(ip)).unwrap();
        assert_ne!(id, Guid::derived(ip));
        assert!(hcn.endpoint(id).unwrap().is_some());
    }
}

#[test]
fn each_endpoint_costs_one_call() {
    let fake = Fake::of(NEWEST);
    let network = fake.add_network("cbr0", "L2Bridge");
    let mut hcn = fake.hcn();
    for number in 0..100 {
        let ip = format!("10.0.1.{number}");
        hcn.create_endpoint(network, Guid::derived(&ip), &remote(&ip)).unwrap();
    }
    // Two reads: the network is opened once, and the id that the first object got is queried once.
    assert_eq!((hcn.calls().writes, hcn.calls().reads), (100, 2));
}

/// A failed answer of the first version may have a code or none.
#[test]
fn a_failure_of_the_first_version_has_its_own_code() {
    let fake = Fake::of(Version::NEWEST);
    let mut hcn = fake.hcn();
    let busy = Some(Code::SERVER_BUSY);
    fake.fail_first("/globals/version", busy, 1);
    assert_eq!(hcn.version().unwrap_err().code, Code::SERVER_BUSY);
    fake.fail_first("/globals/version", None, 1);
    assert_eq!(hcn.version().unwrap_err().kind(), ErrorKind::Unknown, "every HNS has a version");
    assert_eq!(hcn.version().unwrap(), Version::NEWEST);
    fake.fail_first("/policylists/", busy, 1);
    assert_eq!(hcn.listed_load_balancers().unwrap_err().kind(), ErrorKind::Unknown);
    fake.fail_first("/policylists/", None, 1);
    assert_eq!(hcn.listed_load_balancers().unwrap_err().kind(), ErrorKind::NotImplemented);
    fake.fail_first("/endpoints/", Some(Code::ACCESS_DENIED), 1);
    assert_eq!(hcn.listed_endpoints().unwrap_err().kind(), ErrorKind::NotPermitted);
    assert_eq!(hcn.listed_endpoints().unwrap(), []);
}
