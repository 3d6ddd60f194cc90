//! The operations that turn one State into another, in an order that is safe at every cut.
//!
//! A load balancer names only endpoints that exist: endpoints are created first and deleted last. Load balancers are created
//! and changed before others are deleted. Endpoints that must be recreated follow the new endpoints, one group after the other:
//! at most the load balancers of one group are absent at a time, and only those without other endpoints.

use std::fmt;
use std::net::IpAddr;

use crate::state::{Balancer, Endpoint, Frontend};
use crate::text;

#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    CreateEndpoint(IpAddr, Endpoint),
    CreateBalancer(Frontend, Balancer),
    /// In place if HNS can, and only endpoints differ; else deleted and created back to back.
    ChangeBalancer(Frontend, Balancer),
    DeleteBalancer(Frontend),
    DeleteEndpoint(IpAddr),
}

impl Op {
    pub fn frontend(&self) -> Option<Frontend> {
        match self {
            Op::CreateBalancer(frontend, _)
            | Op::ChangeBalancer(frontend, _)
            | Op::DeleteBalancer(frontend) => Some(*frontend),
            Op::CreateEndpoint(..) | Op::DeleteEndpoint(_) => None,
        }
    }

    pub fn is_removal(&self) -> bool {
        matches!(self, Op::DeleteBalancer(_) | Op::DeleteEndpoint(_))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::CreateEndpoint(ip, endpoint) => write!(f, "create {}", text::endpoint(*ip, endpoint)),
            Op::CreateBalancer(at, balancer) => write!(f, "create {}", text::balancer(at, balancer)),
            Op::ChangeBalancer(at, balancer) => write!(f, "change {}", text::balancer(at, balancer)),
            Op::DeleteBalancer(at) => write!(f, "delete loadbalancer {}", text::frontend(at)),
            Op::DeleteEndpoint(ip) => write!(f, "delete endpoint {ip}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    ops: Vec<Op>,
}

impl Plan {
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    pub fn len(&self) -> usize {
        self.ops.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The Plan without its removals.
    pub fn keeping_everything(mut self) -> Plan {
        self.ops.retain(|op| !op.is_removal());
        self
    }
}

impl FromIterator<Op> for Plan {
    fn from_iter<I: IntoIterator<Item = Op>>(ops: I) -> Plan {
        Plan { ops: ops.into_iter().collect() }
    }
}

/// A line for each operation.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops.iter().try_for_each(|op| writeln!(f, "{op}"))
    }
}
