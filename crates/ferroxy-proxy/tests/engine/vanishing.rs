//! Peers that vanish: no packet of theirs arrives any more, and nothing reports it.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use ferroxy_lab::{Capability, Namespace, require};
use ferroxy_proxy::{Frontend, Pool, Settings};

use crate::peers::{POOL, Proxy, Server, ask, localhost, settings};

/// `down` cuts every connection of the namespace: packets are lost, and no socket is closed or reset.
fn set_loopback(state: &str) {
    assert!(Command::new("ip").args(["link", "set", "lo", state]).status().unwrap().success());
}

/// A connection of peers that vanish ends. `unsent`: the client sends more meanwhile.
fn ends(settings: Settings, unsent: bool) {
    set_loopback("up");
    let server = Server::echo();
    let proxy = Proxy::start(settings, Frontend::tcp(localhost()).to(POOL), Pool::of([server.address]));
    let mut client = proxy.connect();
    assert_eq!(ask(&mut client, b"hello").unwrap(), b"hello");
    proxy.wait_until("the connection is open", |it| it.active == 1);
    set_loopback("down");
    if unsent {
        client.write_all(b"nobody receives this").unwrap();
    }
    proxy.wait_until("the connection ends", |it| it.active == 0);
}

#[test]
fn keepalive_notices_peers_that_have_vanished() {
    if !require(&[Capability::NetworkNamespaces]) {
        return;
    }
    let namespace = Namespace::new("vanish").unwrap();
    let keepalive = Some(Duration::from_secs(1));
    namespace.run(|| ends(Settings { keepalive, ..settings() }, false)).unwrap();
    let user_timeout = Some(Duration::from_secs(2));
    namespace.run(|| ends(Settings { keepalive, user_timeout, ..settings() }, true)).unwrap();
}
