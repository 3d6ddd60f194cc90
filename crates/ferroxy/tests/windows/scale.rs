//! The cost of a large cluster, in calls of HNS: reads and writes.

use ferroxy_hcn::Kind;

use crate::node::{NEWEST, Node, service};

const SERVICES: u16 = 2000;

#[test]
#[ignore = "needs wine: make test-windows"]
fn two_thousand_services_cost_a_call_for_each_object_and_a_change_a_few() {
    let mut node = Node::new(NEWEST);
    // Verification must not be measured.
    node.sync_period = "1h";
    let endpoints = |number: u16| (5 * number..5 * number + 5).collect::<Vec<u16>>();
    let objects = (1..=SERVICES).flat_map(|number| service(number, &endpoints(number)).objects());
    node.api.put_all(objects.map(|object| object.to_string())).unwrap();
    node.start();
    let count = |node: &Node, kind: Kind| node.fake.service().documents(kind).count();
    // And the pod of this node.
    let all = usize::from(SERVICES) * 5 + 1;
    node.wait_for("the first sync", |node| {
        count(node, Kind::LoadBalancer) == usize::from(SERVICES) && count(node, Kind::Endpoint) == all
    });
    node.wait_for("it is healthy", |node| node.healthz().is_some_and(|(status, _)| status == 200));
    let calls = node.calls();
    assert!(calls <= u64::from(SERVICES) * 6 + 40, "{calls} calls for the first sync");

    let mut costs = Vec::new();
    for number in 1..=5 {
        let before = node.calls();
        let added = 60_000 + number;
        let mut changed = endpoints(number);
        let [high, low] = changed[0].to_be_bytes();
        let left = format!("10.200.{high}.{low}");
        changed[0] = added;
        node.put(&service(number, &changed));
        let [high, low] = added.to_be_bytes();
        let added = format!("10.200.{high}.{low}");
        // The endpoint that leaves is deleted last.
        node.wait_for("the change", |node| node.has_endpoint(&added) && !node.has_endpoint(&left));
        costs.push(node.calls() - before);
    }
    // Create an endpoint, open and modify the load balancer, delete an endpoint. The first time, also check that it was modified.
    assert!(costs[0] <= 8 && costs[1..].iter().all(|cost| *cost <= 5), "{costs:?}");
}
