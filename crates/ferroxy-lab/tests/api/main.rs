//! The test API server, as a client sees it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod encodings;
mod faults;
mod hosts;
mod logins;
mod serving;

use ferroxy_lab::api::{Options, Server};
use serde_json::{Value, json};

use client::Client;

const SERVICES: &str = "/api/v1/services";

const STREAM: &str = "/api/v1/services?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

fn service(name: &str) -> Value {
    json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"},
           "spec": {"clusterIP": "10.96.0.80"}})
}

/// A server with the Services a, b, c, d, whose versions are 2 to 5; and a client.
fn four_services() -> (Server, Client) {
    let server = Server::start(Options::default()).unwrap();
    for name in ["a", "b", "c", "d"] {
        server.put(&service(name)).unwrap();
    }
    let client = Client::of(&server);
    (server, client)
}
