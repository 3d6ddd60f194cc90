//! Verdicts of probes on the page, with pods that really answer: which endpoint fails and why, as soon as the agent knows.

use ferroxy_lab::Protocol;
use serde_json::{Value, json};

use crate::support::health::well;
use crate::support::{self, Cluster, Service};
use crate::{URL, browser, loaded, start};

/// A Service that asks for probes as often as possible.
fn probed() -> Vec<Value> {
    let service = Service::new("web", &["10.96.0.80"]).port(Protocol::Tcp, 80, 8080);
    let mut objects = service.endpoints(&["a2", "b1", "b2"]).objects();
    objects[0]["metadata"]["annotations"] = json!({
        "ferroxy.io/probe": "tcp:9000",
        "ferroxy.io/probe-interval": "1s",
        "ferroxy.io/probe-timeout": "1s",
        "ferroxy.io/probe-failure-threshold": "2",
    });
    objects
}

/// The texts of the endpoints whose probes fail.
const FAILING: &str = "[...document.querySelectorAll('.end .why')].map(it => it.innerText)";
const USED: &str = "document.querySelectorAll('.end:not(.off)').length";

#[test]
fn an_endpoint_that_fails_its_probe_is_shown_with_the_reason() {
    let Some(network) = support::network() else { return };
    let (ka, cluster) = (network.namespace("ka").unwrap(), Cluster::new());
    let Some(mut browser) = browser::open(ka) else { return };
    let others = [well(&network, "a2"), well(&network, "b2")];
    let b1 = well(&network, "b1");
    cluster.write("web.yaml", &probed());
    let _agent = start(ka, &cluster, &[]);
    browser.go(URL);
    loaded(&mut browser, 1);
    browser.go(&format!("{URL}#/service/default/web"));
    browser.wait_for_text("#view-service .facts", "Probe: tcp:9000");
    browser.wait(&format!("{USED} === 3"));
    assert_eq!(browser.js(FAILING), json!([]));

    // The endpoint stops answering: the page shows that without a reload, once, with the reason and for how long.
    drop(b1);
    browser.wait_for_text(".end.off", "10.244.2.5");
    browser.wait(&format!("/^fails its probe: connection refused, for \\d+ .?s$/.test({FAILING}.join())"));
    assert_eq!(browser.js(USED), 2);
    browser.wait_for_text("#view-service .entries .row:has(.kind.warn)", "connection refused");
    assert_eq!(browser.text("#view-service .entries .kind.warn"), "verdict");
    browser.go(&format!("{URL}#/services"));
    browser.wait_for_text("#services .row .c-endpoints", "2/3");

    // The endpoint answers again.
    browser.go(&format!("{URL}#/service/default/web"));
    browser.wait(&format!("{USED} === 2"));
    let b1 = well(&network, "b1");
    browser.wait(&format!("{USED} === 3"));
    assert_eq!(browser.js(FAILING), json!([]));

    // All of them fail: they stay in use, and that is a problem.
    drop((b1, others));
    browser.wait_for_text("#view-service .finding", "more than half");
    browser.wait(&format!("{FAILING}.filter(it => it.includes('still in use')).length === 3"));
    assert_eq!(browser.js(USED), 3);
    browser.close();
}
