//! Lists all objects of a kind in one call, to find known objects that another program may have changed.
//!
//! The content of a list entry is not trusted: if an object looks different, it is read. If HNS has no such lists, every object
//! is read.

use std::collections::{BTreeSet, HashMap, HashSet};

use ferroxy_hcn::{ErrorKind, Guid, Kind, Listed};
use tracing::warn;

use super::Kernelspace;
use super::document::{read_balancer, read_endpoint};
use super::error::Error;

#[derive(Debug, Default)]
pub(super) struct Glance {
    /// There is no list: anything may have changed.
    is_blind: bool,
    doubtful: HashSet<Guid>,
    prints: HashMap<Guid, u64>,
}

impl Glance {
    /// Objects that are missing from the list are doubtful, too.
    pub(super) fn is_doubtful(&self, id: Guid) -> bool {
        self.is_blind || self.doubtful.contains(&id) || !self.prints.contains_key(&id)
    }

    /// The prints of those of these objects whose content is known now: the doubtful ones were read.
    pub(super) fn prints_of(&self, ids: &BTreeSet<Guid>) -> impl Iterator<Item = (Guid, u64)> {
        self.prints.iter().filter(|(id, _)| ids.contains(id)).map(|(id, print)| (*id, *print))
    }

    fn note<T>(&mut self, entry: &Listed<T>, is_same: bool) {
        self.prints.insert(entry.id, entry.print);
        if !is_same {
            self.doubtful.insert(entry.id);
        }
    }
}

impl Kernelspace {
    pub(super) fn glance_at_endpoints(&mut self, network: Guid) -> Result<Glance, Error> {
        let listed = self.hcn.listed_endpoints();
        let Some(listed) = self.unless_blind(Kind::Endpoint, listed)? else { return Ok(Glance::blind()) };
        let mut glance = Glance::default();
        for entry in listed {
            let is_same = self.mirror.is_as_listed(entry.id, entry.print, |mirror| {
                let listed = read_endpoint(network, entry.id, &entry.document);
                mirror.endpoints.get(&entry.id).is_some_and(|seen| seen.has_content_of(&listed))
            });
            glance.note(&entry, is_same);
        }
        Ok(glance)
    }

    pub(super) fn glance_at_balancers(&mut self) -> Result<Glance, Error> {
        let listed = self.hcn.listed_load_balancers();
        let Some(listed) = self.unless_blind(Kind::LoadBalancer, listed)? else { return Ok(Glance::blind()) };
        let mut glance = Glance::default();
        for entry in listed {
            let is_same = self.mirror.is_as_listed(entry.id, entry.print, |mirror| {
                let listed = read_balancer(entry.id, &entry.document);
                mirror.balancers.get(&entry.id).is_some_and(|seen| seen.has_content_of(&listed))
            });
            glance.note(&entry, is_same);
        }
        Ok(glance)
    }

    /// `None`: HNS answers without a list, this time or always. A call without an answer is an error.
    fn unless_blind<T>(
        &mut self,
        kind: Kind,
        listed: Result<T, ferroxy_hcn::Error>,
    ) -> Result<Option<T>, Error> {
        match listed {
            Ok(listed) => {
                self.blind.remove(&kind);
                Ok(Some(listed))
            }
            Err(error) if error.kind() == ErrorKind::Unknown => Err(error.into()),
            Err(error) => {
                if self.blind.insert(kind) {
                    warn!(
                        "HNS does not list whole objects ({kind}): {error}; until it does, a verification reads each"
                    );
                }
                Ok(None)
            }
        }
    }
}

impl Glance {
    fn blind() -> Glance {
        Glance { is_blind: true, ..Glance::default() }
    }
}
