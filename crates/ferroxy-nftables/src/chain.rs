//! The chains that exist on demand: their names, and the numbers of treatments.
//!
//! Their rules are in `program.rs`. A chain exists while elements or other chains refer to it.

use std::fmt;

use crate::element::{Element, Key, Scope, SetId, Value};
use crate::part::Part;

/// A chain that exists on demand. Its rules refer only to chains before it in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainId {
    /// Translates to this port of the packet's destination address.
    To(u16),
    /// Remembers the endpoint of a client for this many seconds.
    Learn(Scope, u32),
    /// Sends a client to the endpoint it had.
    Recall(Scope, Pool),
    /// One of the treatments that a frontend can have.
    Treat(Treatment),
}

/// A set of endpoints of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pool {
    /// Those that serve the frontend; for external traffic policy Local, those that serve pods and this host.
    Main,
    /// External traffic policy Local: those on this node.
    Local,
}

/// What happens to a new connection. Its number, [`Treatment::code`], is the value of a frontend's element; the kernel takes it
/// for a packet priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Treatment {
    pub kind: Kind,
    pub scope: Scope,
    /// The number of endpoints to pick from.
    pub count: u16,
    /// Which of the maps of endpoints has them.
    pub part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Pick(Pool),
    /// External traffic policy Cluster: masquerade, then pick.
    External,
    /// External traffic policy Local: depends on the client.
    ExternalLocal,
    /// The same four with session affinity.
    Sticky(Pool),
    StickyExternal,
    StickyExternalLocal,
}

/// The first kind in a code, and the offset of the kinds for node ports.
const FIRST_KIND: u32 = 1;
const NODE_PORT_KINDS: u32 = 0x10;

/// The place of the part in a code, above the kinds, and a bit beside it: numbers of earlier versions, whose endpoints were in one map,
/// have neither. So an upgrade never takes the treatment of an earlier version for one of ours.
const PART_SHIFT: u32 = 8;
const PARTED: u32 = 0x10;

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Pick(Pool::Main),
        Kind::Pick(Pool::Local),
        Kind::External,
        Kind::ExternalLocal,
        Kind::Sticky(Pool::Main),
        Kind::Sticky(Pool::Local),
        Kind::StickyExternal,
        Kind::StickyExternalLocal,
    ];

    fn word(self) -> &'static str {
        match self {
            Kind::Pick(Pool::Main) => "pick",
            Kind::Pick(Pool::Local) => "local-pick",
            Kind::External => "external",
            Kind::ExternalLocal => "external-local",
            Kind::Sticky(Pool::Main) => "sticky",
            Kind::Sticky(Pool::Local) => "sticky-local",
            Kind::StickyExternal => "sticky-external",
            Kind::StickyExternalLocal => "sticky-external-local",
        }
    }
}

impl Treatment {
    /// Of the frontend with this key.
    pub fn new(kind: Kind, scope: Scope, frontend: &Key, count: usize) -> Treatment {
        let part = Part::of(frontend);
        Treatment { kind, scope, count: count.min(u16::MAX.into()) as u16, part }
    }

    /// The same frontends and count, another kind.
    pub fn with(self, kind: Kind) -> Treatment {
        Treatment { kind, ..self }
    }

    /// `KIND:COUNT`, as `nft` writes a priority (both in hexadecimal): `1501:a` is `pick-10-in-5`.
    pub fn code(self) -> u32 {
        let kind = Kind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u32;
        let scope = if self.scope == Scope::Address { 0 } else { NODE_PORT_KINDS };
        let part = PARTED | u32::from(self.part.number());
        (part << PART_SHIFT | (FIRST_KIND + scope + kind)) << 16 | u32::from(self.count)
    }

    pub fn from_code(code: u32) -> Option<Treatment> {
        let (half, kinds) = (code >> 16, (1 << PART_SHIFT) - 1);
        let part = Part::from_number((half >> PART_SHIFT).checked_sub(PARTED)?)?;
        let kind = (half & kinds).checked_sub(FIRST_KIND)?;
        let (scope, kind) = match kind {
            0..NODE_PORT_KINDS => (Scope::Address, kind),
            _ => (Scope::NodePort, kind - NODE_PORT_KINDS),
        };
        let kind = *Kind::ALL.get(kind as usize)?;
        Some(Treatment { kind, scope, count: code as u16, part })
    }
}

impl ChainId {
    /// The chains that its rules refer to.
    fn leads_to(self) -> impl Iterator<Item = ChainId> {
        let next = match self {
            ChainId::Treat(treatment) => {
                let scope = treatment.scope;
                let then = |kind| Some(ChainId::Treat(treatment.with(kind)));
                match treatment.kind {
                    Kind::Pick(_) => [None, None],
                    Kind::External | Kind::ExternalLocal => [then(Kind::Pick(Pool::Main)), None],
                    Kind::Sticky(pool) => [Some(ChainId::Recall(scope, pool)), then(Kind::Pick(pool))],
                    Kind::StickyExternal | Kind::StickyExternalLocal => {
                        [then(Kind::Sticky(Pool::Main)), None]
                    }
                }
            }
            _ => [None, None],
        };
        next.into_iter().flatten()
    }

    /// This chain and all chains that it needs.
    pub fn with_needs(self) -> Vec<ChainId> {
        let mut all = vec![self];
        let mut next = 0;
        while let Some(chain) = all.get(next) {
            all.extend(chain.leads_to());
            next += 1;
        }
        all
    }

    /// The element that maps a treatment's number to its chain.
    pub fn element(self) -> Option<Element> {
        let ChainId::Treat(treatment) = self else { return None };
        let key = Key::EMPTY.number(treatment.code());
        // Two maps: chains of the main pool look up the treatments of the local pool, which the kernel would take for a loop in one map.
        let set = match treatment.kind {
            Kind::Pick(Pool::Local) | Kind::Sticky(Pool::Local) => SetId::Treatments(Pool::Local),
            _ => SetId::Treatments(Pool::Main),
        };
        Some(Element { set, key, value: Value::Goto(self), comment: None })
    }

    pub fn parse(name: &str) -> Option<ChainId> {
        if let Some(port) = name.strip_prefix("to-") {
            return canonical_number(port)?.try_into().ok().map(ChainId::To);
        }
        let (scope, rest) = match name.strip_prefix(Scope::NodePort.prefix()) {
            Some(rest) => (Scope::NodePort, rest),
            None => (Scope::Address, name),
        };
        match rest {
            "recall" => return Some(ChainId::Recall(scope, Pool::Main)),
            "local-recall" => return Some(ChainId::Recall(scope, Pool::Local)),
            _ => {}
        }
        if let Some(seconds) = rest.strip_prefix("learn-") {
            return Some(ChainId::Learn(scope, canonical_number(seconds)?));
        }
        let (rest, part) = rest.rsplit_once("-in-")?;
        let (word, count) = rest.rsplit_once('-')?;
        let kind = *Kind::ALL.iter().find(|kind| kind.word() == word)?;
        let (count, part) = (canonical_number(count)?.try_into().ok()?, Part::parse(part)?);
        Some(ChainId::Treat(Treatment { kind, scope, count, part }))
    }
}

/// `7`, but not `07` or `+7`: only names that we would write are ours.
fn canonical_number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number > 0 && number.to_string() == text).then_some(number)
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainId::To(port) => write!(f, "to-{port}"),
            ChainId::Learn(scope, seconds) => write!(f, "{}learn-{seconds}", scope.prefix()),
            ChainId::Recall(scope, Pool::Main) => write!(f, "{}recall", scope.prefix()),
            ChainId::Recall(scope, Pool::Local) => write!(f, "{}local-recall", scope.prefix()),
            ChainId::Treat(Treatment { kind, scope, count, part }) => {
                write!(f, "{}{}-{count}-in-{part}", scope.prefix(), kind.word())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In every part.
    fn treatments(kind: Kind, scope: Scope, count: u16) -> impl Iterator<Item = Treatment> {
        Part::all().map(move |part| Treatment { kind, scope, count, part })
    }

    #[test]
    fn every_chain_name_reads_back() {
        for scope in Scope::ALL {
            let treatments = Kind::ALL.into_iter().flat_map(|kind| treatments(kind, scope, 7));
            let treatments = treatments.map(ChainId::Treat);
            let recalls = [Pool::Main, Pool::Local].map(|pool| ChainId::Recall(scope, pool));
            let others = [ChainId::Learn(scope, 10800), ChainId::To(8080)];
            for chain in treatments.chain(recalls).chain(others) {
                assert_eq!(ChainId::parse(&chain.to_string()), Some(chain));
            }
        }
    }

    #[test]
    fn every_treatment_has_a_unique_number() {
        let mut codes = std::collections::BTreeSet::new();
        for scope in Scope::ALL {
            for (kind, count) in Kind::ALL.into_iter().zip([1, 2, 255, 256, 1000, 65535, 3, 4]) {
                for treatment in treatments(kind, scope, count) {
                    let code = treatment.code();
                    assert_eq!(Treatment::from_code(code), Some(treatment));
                    assert!(codes.insert(code), "{treatment:?}");
                    assert!(
                        code >> 16 != 0 && code & 0xffff != 0 && code != u32::MAX,
                        "nft has words for those"
                    );
                }
            }
        }
        let earlier_version = [0x0001_0002, 0x0011_0002];
        let too_far = [0x1009_0001, 0x1019_0001, 0x1020_0001, 0x1801_0001, 0x2001_0001, 0x9001_0001];
        for foreign in [0, 6, 0x1000_0001, u32::MAX].into_iter().chain(earlier_version).chain(too_far) {
            assert_eq!(Treatment::from_code(foreign), None, "{foreign:x}");
        }
    }

    #[test]
    fn a_chain_comes_after_the_chains_that_it_needs() {
        for kind in Kind::ALL {
            for chain in treatments(kind, Scope::Address, 3).map(ChainId::Treat) {
                assert!(chain.with_needs().iter().skip(1).all(|needed| *needed < chain), "{chain}");
            }
        }
    }

    #[test]
    fn names_we_would_not_write_are_not_ours() {
        for name in [
            "pick-2",
            "pick-0-in-5",
            "pick-01-in-5",
            "pick-65536-in-5",
            "pick-2-in-8",
            "pick-2-in-05",
            "pick-2-in-",
            "pick-2-in-5-in-5",
            "pick--in-5",
            "pick-in-5",
            "pick-",
            "pick",
            "recall-in-5",
            "learn-+3",
            "learn-3-in-5",
            "to-80-in-5",
            "to-65536",
            "nodeport-rejected",
            "",
            "services",
        ] {
            assert_eq!(ChainId::parse(name), None, "{name}");
        }
    }
}
