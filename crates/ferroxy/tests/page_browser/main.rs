//! The node's page in a browser: a real agent, headless Chromium beside it, and everything that a person does there. What the
//! API answers is tested in `tests/node/page.rs`.
//!
//! `UPDATE_SCREENSHOTS=1 cargo test -p ferroxy --test page_browser` writes the pictures of docs/page.md.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod browser;
mod errors;
mod looks;
mod phone;
mod policy;
mod probes;
mod scale;
mod shop;
#[path = "../support/mod.rs"]
mod support;
mod views;

use std::ffi::OsString;

use ferroxy_lab::Namespace;
use ferroxy_netlink::route::Address;

use browser::Browser;
use support::{Agent, Cluster, run_arguments};

const URL: &str = "http://127.0.0.1:10261/";

/// An agent with the shop's manifests, and a browser that has loaded its page.
struct Open {
    // Dropped in this order.
    browser: Browser,
    agent: Agent,
    cluster: Cluster,
    node: Namespace,
}

impl Open {
    /// `None` where this machine cannot do it: the test must return.
    fn new() -> Option<Open> {
        let (node, cluster) = (support::lonely_node()?, shop());
        add_node_address(&node);
        let mut browser = browser::open(&node)?;
        let agent = start(&node, &cluster, &[]);
        browser.go(URL);
        loaded(&mut browser, shop::SERVICES);
        Some(Open { browser, agent, cluster, node })
    }
}

/// The address of node `ka`, so that it has node ports.
fn add_node_address(node: &Namespace) {
    let mut connection = node.connection().unwrap();
    let link = connection.link("lo").unwrap().index;
    connection.add_address(Address { link, ip: "172.18.0.2".parse().unwrap(), prefix_length: 32 }).unwrap();
}

/// The shop as manifests.
fn shop() -> Cluster {
    let cluster = Cluster::new();
    cluster.write("shop.yaml", &shop::objects());
    cluster
}

fn start(node: &Namespace, cluster: &Cluster, more: &[&str]) -> Agent {
    let arguments = run_arguments(&cluster.manifests(), &cluster.config()).into_iter();
    let page = ["--page-address=127.0.0.1:10261".into()];
    Agent::start_with(node, arguments.chain(page).chain(more.iter().map(OsString::from)))
}

/// Waits until the list has that many Services.
fn loaded(browser: &mut Browser, services: usize) {
    browser.wait(&format!(
        "document.querySelector('#services .summary').innerText.replace(',', '') === '{services} Service{}'",
        if services == 1 { "" } else { "s" }
    ));
}

/// The names in the table, from the top.
fn names(browser: &mut Browser) -> Vec<String> {
    let rows = "[...document.querySelectorAll('#services .rows .row')]\
        .sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map(row => row.dataset.name)";
    let names = browser.js(rows);
    names.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}
