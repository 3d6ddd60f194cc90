//! Objects that a hostile tenant may legally create: objects that lie, cost much, or claim addresses of other tenants. All are in the
//! tenant's own namespace, and every round changes each object a little, so that the agent has to process it again.

use std::net::Ipv6Addr;

use ferroxy_core::policy::Limits;
use serde_json::{Value, json};

/// The namespace of the tenant.
pub const TENANT: &str = "mallory";

const SLICES: usize = 60;
/// Close to the total length of annotations that the API server accepts for an object.
const ANNOTATION: usize = 200_000;
const ADDRESSES: usize = 30_000;
/// The number of ports and of addresses of one Service: its cost is their product.
const PORTS: usize = 600;

/// All attacks at once. `victims` are cluster IPs of other tenants.
pub fn objects(victims: &[&str], round: usize) -> Vec<Value> {
    let mut objects = vec![thief(victims, round), many_addresses(round), ports_times_addresses(round)];
    objects.extend((0..SLICES).map(|index| endless_annotation(index, round)));
    objects.extend([escapes(round), nonsense(round), of_many_addresses(round)]);
    objects
}

/// How many frontends of the tenant are left out because of the limits of a Service.
pub fn left_out() -> usize {
    let of_each = [ADDRESSES + 2, PORTS * (PORTS + 1)];
    of_each.map(|frontends| frontends - Limits::default().frontends).iter().sum()
}

/// Claims the cluster IPs of other tenants, and an older creation time than all of them.
fn thief(victims: &[&str], round: usize) -> Value {
    let mut service = service("thief", "10.96.250.1", round);
    service["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    service["spec"]["externalIPs"] = json!(victims);
    service["spec"]["ports"] = json!([{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}]);
    service
}

/// Addresses that collide under FxHash: their first eight bytes cancel its seed, and zero times anything is zero.
const COLLIDING: Ipv6Addr = Ipv6Addr::new(0xd308, 0xa385, 0x886a, 0x3f24, 0, 0, 0, 0);

/// The common prefix of all addresses of [`many_addresses`], as `nft` prints them.
pub const COLLIDING_PREFIX: &str = "d308:a385:886a:3f24:";

fn many_addresses(round: usize) -> Value {
    let mut service = service("many-addresses", "10.96.250.2", round);
    service["spec"]["clusterIPs"] = json!(["10.96.250.2", "fd00:10:96::fa02"]);
    service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    service["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
    // Each round has an address that the round before did not have.
    let addresses = (1 + round..=ADDRESSES + round).map(|it| u128::from(COLLIDING) + it as u128);
    service["spec"]["externalIPs"] = addresses.map(|it| Ipv6Addr::from(it).to_string()).collect();
    service
}

fn ports_times_addresses(round: usize) -> Value {
    let mut service = service("product", "10.96.250.3", round);
    let number = |index: usize| (index / 250, 1 + index % 250);
    let addresses = (0..PORTS).map(number).map(|(high, low)| format!("198.51.{}.{low}", 100 + high));
    service["spec"]["externalIPs"] = addresses.collect();
    let port = |index| json!({"name": format!("p{index}"), "protocol": "TCP", "port": 1 + index});
    service["spec"]["ports"] = (0..PORTS).map(port).collect();
    service
}

fn endless_annotation(index: usize, round: usize) -> Value {
    let mut slice = slice(&format!("annotated-{index}"), "annotated", round);
    let text = format!("{round}{}", "z".repeat(ANNOTATION));
    slice["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": text});
    slice
}

/// Escape sequences, which would clear the screen of a terminal and set its title.
fn escapes(round: usize) -> Value {
    let hostile = format!("\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}{round}\n");
    let mut slice = slice("escapes", "annotated", round);
    slice["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "namespace": TENANT, "name": hostile});
    slice["endpoints"][0]["nodeName"] = json!(hostile);
    slice["endpoints"][0]["zone"] = json!(hostile);
    slice
}

/// The endpoint behind the many addresses.
fn of_many_addresses(round: usize) -> Value {
    let mut slice = slice("many-addresses-v6", "many-addresses", round);
    slice["addressType"] = json!("IPv6");
    slice["endpoints"][0]["addresses"] = json!([format!("fd00:10:244:2::{:x}", 0x100 + round % 100)]);
    slice
}

/// Wrong in every endpoint.
fn nonsense(round: usize) -> Value {
    let mut slice = slice("nonsense", "many-addresses", round);
    let endpoint = |index: usize| json!({"addresses": [format!("not an address {index} {round}")]});
    slice["endpoints"] = (0..1000).map(endpoint).collect();
    slice
}

fn service(name: &str, address: &str, round: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": TENANT, "name": name, "labels": {"round": round.to_string()}},
        "spec": {
            "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": if round.is_multiple_of(2) { "Cluster" } else { "Local" },
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 80}],
        },
    })
}

fn slice(name: &str, service: &str, round: usize) -> Value {
    let address = format!("10.244.2.{}", 100 + round % 100);
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": TENANT, "name": name, "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
    })
}
