//! A dropped network leaves no thread and no descriptor. In a file, and so a process, of its own: it counts them.

use ferroxy_lab::load::LoadPlan;
use ferroxy_lab::{Capability, Load, Network, Protocol, require};

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn a_dropped_network_leaves_nothing() {
    if !require(&[Capability::NetworkNamespaces, Capability::Bridges]) {
        return;
    }
    let counts = || (count("/proc/self/task"), count("/proc/self/fd"));
    // The first thread of a process may open a descriptor or two that stay open.
    drop(Network::conformance().expect("the network"));
    let before = counts();
    let network = Network::conformance().expect("the network");
    let plan = LoadPlan::back_to_back(Protocol::Tcp, "10.244.1.5:80".parse().expect("an address"));
    let load = Load::start(network.namespace("b1").expect("b1"), plan).expect("load");
    let during = counts();
    assert!(during.0 > before.0 && during.1 > before.1, "{before:?}, then {during:?}");
    drop(load);
    drop(network);
    assert_eq!(counts(), before);
}
