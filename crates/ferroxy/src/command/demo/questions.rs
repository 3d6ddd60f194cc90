//! Who asks which frontend, and which answers are right. The same questions make the tables people see and the test
//! that `make demo` is. How the frontends come about stands in `shop.yaml`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use ferroxy_lab::{Effort, Network, Probe, Protocol, Seen};
use serde::Serialize;

use crate::output::{Paint, Table};

#[derive(Debug)]
pub struct Question {
    pub from: &'static str,
    pub frontend: &'static str,
    pub service: &'static str,
    pub protocol: Protocol,
    pub address: &'static str,
    pub expected: Expected,
    pub why: &'static str,
}

/// A pod, and the source address it must see.
pub type PodAndSource = (&'static str, &'static str);

#[derive(Debug)]
pub enum Expected {
    /// All of these in turn, and nobody else.
    All(&'static [PodAndSource]),
    /// Always the same one of these.
    One(&'static [PodAndSource]),
    Refused,
    Dropped,
}

/// A question with what came back.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub from: &'static str,
    pub frontend: &'static str,
    pub service: String,
    pub protocol: String,
    pub address: &'static str,
    pub answers: Vec<PodAnswer>,
    /// `refused` or `timeout`, where there was no answer.
    pub failures: Vec<String>,
    pub why: &'static str,
    pub as_expected: bool,
    pub expected: String,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct PodAnswer {
    pub pod: String,
    /// The address the request came from, as the pod saw it.
    pub source: String,
    pub count: usize,
}

use Expected::{All, Dropped, One, Refused};
use Protocol::{Tcp, Udp};

pub const INSIDE: [Question; 7] = [
    Question {
        from: "cart-1",
        frontend: "cluster IP",
        service: "front",
        protocol: Tcp,
        address: "10.96.0.10:80",
        expected: All(&[("web-1", "10.244.1.21"), ("web-2", "10.244.1.21")]),
        why: "pods are seen as who they are",
    },
    Question {
        from: "cart-1",
        frontend: "load balancer",
        service: "front",
        protocol: Tcp,
        address: "203.0.113.10:80",
        expected: All(&[("web-1", "10.244.1.21"), ("web-2", "10.244.1.21")]),
        why: "pods take a short cut: no way outside",
    },
    Question {
        from: "node-1",
        frontend: "cluster IP",
        service: "api",
        protocol: Tcp,
        address: "10.96.0.30:80",
        expected: All(&[("api-1", "10.244.1.1"), ("api-2", "172.18.0.11"), ("api-3", "172.18.0.11")]),
        why: "the node's own address towards the pod",
    },
    Question {
        from: "cart-1",
        frontend: "cluster IP",
        service: "dns",
        protocol: Udp,
        address: "10.96.0.53:53",
        expected: All(&[("dns-1", "10.244.1.21")]),
        why: "UDP",
    },
    Question {
        from: "cart-1",
        frontend: "cluster IP",
        service: "dns",
        protocol: Udp,
        address: "[fd00:10:96::53]:53",
        expected: All(&[("dns-1", "fd00:10:244:1::15")]),
        why: "the same Service over IPv6",
    },
    Question {
        from: "dns-1",
        frontend: "cluster IP",
        service: "dns",
        protocol: Udp,
        address: "10.96.0.53:53",
        expected: All(&[("dns-1", "10.244.2.1")]),
        why: "itself: answers must come back by the node",
    },
    Question {
        from: "web-2",
        frontend: "cluster IP",
        service: "reviews",
        protocol: Tcp,
        address: "10.96.0.70:80",
        expected: Refused,
        why: "broken on purpose: explained below",
    },
];

pub const OUTSIDE: [Question; 7] = [
    Question {
        from: "visitor",
        frontend: "load balancer",
        service: "front",
        protocol: Tcp,
        address: "203.0.113.10:80",
        expected: All(&[("web-1", "172.18.0.100")]),
        why: "policy Local: source kept, pod on node-1",
    },
    Question {
        from: "visitor",
        frontend: "node port",
        service: "front",
        protocol: Tcp,
        address: "172.18.0.12:30010",
        expected: All(&[("web-2", "172.18.0.100")]),
        why: "policy Local: source kept, pod on node-2",
    },
    Question {
        from: "visitor",
        frontend: "node port",
        service: "api",
        protocol: Tcp,
        address: "172.18.0.12:30080",
        expected: All(&[("api-1", "172.18.0.12"), ("api-2", "10.244.2.1"), ("api-3", "10.244.2.1")]),
        why: "policy Cluster: any pod, source is node-2",
    },
    Question {
        from: "visitor",
        frontend: "external IP",
        service: "partner",
        protocol: Tcp,
        address: "198.51.100.20:8080",
        expected: All(&[("api-1", "10.244.1.1"), ("api-2", "172.18.0.11")]),
        why: "policy Cluster: any pod, source is node-1",
    },
    Question {
        from: "office",
        frontend: "load balancer",
        service: "admin",
        protocol: Tcp,
        address: "203.0.113.40:80",
        expected: All(&[("api-1", "10.244.1.1")]),
        why: "in loadBalancerSourceRanges",
    },
    Question {
        from: "visitor",
        frontend: "load balancer",
        service: "admin",
        protocol: Tcp,
        address: "203.0.113.40:80",
        expected: Dropped,
        why: "not in loadBalancerSourceRanges",
    },
    Question {
        from: "visitor",
        frontend: "node port",
        service: "admin",
        protocol: Tcp,
        address: "172.18.0.11:30040",
        expected: All(&[("api-1", "10.244.1.1")]),
        why: "source ranges bind the load balancer only",
    },
];

/// Ten requests of each client.
pub const AFFINITY: [Question; 3] = [sticky("web-1", "10.244.1.11"), sticky("api-2", "10.244.2.32"), {
    Question { from: "dns-1", expected: One(&[("cart-1", "10.244.2.53"), ("cart-2", "10.244.2.53")]), ..sticky("", "") }
}];
