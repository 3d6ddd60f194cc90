//! Arbitrary bytes as answers in protobuf, of every kind: bodies and frames of a watch. Reading is deterministic, and the result is
//! not larger than the bounds allow.

#![no_main]

use ferroxy_core::Event;
use ferroxy_source::Kind;
use ferroxy_source::protobuf::{event_of_frame, events_of_body};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for kind in [Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::Slice] {
        let events = events_of_body(kind, bytes);
        assert_eq!(events, events_of_body(kind, bytes), "a body was read in two ways");
        events.iter().flatten().for_each(|event| check(event, bytes.len()));
        // Seeds are recorded streams, where the length precedes each frame.
        for frame in [bytes, bytes.get(4..).unwrap_or_default()] {
            let event = event_of_frame(kind, frame);
            assert_eq!(event, event_of_frame(kind, frame), "a frame was read in two ways");
            event.iter().flatten().for_each(|event| check(event, frame.len()));
        }
    }
});

/// Every entry of a list takes two bytes at least.
fn check(event: &Event, length: usize) {
    let entries = match event {
        Event::Service(service) => service.ports.len() + service.ingress.len() + service.cluster_ips.len(),
        Event::Slice(slice) => slice.endpoints.iter().map(|it| 1 + it.addresses.len()).sum(),
        Event::Node(node) => node.addresses.len() + node.taints.len(),
        Event::ServiceCidr(cidr) => cidr.cidrs.len(),
        other => panic!("no object is {other:?}"),
    };
    assert!(entries * 2 <= length, "{entries} entries from {length} bytes");
}
