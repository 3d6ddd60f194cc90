//! The writes that change the maps, in an order that is safe at every cut: a frontend is written after the slots that it counts,
//! and removed before them. Members of a pool exist as long as its slots. A frontend that lists its endpoints needs no order: one
//! write replaces all of them at once.

use std::fmt;

use crate::entry::{FrontendKey, FrontendValue, MemberKey, MemberValue, SlotKey, SlotValue};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Before the packets' dataplane changes: removes frontends that it will no longer serve.
    pub withdraw: Vec<Op>,
    /// After the packets' dataplane has changed: packets can reach everything that is translated.
    pub publish: Vec<Op>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    PutMember(MemberKey, MemberValue),
    PutSlot(SlotKey, SlotValue),
    PutFrontend(FrontendKey, FrontendValue),
    RemoveFrontend(FrontendKey),
    RemoveSlot(SlotKey),
    RemoveMember(MemberKey),
}

impl Plan {
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.withdraw.iter().chain(&self.publish)
    }

    pub fn len(&self) -> usize {
        self.withdraw.len() + self.publish.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::PutMember(key, value) => write!(
                f,
                "sockets: clients stay at {} of pool {:016x} for {} s",
                key.endpoint(),
                key.pool().0,
                value.seconds()
            ),
            Op::PutSlot(key, value) => {
                write!(
                    f,
                    "sockets: endpoint {} of pool {:016x} is {}",
                    key.slot(),
                    key.pool().0,
                    value.endpoint()
                )
            }
            Op::PutFrontend(key, value) => {
                let (count, clients) = (value.count(), value.clients().words());
                write!(f, "sockets: frontend {} has {count} endpoints for {clients}", key.address())?;
                let listed: Vec<String> = value.endpoints().map(|it| it.to_string()).collect();
                if listed.is_empty() { Ok(()) } else { write!(f, ": {}", listed.join(", ")) }
            }
            Op::RemoveFrontend(key) => write!(f, "sockets: no frontend {}", key.address()),
            Op::RemoveSlot(key) => {
                write!(f, "sockets: no endpoint {} of pool {:016x}", key.slot(), key.pool().0)
            }
            Op::RemoveMember(key) => {
                write!(f, "sockets: no client stays at {} of pool {:016x}", key.endpoint(), key.pool().0)
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops().try_for_each(|op| writeln!(f, "{op}"))
    }
}
