//! How many frontends each Service may have when a namespace, or all namespaces together, want more than their limit.
//! The limits of a single Service are not here but in `resolve/limits.rs`.
//!
//! Every Service has its first few frontends, whatever other Services have ([`Limits::always`]). What it wants beyond
//! them is its *surplus*. The surplus of a namespace is limited: the oldest Services come first. The surplus of the
//! node is limited, too: all namespaces get equal room, and room that one namespace does not need goes to the others.
//! So a small namespace loses nothing because of a large one.
//!
//! The result depends only on which Services exist, not on the order of events: it is the same after a restart. The
//! cost of a change is the number of Services whose share it changes, because the position in a namespace up to which
//! Services fit is stored and moved. While the node is over its limit, a change also visits the namespaces that get
//! less than they want.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::Service;
use crate::name::ServiceName;
use crate::policy::{Limits, Policy};
use crate::resolve;

#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// The namespaces with a surplus.
    namespaces: BTreeMap<Arc<str>, Namespace>,
    /// The surplus that each namespace wants, at most the limit of a namespace.
    wants: BTreeSet<(usize, Arc<str>)>,
    /// The sum of `wants`.
    total: usize,
    /// The namespaces that get less because the node is over its limit, with the room of each.
    cut: BTreeMap<Arc<str>, usize>,
}

/// Sorts oldest first, then by name. A Service of unknown age counts as oldest.
type Key = (Option<i64>, ServiceName);

#[derive(Debug, Default)]
struct Namespace {
    /// The Services with a surplus, and how large it is.
    services: BTreeMap<Key, usize>,
    total: usize,
    edge: Edge,
    /// The edge when shares were last compared.
    compared: Edge,
}

/// The position in a namespace up to which Services fit.
#[derive(Debug, Clone, Default)]
struct Edge {
    /// The surplus that the whole namespace may have.
    room: usize,
    /// The first Service that does not fit completely; `None` if all fit.
    first_out: Option<Key>,
    /// The sum of the surplus of the Services before `first_out`.
    before: usize,
}

/// A Service that may have more or fewer frontends because of a change of another Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) name: ServiceName,
    pub(super) before: usize,
    pub(super) after: usize,
}

/// How many frontends a Service wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    created: Option<i64>,
    frontends: usize,
}

impl Wish {
    pub(super) fn of(service: &Service, policy: &Policy) -> Wish {
        Wish { created: service.created, frontends: resolve::wanted_frontends(service, policy) }
    }

    fn surplus(self, limits: &Limits) -> usize {
        self.frontends.min(limits.frontends).saturating_sub(limits.always)
    }
}

impl Shares {
    /// How many frontends a Service may have.
    pub(super) fn of(&self, limits: &Limits, name: &ServiceName, wish: Wish) -> usize {
        let surplus = wish.surplus(limits);
        if surplus == 0 {
            return wish.frontends.min(limits.frontends);
        }
        let key = (wish.created, name.clone());
        let namespace = self.namespaces.get(name.namespace());
        limits.always + namespace.map_or(0, |namespace| namespace.edge.share(&key, surplus))
    }

    /// Updates the shares after one Service was replaced. Returns the other Services whose share has changed.
    pub(super) fn replace(
        &mut self,
        limits: &Limits,
        name: &ServiceName,
        old: Option<Wish>,
        new: Option<Wish>,
    ) -> Vec<Moved> {
        let entry = |wish: Option<Wish>| {
            let surplus = wish.map(|wish| (wish.created, wish.surplus(limits)));
            surplus.filter(|(_, surplus)| *surplus > 0)
        };
        let (old, new) = (entry(old), entry(new));
        if old == new {
            return Vec::new();
        }
        let label: Arc<str> = name.namespace().into();
        let changed = self.namespaces.entry(label.clone()).or_default();
        self.wants.remove(&(changed.wants(limits), label.clone()));
        self.total -= changed.wants(limits);
        changed.remove(old.map(|(created, _)| (created, name.clone())));
        changed.insert(new.map(|(created, surplus)| ((created, name.clone()), surplus)));
        let wants = changed.wants(limits);
        if wants > 0 {
            self.wants.insert((wants, label.clone()));
            self.total += wants;
        }
        let cut = self.to_cut(limits.node_frontends);
        let before = std::mem::replace(&mut self.cut, cut);
        let mut concerned: BTreeSet<Arc<str>> = before.into_keys().chain(self.cut.keys().cloned()).collect();
        concerned.insert(label);
        let mut moved = Vec::new();
        for label in concerned {
            let room = self.cut.get(&label).copied().unwrap_or(limits.namespace_frontends);
            let Some(namespace) = self.namespaces.get_mut(&label) else { continue };
            namespace.settle(room, limits.always, name, &mut moved);
            if namespace.services.is_empty() {
                self.namespaces.remove(&label);
            }
        }
        moved
    }

    /// The namespaces that want most, with the room of each, chosen so that all namespaces fit.
    fn to_cut(&self, most: usize) -> BTreeMap<Arc<str>, usize> {
        if self.total <= most {
            return BTreeMap::new();
        }
        let (mut cut, mut others) = (Vec::new(), self.total);
        let mut largest = self.wants.iter().rev().peekable();
        while let Some((wants, label)) = largest.next() {
            cut.push(label);
            others -= wants;
            let next = largest.peek().map_or(0, |(wants, _)| *wants);
            if most >= others && (most - others) / cut.len() >= next {
                break;
            }
        }
        let room = most.saturating_sub(others);
        let (each, rest) = (room / cut.len(), room % cut.len());
        let of = |(place, label): (usize, &Arc<str>)| (label.clone(), each + usize::from(place < rest));
        cut.into_iter().enumerate().map(of).collect()
    }
}

impl Namespace {
    fn wants(&self, limits: &Limits) -> usize {
        self.total.min(limits.namespace_frontends)
    }

    /// The edge may be wrong until `settle` corrects it.
    fn remove(&mut self, key: Option<Key>) {
        let Some(key) = key else { return };
        let Some(surplus) = self.services.remove(&key) else { return };
        self.total -= surplus;
        if self.edge.first_out.as_ref() == Some(&key) {
            self.edge.first_out = self.after(&key);
        } else if self.edge.is_inside(&key) {
            self.edge.before -= surplus;
        }
    }

    fn insert(&mut self, service: Option<(Key, usize)>) {
        let Some((key, surplus)) = service else { return };
        self.total += surplus;
        if self.edge.is_inside(&key) {
            self.edge.before += surplus;
        }
        self.services.insert(key, surplus);
    }

    /// Moves the edge to its correct position. Adds to `moved` the Services whose share changes by that, except
    /// `known`.
    fn settle(&mut self, room: usize, always: usize, known: &ServiceName, moved: &mut Vec<Moved>) {
        let mut crossed: BTreeSet<Key> = self.compared.first_out.iter().cloned().collect();
        self.edge.room = room;
        while self.edge.before > room
            && let Some((key, surplus)) = self.last_inside()
        {
            self.edge.before -= surplus;
            crossed.insert(key.clone());
            self.edge.first_out = Some(key);
        }
        while let Some(key) = &self.edge.first_out
            && let Some(surplus) = self.services.get(key)
            && self.edge.before + surplus <= room
        {
            self.edge.before += surplus;
            crossed.insert(key.clone());
            self.edge.first_out = self.after(key);
        }
        crossed.extend(self.edge.first_out.clone());
        let before = std::mem::replace(&mut self.compared, self.edge.clone());
        for key in crossed.into_iter().filter(|(_, name)| name != known) {
            let Some(surplus) = self.services.get(&key) else { continue };
            let (before, after) = (before.share(&key, *surplus), self.edge.share(&key, *surplus));
            if before != after {
                moved.push(Moved { name: key.1, before: always + before, after: always + after });
            }
        }
    }

    fn last_inside(&self) -> Option<(Key, usize)> {
        let end = self.edge.first_out.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut inside = self.services.range((Bound::Unbounded, end));
        inside.next_back().map(|(key, surplus)| (key.clone(), *surplus))
    }

    fn after(&self, key: &Key) -> Option<Key> {
        let mut later = self.services.range((Bound::Excluded(key), Bound::Unbounded));
        later.next().map(|(key, _)| key.clone())
    }
}

impl Edge {
    /// Whether the whole surplus of a Service fits.
    fn is_inside(&self, key: &Key) -> bool {
        self.first_out.as_ref().is_none_or(|first_out| key < first_out)
    }

    fn share(&self, key: &Key, surplus: usize) -> usize {
        if self.is_inside(key) {
            surplus
        } else if self.first_out.as_ref() == Some(key) {
            self.room.saturating_sub(self.before)
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        frontends: 100,
        endpoints: 1,
        entries: 1,
        always: 2,
        namespace_frontends: 10,
        node_frontends: 25,
    };

    /// The wishes that a test has set, and the shares that result from them.
    #[derive(Default)]
    struct Followed {
        shares: Shares,
        wishes: BTreeMap<ServiceName, Wish>,
    }

    impl Followed {
        fn set(&mut self, name: &str, wish: Option<(i64, usize)>) -> Vec<(String, usize, usize)> {
            let name = ServiceName::parse(name).unwrap();
            let wish = wish.map(|(created, frontends)| Wish { created: Some(created), frontends });
            let before = self.all();
            let old = match wish {
                Some(wish) => self.wishes.insert(name.clone(), wish),
                None => self.wishes.remove(&name),
            };
            let moved = self.shares.replace(&LIMITS, &name, old, wish);
            self.told_all(&name, &before, &moved);
            moved.into_iter().map(|it| (it.name.to_string(), it.before, it.after)).collect()
        }

        fn of(&self, name: &str) -> usize {
            let name = ServiceName::parse(name).unwrap();
            self.shares.of(&LIMITS, &name, self.wishes[&name])
        }

        fn all(&self) -> BTreeMap<ServiceName, usize> {
            let of =
                |(name, wish): (&ServiceName, &Wish)| (name.clone(), self.shares.of(&LIMITS, name, *wish));
            self.wishes.iter().map(of).collect()
        }

        /// Checks that exactly the changed shares were reported.
        fn told_all(&self, changed: &ServiceName, before: &BTreeMap<ServiceName, usize>, moved: &[Moved]) {
            let after = self.all();
            let differs = |(name, before): (&ServiceName, &usize)| {
                let after = *after.get(name)?;
                (name != changed && *before != after).then(|| Moved {
                    name: name.clone(),
                    before: *before,
                    after,
                })
            };
            let expected: Vec<Moved> = before.iter().filter_map(differs).collect();
            let mut moved = moved.to_vec();
            moved.sort_by(|one, other| one.name.cmp(&other.name));
            assert_eq!(moved, expected);
        }
    }

    #[test]
    fn older_services_come_first_and_each_has_a_few() {
        let mut followed = Followed::default();
        followed.set("a/young", Some((3, 8)));
        followed.set("a/old", Some((1, 8)));
        assert_eq!(followed.set("a/middle", Some((2, 8))), [("a/young".to_owned(), 6, 2)]);
        // The surplus of the namespace is limited to ten: the Service `old` takes six of them, and `middle` four.
        assert_eq!(["a/old", "a/middle", "a/young"].map(|name| followed.of(name)), [8, 6, 2]);
        followed.set("a/small", Some((9, 2)));
        assert_eq!(followed.of("a/small"), 2, "it wants no more than every Service has");
        let gone = followed.set("a/old", None);
        assert_eq!(gone, [("a/middle".to_owned(), 6, 8), ("a/young".to_owned(), 2, 6)]);
    }

    #[test]
    fn a_namespace_with_little_loses_nothing_to_those_with_much() {
        let mut followed = Followed::default();
        for (name, frontends) in [("a/x", 12), ("b/x", 12), ("c/x", 7)] {
            assert_eq!(followed.set(name, Some((1, frontends))), [], "25 fit");
        }
        assert_eq!(followed.set("d/x", Some((0, 12))).len(), 2);
        assert_eq!(["a/x", "b/x", "c/x", "d/x"].map(|name| followed.of(name)), [8, 9, 7, 9]);
        followed.set("c/x", None);
        assert_eq!(["a/x", "b/x", "d/x"].map(|name| followed.of(name)), [10, 10, 11]);
    }

    #[test]
    fn nothing_is_kept_of_services_that_are_gone_or_small() {
        let mut followed = Followed::default();
        for number in 0..100 {
            followed.set(&format!("{}/{number}", number % 7), Some((number, 1 + number as usize % 9)));
        }
        for number in 0..100 {
            let name = format!("{}/{number}", number % 7);
            followed.set(&name, if number % 2 == 0 { None } else { Some((number, 2)) });
        }
        let Shares { namespaces, wants, total, cut } = followed.shares;
        assert!(namespaces.is_empty() && wants.is_empty() && total == 0 && cut.is_empty());
    }

    /// The law: any order of events has the same result, and every change is reported.
    #[test]
    fn the_order_of_events_does_not_matter() {
        let services: Vec<(String, (i64, usize))> = (0..60_usize)
            .map(|n| (format!("{}/{n}", n * n % 5), ((n * 7 % 11) as i64, 1 + n * 13 % 17)))
            .collect();
        let follow = |order: &[usize], detour: bool| {
            let mut followed = Followed::default();
            for index in order {
                let (name, (created, frontends)) = &services[*index];
                if detour {
                    followed.set(name, Some((*created, frontends * 3)));
                    followed.set(name, None);
                }
                followed.set(name, Some((*created, *frontends)));
            }
            followed.all()
        };
        let forward: Vec<usize> = (0..services.len()).collect();
        let expected = follow(&forward, false);
        for step in [7, 11, 13, 59] {
            let order: Vec<usize> = forward.iter().map(|index| index * step % services.len()).collect();
            assert_eq!(follow(&order, true), expected);
        }
        let surplus = expected.values().map(|share| share.saturating_sub(LIMITS.always)).sum::<usize>();
        assert_eq!(surplus, LIMITS.node_frontends, "all of the room is used");
    }
}
