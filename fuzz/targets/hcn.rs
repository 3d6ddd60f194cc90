//! Arbitrary text as answers of the Host Networking Service: documents are read or refused; a document that was read gives the
//! same value when it is written and read again, and the dataplane can interpret it.

#![no_main]

use ferroxy_hcn::{Endpoint, Guid, Listed, LoadBalancer, Network};
use ferroxy_kernelspace::dataplane::document::{read_balancer, read_endpoint, write_balancer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(balancer) = serde_json::from_str::<LoadBalancer>(text) {
        let written = serde_json::to_string(&balancer).expect("a document can be written");
        assert_eq!(serde_json::from_str::<LoadBalancer>(&written).expect("and read"), balancer);
        let seen = read_balancer(Guid::ZERO, &balancer);
        if let Some(at) = seen.frontend {
            let ours = write_balancer(&at, &seen.balancer, seen.ids.clone());
            assert_eq!(read_balancer(Guid::ZERO, &ours).frontend, Some(at));
        }
    }
    if let Ok(endpoint) = serde_json::from_str::<Endpoint>(text) {
        let written = serde_json::to_string(&endpoint).expect("a document can be written");
        assert_eq!(serde_json::from_str::<Endpoint>(&written).expect("and read"), endpoint);
        drop(read_endpoint(Guid::ZERO, Guid::ZERO, &endpoint));
    }
    if let Ok(network) = serde_json::from_str::<Network>(text) {
        drop(network.remote_subnets().collect::<Vec<_>>());
    }
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(text) {
        // As an entry of a list of the first version of the API.
        if let Some(listed) = Listed::balancer(value.clone()) {
            drop(read_balancer(listed.id, &listed.document));
        }
        if let Some(listed) = Listed::endpoint(value) {
            drop(read_endpoint(Guid::ZERO, listed.id, &listed.document));
        }
    }
    let _ = text.parse::<Guid>();
});
