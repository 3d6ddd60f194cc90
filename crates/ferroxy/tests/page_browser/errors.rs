//! Errors that the page shows: no agent, no token, too many streams, no Service.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::{self, Cluster};
use crate::{Open, URL, browser, loaded, shop, start};

const STATE: &str = "document.body.dataset.connection";

#[test]
fn the_agent_goes_and_comes_back() {
    let Some(Open { mut browser, agent, cluster, node }) = Open::new() else { return };
    agent.kill();
    browser.wait(&format!("{STATE} === 'gone'"));
    browser.wait_for_text("#banner", "The agent does not answer");
    browser.wait_for_text("#banner", "may be outdated");
    assert_eq!(browser.text("#live"), "Reconnecting");
    // The last known Services are still shown, and marked as stale.
    loaded(&mut browser, shop::SERVICES);
    assert_ne!(browser.js("getComputedStyle(document.getElementById('view-services')).filter"), "none");
    cluster.write("more.yaml", &support::Service::new("more", &["10.96.0.99"]).objects());
    let _agent = start(&node, &cluster, &[]);
    browser.click("#banner button");
    browser.wait(&format!("{STATE} === 'live'"));
    browser.wait("document.getElementById('banner').hidden");
    loaded(&mut browser, shop::SERVICES + 1);
    browser.close();
}

#[test]
fn a_token_is_asked_for_and_kept() {
    let (Some(node), cluster) = (support::lonely_node(), shop_with_token()) else { return };
    let Some(mut browser) = browser::open(&node) else { return };
    let token_file = format!("--page-token-file={}", cluster.config().with_file_name("token").display());
    let _agent = start(&node, &cluster, &[&token_file]);
    browser.go(&format!("{URL}#/service/shop/cart"));
    browser.wait("document.activeElement.id === 'token-value'");
    assert_eq!(browser.js("document.getElementById('view-service').offsetHeight"), 0);
    browser.write("not-the-right-token");
    browser.press("Enter");
    browser.wait_for_text("#token-error", "does not accept");
    browser.write("open-sesame-open-sesame");
    browser.press("Enter");
    browser.wait_for_text("#view-service .port", "10.96.0.80:80");
    // The tab keeps the token.
    browser.go("about:blank");
    browser.go(URL);
    loaded(&mut browser, shop::SERVICES);
    // The agent's token changes: the page asks for the new one.
    fs::write(cluster.config().with_file_name("token"), "another-sesame-another\n").unwrap();
    browser.go("about:blank");
    browser.go(&format!("{URL}#/journal"));
    browser.wait("document.activeElement.id === 'token-value'");
    browser.close();
}

fn shop_with_token() -> Cluster {
    let cluster = crate::shop();
    fs::write(cluster.config().with_file_name("token"), "open-sesame-open-sesame\n").unwrap();
    cluster
}

#[test]
fn a_busy_agent_is_asked_again() {
    let Some(node) = support::lonely_node() else { return };
    let (Some(mut browser), cluster) = (browser::open(&node), crate::shop()) else { return };
    let _agent = start(&node, &cluster, &[]);
    // All streams that the agent allows.
    let streams: Vec<TcpStream> = (0..16).map(|_| node.run(open_stream).unwrap()).collect();
    browser.go(URL);
    browser.wait(&format!("{STATE} === 'busy'"));
    browser.wait_for_text("#banner", "The agent is busy");
    drop(streams);
    browser.wait(&format!("{STATE} === 'live'"));
    loaded(&mut browser, shop::SERVICES);
    browser.close();
}

fn open_stream() -> TcpStream {
    let mut stream = TcpStream::connect("127.0.0.1:10261").unwrap();
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut begun = [0; 15];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200 OK");
    stream
}

#[test]
fn a_cluster_without_services_is_explained() {
    let Some(node) = support::lonely_node() else { return };
    let (Some(mut browser), cluster) = (browser::open(&node), Cluster::new()) else { return };
    let _agent = start(&node, &cluster, &[]);
    browser.go(URL);
    browser.wait_for_text("#view-services .empty", "This agent knows no Service yet");
    browser.wait_for_text("#tile-sync", "In sync");
    cluster.write("shop.yaml", &shop::objects());
    loaded(&mut browser, shop::SERVICES);
    browser.close();
}
