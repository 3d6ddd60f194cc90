//! A cluster of 10,000 Services: only what is on the screen exists as rows, scrolling and typing change only these, and the rest is found
//! at once. What that takes is printed (`--nocapture`): docs/page.md has the numbers.

use serde_json::{Value, json};

use crate::browser::Browser;
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
    browser.js(include_str!("measure.js"));
    scroll(&mut browser, "scrolling as a wheel does, 120 pixels with each frame", 120, 200);
    let frames =
        scroll(&mut browser, "scrolling to the end, every row another one with each frame", 1200, u64::MAX);
    assert!(frames > 200, "{frames} frames");
    type_in(&mut browser, "service-777");
    browser.press("/");
    browser.write("service-7777");
    browser.wait_for_text("#services .summary", "1 of 10,000");
    assert_eq!(names(&mut browser), ["team-7/service-7777"]);
    // A change of one Service arrives in the view that is open.
    write_one(&cluster, 11);
    browser.wait_for_text("#services .row .c-endpoints", "11/11");
    browser.press("Enter");
    browser.wait("document.querySelectorAll('.end').length === 11");
    browser.close();
}

/// Does something, prints the times that it takes, and returns what does not depend on the machine: rows in the document, changes of the
/// document, rows that were added or moved in it, and how many long lists were sorted.
fn measured(browser: &mut Browser, what: &str, act: impl FnOnce(&mut Browser)) -> [u64; 4] {
    browser.js("measure()");
    let before = browser.processor_time();
    act(browser);
    let used = (browser.processor_time() - before) * 1000.0;
    let seen = browser.js("measure()");
    println!("{what}: {used:.1} ms of processor time, {seen}");
    ["rows", "changes", "moves", "longSorts"].map(|it| seen[it].as_u64().unwrap())
}

/// Scrolls from the top, `pixels` with each frame, at most `most` times. Returns the number of frames.
fn scroll(browser: &mut Browser, what: &str, pixels: u64, most: u64) -> u64 {
    browser.js("scrollTo(0, 0)");
    let mut frames = 0;
    let [rows, changes, moves, long_sorts] = measured(browser, what, |browser| {
        let counted = browser.js(&format!(
            "(async () => {{ let frames = 0; \
             while (frames < {most} && scrollY + innerHeight < document.documentElement.scrollHeight - 1) {{ \
             scrollBy(0, {pixels}); frames += 1; await new Promise(requestAnimationFrame); }} \
             return frames; }})()",
        ));
        frames = counted.as_u64().unwrap();
    });
    assert!(rows < 60, "{what}: {rows} rows");
    // A row has about 20 texts and attributes. Most do not change when the row is used for another Service.
    assert!(changes / frames < 20 * rows, "{what}: {changes} changes of the document in {frames} frames");
    // Rows that stay on the screen stay where they are in the document, too.
    assert!(moves / frames < 10, "{what}: {moves} moves of rows in {frames} frames");
    assert_eq!(long_sorts, 0);
    frames
}

/// One key after the other, as a person does.
fn type_in(browser: &mut Browser, text: &str) {
    browser.js("scrollTo(0, 0)");
    browser.press("/");
    for key in text.chars() {
        let [rows, changes, _, long_sorts] = measured(browser, &format!("typing {key}"), |browser| {
            browser.press(&key.to_string());
            browser.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))");
        });
        assert!(rows < 60 && changes < 60 * 20, "{key}: {rows} rows, {changes} changes of the document");
        assert_eq!(long_sorts, 0, "what is typed does not change the order");
    }
    browser.wait_for_text("#services .summary", "10 of 10,000");
    browser.press("Escape");
    loaded(browser, SERVICES);
}

/// All Services with one endpoint, but for the one that `write_one` writes.
fn write_all(cluster: &Cluster) {
    let others = (0..SERVICES).filter(|number| *number != ONE);
    write(cluster, "all.yaml", others.flat_map(|number| objects(number, 1)).collect());
}

/// In a file of its own, because the agent needs a while to read all Services again.
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
