//! Arbitrary manifests through the whole pipeline: read, stored as facts, resolved, rendered and printed; then deleted: no
//! Service stays programmed.

#![no_main]

use ferroxy_core::policy::{DetectLocal, NodePortAddress};
use ferroxy_core::{Event, Facts, Family, Policy, resolve};
use ferroxy_nftables::{Settings, diff, render};
use ferroxy_source::manifest::read_str;
use ferroxy_source::{Key, Kind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (objects, _) = read_str("fuzz.yaml", text);
    if objects.is_empty() {
        return;
    }
    let keys: Vec<Key> = objects.iter().map(|object| object.key().clone()).collect();
    let mut facts = Facts::new(policy());
    objects.into_iter().for_each(|object| drop(facts.apply(object.into())));

    let (intent, _) = resolve::all(&facts);
    let state = render(&intent, &Settings::default(), &Family::ALL);
    assert!(diff(&state, &state).is_empty(), "a state differs from itself");
    assert!(state.to_string().contains("chain services"));

    keys.into_iter().for_each(|key| drop(facts.apply(gone(key))));
    let (intent, _) = resolve::all(&facts);
    assert!(intent.services.is_empty(), "left behind: {:?}", intent.services.keys());
});

fn policy() -> Policy {
    Policy {
        node_name: "ka".into(),
        detect_local: DetectLocal::NodeCidr,
        node_port_addresses: vec![NodePortAddress::Primary, NodePortAddress::Localhost],
        ..Policy::default()
    }
}

fn gone(Key { kind, namespace, name }: Key) -> Event {
    match kind {
        Kind::Service => Event::ServiceGone { namespace, name },
        Kind::Slice => Event::SliceGone { namespace, name },
        Kind::Node => Event::NodeGone { name },
        Kind::ServiceCidr => Event::ServiceCidrGone { name },
    }
}
