//! How often HNS refused a load balancer, as the original's metrics count it.

use std::collections::BTreeMap;

use ferroxy_core::Family;
use ferroxy_dataplane::capability::RefusalCount;
use ferroxy_hcn::{Code, Error};

use crate::state::Role;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Create,
    Update,
    Delete,
}

impl Call {
    /// The key of its metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Call::Create => "lb_create",
            Call::Update => "lb_update",
            Call::Delete => "lb_delete",
        }
    }
}

type Key = (Call, Family, Role, &'static str);

/// Bounded: keys have few values.
#[derive(Debug, Clone, Default)]
pub struct Failures {
    counts: BTreeMap<Key, u64>,
}

impl Failures {
    pub fn count(&mut self, call: Call, family: Family, role: Role, error: &Error) {
        *self.counts.entry((call, family, role, label(error.code))).or_default() += 1;
    }

    pub fn read(&self) -> Vec<RefusalCount> {
        let labelled = |((call, family, role, error), count): (&Key, &u64)| RefusalCount {
            key: call.as_str(),
            family: *family,
            labels: vec![("lb_type", role.as_str()), ("error", error)],
            count: *count,
        };
        self.counts.iter().map(labelled).collect()
    }
}

/// The original's words for errors.
fn label(code: Code) -> &'static str {
    match code {
        Code::NETWORK_NOT_FOUND => "network_not_found",
        Code::PORT_EXISTS | Code::ALREADY_EXISTS | Code::POLICY_EXISTS => "port_already_exists",
        Code::NOT_IMPLEMENTED => "not_implemented",
        Code::INVALID_IP => "invalid_ip",
        _ => "other",
    }
}
