//! Which client asks which frontend, and the expected answers: for the printed tables, and for the test `make demo`.
//! `shop.yaml` says why the frontends exist; `asking.rs` asks and compares.

use ferroxy_lab::Protocol;

use Expected::{All, Dropped, One, Refused};

#[derive(Debug)]
pub struct Question {
    pub from: &'static str,
    pub service: &'static str,
    pub frontend: &'static str,
    pub protocol: Protocol,
    pub address: &'static str,
    pub expected: Expected,
    pub why: &'static str,
}

/// A pod, and the source address it must see.
pub type PodAndSource = (&'static str, &'static str);

#[derive(Debug)]
pub enum Expected {
    /// All of these in turn, and no other pod.
    All(&'static [PodAndSource]),
    /// Always the same one of these.
    One(&'static [PodAndSource]),
    Refused,
    Dropped,
}

pub const INSIDE: [Question; 7] = [
    tcp("cart-1", "shop/front", "cluster IP", "10.96.0.10:80")
        .reaches(All(&[("web-1", "10.244.1.21"), ("web-2", "10.244.1.21")]))
        .because("source kept: from a pod"),
    tcp("cart-1", "shop/front", "load balancer", "203.0.113.10:80")
        .reaches(All(&[("web-1", "10.244.1.21"), ("web-2", "10.244.1.21")]))
        .because("source kept: from a pod"),
    tcp("node-1", "shop/api", "cluster IP", "10.96.0.30:80")
        .reaches(All(&[("api-1", "10.244.1.1"), ("api-2", "172.18.0.11"), ("api-3", "172.18.0.11")]))
        .because("masqueraded: from a node"),
    udp("cart-1", "shop/dns", "cluster IP", "10.96.0.53:53")
        .reaches(All(&[("dns-1", "10.244.1.21")]))
        .because("source kept, over UDP"),
    udp("cart-1", "shop/dns", "cluster IP", "[fd00:96::53]:53")
        .reaches(All(&[("dns-1", "fd00:244:1::15")]))
        .because("source kept, over IPv6"),
    udp("dns-1", "shop/dns", "cluster IP", "10.96.0.53:53")
        .reaches(All(&[("dns-1", "10.244.2.1")]))
        .because("masqueraded: asks itself"),
    tcp("web-2", "shop/reviews", "cluster IP", "10.96.0.70:80")
        .reaches(Refused)
        .because("broken: explained below"),
];

pub const OUTSIDE: [Question; 7] = [
    tcp("visitor", "shop/front", "load balancer", "203.0.113.10:80")
        .reaches(All(&[("web-1", "172.18.0.100")]))
        .because("source kept: policy Local"),
    tcp("visitor", "shop/front", "node port", "172.18.0.12:30010")
        .reaches(All(&[("web-2", "172.18.0.100")]))
        .because("source kept: policy Local"),
    tcp("visitor", "shop/api", "node port", "172.18.0.12:30080")
        .reaches(All(&[("api-1", "172.18.0.12"), ("api-2", "10.244.2.1"), ("api-3", "10.244.2.1")]))
        .because("masqueraded: policy Cluster"),
    tcp("visitor", "shop/partner", "external IP", "198.51.100.20:8080")
        .reaches(All(&[("api-1", "10.244.1.1"), ("api-2", "172.18.0.11")]))
        .because("masqueraded: policy Cluster"),
    tcp("office", "shop/admin", "load balancer", "203.0.113.40:80")
        .reaches(All(&[("api-1", "10.244.1.1")]))
        .because("in the source ranges"),
    tcp("visitor", "shop/admin", "load balancer", "203.0.113.40:80")
        .reaches(Dropped)
        .because("not in the source ranges"),
    tcp("visitor", "shop/admin", "node port", "172.18.0.11:30040")
        .reaches(All(&[("api-1", "10.244.1.1")]))
        .because("node ports have no ranges"),
];

/// `shop/cart` has the affinity ClientIP.
pub const AFFINITY: [Question; 3] = [
    tcp("web-1", "shop/cart", "cluster IP", "10.96.0.20:80")
        .reaches(One(&[("cart-1", "10.244.1.11"), ("cart-2", "10.244.1.11")]))
        .because("affinity ClientIP"),
    tcp("api-2", "shop/cart", "cluster IP", "10.96.0.20:80")
        .reaches(One(&[("cart-1", "10.244.2.32"), ("cart-2", "10.244.2.32")]))
        .because("affinity ClientIP"),
    tcp("dns-1", "shop/cart", "cluster IP", "10.96.0.20:80")
        .reaches(One(&[("cart-1", "10.244.2.53"), ("cart-2", "10.244.2.53")]))
        .because("affinity ClientIP"),
];

/// Completed by `reaches` and `because`, so that a question reads like a sentence.
const fn tcp(
    from: &'static str,
    service: &'static str,
    frontend: &'static str,
    address: &'static str,
) -> Question {
    Question { from, service, frontend, protocol: Protocol::Tcp, address, expected: Refused, why: "" }
}

const fn udp(
    from: &'static str,
    service: &'static str,
    frontend: &'static str,
    address: &'static str,
) -> Question {
    Question { protocol: Protocol::Udp, ..tcp(from, service, frontend, address) }
}

impl Question {
    const fn reaches(self, expected: Expected) -> Question {
        Question { expected, ..self }
    }

    const fn because(self, why: &'static str) -> Question {
        Question { why, ..self }
    }
}
