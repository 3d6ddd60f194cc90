//! The work of one round: small changes first, then one portion of a large one. Between two rounds the agent takes inputs, so
//! that no change waits for longer than one round.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ferroxy_core::{ServiceIntent, ServiceName};
use ferroxy_dataplane::{Acknowledged, Change};

use super::portion::{self, Key};

/// A change is large if it changes more than this: it is programmed in portions.
pub(super) const PORTION: usize = 4096;

/// The bound of all small changes of one round together.
const ROUND: usize = 16 * PORTION;

/// A dataplane looks at the whole Service for each portion, so a very large Service gets larger portions instead of more.
const MOST_PORTIONS: usize = 16;

/// The Services that are resolved but not programmed yet.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    services: BTreeMap<ServiceName, Resolved>,
    /// The large Service that got the last portion.
    last: Option<ServiceName>,
}

#[derive(Debug)]
struct Resolved {
    desired: Option<Arc<ServiceIntent>>,
    /// The size of the whole change.
    size: usize,
    /// The frontends that a large Service gives up. Another Service may need them before their portion is due.
    leaving: HashSet<Key>,
    /// How many of its portions were tried.
    portions: usize,
}

impl Resolved {
    fn is_large(&self) -> bool {
        self.size > PORTION
    }
}

/// Splits new Services into rounds: a dataplane needs memory for everything that it gets in one call.
pub(super) fn rounds(changes: impl Iterator<Item = Change>) -> Vec<Vec<Change>> {
    let (mut rounds, mut room) = (Vec::new(), 0);
    for change in changes {
        let size = portion::size(None, change.1.as_deref(), usize::MAX);
        match rounds.last_mut() {
            Some(last) if size <= room => Vec::push(last, change),
            _ => {
                rounds.push(vec![change]);
                room = ROUND;
            }
        }
        room = room.saturating_sub(size);
    }
    rounds
}

/// The changes for one call of the dataplane, and whether each Service is complete with it.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) changes: Vec<Change>,
    pub(super) tried: Tried,
}

#[derive(Debug, Default)]
pub(super) struct Tried {
    /// These Services become what they must be.
    pub(super) whole: Vec<ServiceName>,
    /// These Services come closer to that.
    pub(super) parts: Vec<ServiceName>,
}

impl Tried {
    pub(super) fn all(&self) -> impl Iterator<Item = &ServiceName> {
        self.whole.iter().chain(&self.parts)
    }
}

impl Waiting {
    pub(super) fn has(&self, name: &ServiceName) -> bool {
        self.services.contains_key(name)
    }

    /// Adds a resolved Service. `is_cut`: a large change is programmed in portions.
    pub(super) fn add(
        &mut self,
        name: ServiceName,
        desired: Option<Arc<ServiceIntent>>,
        in_force: &Acknowledged,
        is_cut: bool,
    ) {
        let before = in_force.service(&name);
        let (before, after) = (before.as_deref(), desired.as_deref());
        let size = if is_cut { portion::size(before, after, PORTION) } else { 0 };
        let mut leaving = HashSet::new();
        if size > PORTION {
            leaving.extend(portion::keys(before));
            for key in portion::keys(after) {
                leaving.remove(&key);
            }
        }
        self.services.insert(name, Resolved { desired, size, leaving, portions: 0 });
    }

    /// The Service changed again, or its attempt failed.
    pub(super) fn forget(&mut self, name: &ServiceName) {
        self.services.remove(name);
    }

    pub(super) fn large(&self) -> usize {
        self.services.values().filter(|it| it.is_large()).count()
    }

    /// As many of the small changes as fit into a round, the smallest first.
    pub(super) fn small(&mut self, due: &[ServiceName], in_force: &Acknowledged) -> Round {
        let of = |name: &ServiceName| Some(self.services.get(name).filter(|it| !it.is_large())?.size);
        let mut small: Vec<(usize, &ServiceName)> =
            due.iter().filter_map(|name| Some((of(name)?, name))).collect();
        if small.iter().map(|(size, _)| size).sum::<usize>() > ROUND {
            small.sort();
            let mut sum = 0;
            let mut fits = |(size, _): &(usize, &ServiceName)| {
                sum += size;
                sum <= ROUND
            };
            let fitting = small.iter().take_while(|it| fits(it)).count();
            small.truncate(fitting.max(1));
        }
        let mut round = Round::default();
        for (_, name) in small {
            let resolved = self.services.remove(name);
            round.changes.push((name.clone(), resolved.and_then(|it| it.desired)));
            round.tried.whole.push(name.clone());
        }
        self.release(&mut round, in_force);
        round
    }

    /// A portion of one large change. Large Services take turns.
    pub(super) fn portion(&mut self, due: &[ServiceName], in_force: &Acknowledged) -> Round {
        let is_large = |name: &&ServiceName| self.services.get(*name).is_some_and(Resolved::is_large);
        let after_last = |name: &&ServiceName| self.last.as_ref().is_none_or(|last| last < *name);
        let mut large = due.iter().filter(is_large);
        let next = large.clone().find(after_last).or_else(|| large.next()).cloned();
        let mut round = Round::default();
        let Some(name) = next else { return round };
        let Some(resolved) = self.services.get_mut(&name) else { return round };
        resolved.portions += 1;
        let budget = PORTION.max(resolved.size.div_ceil(MOST_PORTIONS));
        let before = in_force.service(&name);
        // Portions are finite. If they should not end, the rest of the change is made at once.
        let is_patient = resolved.portions <= 4 * MOST_PORTIONS;
        match portion::next(before.as_deref(), resolved.desired.as_deref(), budget).filter(|_| is_patient) {
            Some(between) => {
                round.changes.push((name.clone(), Some(Arc::new(between))));
                round.tried.parts.push(name.clone());
            }
            None => {
                let resolved = self.services.remove(&name);
                round.changes.push((name.clone(), resolved.and_then(|it| it.desired)));
                round.tried.whole.push(name.clone());
            }
        }
        self.last = Some(name);
        self.release(&mut round, in_force);
        round
    }

    /// If a frontend moves from a large Service to another Service, one change removes it there and adds it here.
    fn release(&self, round: &mut Round, in_force: &Acknowledged) {
        let giving: Vec<_> = self.services.iter().filter(|(_, it)| !it.leaving.is_empty()).collect();
        for (owner, resolved) in giving {
            let others = round.changes.iter().filter(|(name, _)| name != owner);
            let wanted = others.flat_map(|(_, service)| portion::keys(service.as_deref()));
            let taken: HashSet<Key> = wanted.filter(|key| resolved.leaving.contains(key)).collect();
            let before = (!taken.is_empty()).then(|| in_force.service(owner)).flatten();
            let is_tried = round.changes.iter().any(|(name, _)| name == owner);
            if let Some(before) = before.filter(|_| !is_tried) {
                let less = portion::without(&before, resolved.desired.as_deref(), &taken);
                round.changes.push((owner.clone(), less.map(Arc::new)));
                round.tried.parts.push(owner.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use ferroxy_core::Protocol;
    use ferroxy_core::testing::service_over;

    use super::*;

    #[test]
    fn new_services_come_in_rounds_of_bounded_size() {
        let services = [(1, 10), (2, ROUND), (3, ROUND / 2), (4, ROUND / 3), (5, ROUND / 2)];
        let rounds = rounds(services.into_iter().map(|(number, endpoints)| {
            let (name, service) = service_over(Protocol::Tcp, number, repeat_n(1, endpoints));
            (name, Some(service))
        }));
        let names = |round: &Vec<Change>| -> String { round.iter().map(|(name, _)| name.name()).collect() };
        assert_eq!(rounds.iter().map(names).collect::<Vec<_>>(), ["s1", "s2", "s3s4", "s5"]);
    }
}
