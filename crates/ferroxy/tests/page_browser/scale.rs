//! A cluster of 10,000 Services: only what is on the screen exists as rows, and the rest is found at once.

use serde_json::{Value, json};

use crate::support::{self, Cluster};
use crate::{URL, browser, loaded, names, start};

const SERVICES: usize = 10_000;
/// The Service that changes.
const ONE: usize = 7777;
const ROWS: &str = "document.querySelectorAll('#services .rows .row').length";

#[test]
fn ten_thousand_services_are_a_few_rows() {
    let Some(node) = support::lonely_node() else { return };
    let (Some(mut browser), cluster) = (browser::open(&node), Cluster::new()) else { return };
    write_all(&cluster);
    write_one(&cluster, 10);
    let _agent = start(&node, &cluster, &[]);
    browser.go(URL);
    loaded(&mut browser, SERVICES);
    let bounded = |rows: Value| assert!((10..60).contains(&rows.as_u64().unwrap()), "{rows} rows");
    bounded(browser.js(ROWS));
    browser.press("End");
    browser.wait("document.querySelector('#services .row[aria-selected=true]')?.ariaRowIndex === '10001'");
    assert_eq!(names(&mut browser).last().unwrap(), "team-9/service-9999");
    bounded(browser.js(ROWS));
    browser.js("scrollTo(0, 200000)");
    browser.wait("document.querySelector('#services .row[aria-rowindex=\"5265\"]')");
    bounded(browser.js(ROWS));
    browser.press("/");
    browser.write("service-7777");
    browser.wait_for_text("#services .summary", "1 of 10,000");
    assert_eq!(names(&mut browser), ["team-7/service-7777"]);
    // A change of one of them arrives where it is looked at.
    write_one(&cluster, 11);
    browser.wait_for_text("#services .row .c-endpoints", "11/11");
    browser.press("Enter");
    browser.wait("document.querySelectorAll('.end').length === 11");
    browser.close();
}

/// All Services with one endpoint, but for the one that `write_one` writes.
fn write_all(cluster: &Cluster) {
    let others = (0..SERVICES).filter(|number| *number != ONE);
    write(cluster, "all.yaml", others.flat_map(|number| objects(number, 1)).collect());
}

/// In a file of its own: to read all of them again takes a while.
fn write_one(cluster: &Cluster, endpoints: usize) {
    write(cluster, "one.yaml", objects(ONE, endpoints).into());
}

fn write(cluster: &Cluster, file: &str, objects: Vec<Value>) {
    cluster.write_text(file, &json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string());
}

fn objects(number: usize, endpoints: usize) -> [Value; 2] {
    let (namespace, name) = (format!("team-{}", number % 10), format!("service-{number:04}"));
    let address = format!("10.96.{}.{}", number / 250 + 1, number % 250 + 1);
    let endpoint = |index| {
        let address = format!("10.244.{}.{}", number / 250 + 1, (number + index) % 250 + 1);
        json!({ "addresses": [address], "conditions": { "ready": true }, "nodeName": "kb" })
    };
    let endpoints: Vec<Value> = (0..endpoints).map(endpoint).collect();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": namespace, "name": name },
        "spec": {
            "clusterIP": address, "ipFamilies": ["IPv4"],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080 }],
        },
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace, "name": format!("{name}-1"),
            "labels": { "kubernetes.io/service-name": name },
        },
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    });
    [service, slice]
}
