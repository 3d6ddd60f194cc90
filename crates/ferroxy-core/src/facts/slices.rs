//! All EndpointSlices: stored by Service, and found by their own name.

use std::collections::{BTreeMap, BTreeSet};

use super::interner::{Id, Interner};
use super::slice::{self, PackedSlice, Place, Slice, SlicePort};
use crate::dense::Dense;
use crate::diagnostic::Diagnostic;
use crate::event;
use crate::few::{self, Few};
use crate::name::ServiceName;

#[derive(Debug, Default)]
pub(super) struct Slices {
    /// The slices of each Service, even if the Service does not exist. Sorted by name; most Services have one slice.
    of_services: Dense<ServiceName, Few<PackedSlice>>,
    /// The slices that are not named after their Service, with that Service. `None`: the slice belongs to no Service,
    /// and its contents are not stored. All other slices are found by the beginning of their name, so they need no map.
    others: BTreeMap<Box<str>, Option<ServiceName>>,
    /// What is wrong with the fields of a slice. Hardly any slice has an entry.
    faults: BTreeMap<Box<str>, Box<[Diagnostic]>>,
    places: Interner<Place>,
    /// Many Services have the same list.
    lists_of_ports: Interner<Box<[SlicePort]>>,
}

/// A slice as it was read.
#[derive(Debug)]
pub(super) struct NewSlice {
    /// The slice and the Service that it belongs to; `None` if it belongs to none.
    pub(super) kept: Option<(ServiceName, PackedSlice)>,
    faults: Box<[Diagnostic]>,
}

/// Where a slice is.
struct Found {
    service: ServiceName,
    /// The index among the slices of the Service.
    place: usize,
}

/// Updates.
impl Slices {
    /// The result must be passed to [`Slices::replace`], because it holds interned values.
    pub(super) fn read(&mut self, name: &str, object: event::EndpointSlice) -> NewSlice {
        let (kept, faults) = slice::read(name, object, &mut self.places, &mut self.lists_of_ports);
        NewSlice { kept, faults }
    }

    /// Returns the Services that a slice leaves and joins; none if nothing changes.
    pub(super) fn replace(&mut self, name: &str, new: Option<NewSlice>) -> BTreeSet<ServiceName> {
        let found = self.find(name);
        if let Some(new) = &new
            && self.is_same(name, found.as_ref(), new)
        {
            self.release(new.kept.as_ref().map(|(_, packed)| packed));
            return BTreeSet::new();
        }
        let mut concerned = BTreeSet::new();
        self.others.remove(name);
        self.faults.remove(name);
        if let Some(Found { service, place }) = found {
            let old = few::remove(&mut self.of_services, &service, place);
            self.release(old.as_ref());
            concerned.insert(service);
        }
        if let Some(new) = new {
            concerned.extend(new.kept.as_ref().map(|(service, _)| service.clone()));
            self.insert(name, new);
        }
        concerned
    }

    fn is_same(&self, name: &str, found: Option<&Found>, new: &NewSlice) -> bool {
        let old = found.and_then(|it| Some((&it.service, self.at(&it.service).get(it.place)?)));
        let is_known = old.is_some() || self.others.contains_key(name);
        is_known
            && old == new.kept.as_ref().map(|(service, packed)| (service, packed))
            && self.faults_of(name) == &*new.faults
    }

    fn insert(&mut self, name: &str, new: NewSlice) {
        let NewSlice { kept, faults } = new;
        let service = kept.as_ref().map(|(service, _)| service);
        if !service.is_some_and(|service| is_named_after(name, service)) {
            self.others.insert(name.into(), service.cloned());
        }
        if !faults.is_empty() {
            self.faults.insert(name.into(), faults);
        }
        let Some((service, packed)) = kept else { return };
        let place = self.search(&service, name).unwrap_or_else(|place| place);
        match self.of_services.get_mut(&service) {
            Some(slices) => slices.insert(place, packed),
            None => drop(self.of_services.insert(service, Few::One(packed))),
        }
    }

    /// Releases the interned values of a slice.
    fn release(&mut self, packed: Option<&PackedSlice>) {
        let Some(packed) = packed else { return };
        (0..packed.len()).filter_map(|index| packed.place(index)).for_each(|id| self.places.release(id));
        self.lists_of_ports.release(packed.ports().0);
    }

    /// Frees unused memory. Meant for when many slices have arrived.
    pub(super) fn shrink(&mut self) {
        self.of_services.rebuild();
    }
}

/// Queries.
impl Slices {
    /// The slices of a Service, sorted by name.
    pub(super) fn of(&self, service: &ServiceName) -> impl Iterator<Item = Slice<'_>> {
        let known = self.of_services.get_key_value(service).into_iter();
        known.flat_map(|(service, slices)| self.open(service, slices))
    }

    /// All slices that belong to a Service, in the order of the Services. The Service may not exist.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ServiceName, Slice<'_>)> {
        let each = |(service, slices)| self.open(service, slices).map(move |slice| (service, slice));
        self.of_services.iter().flat_map(each)
    }

    fn open<'f>(
        &'f self,
        service: &'f ServiceName,
        slices: &'f Few<PackedSlice>,
    ) -> impl Iterator<Item = Slice<'f>> {
        slices.as_slice().iter().map(move |packed| Slice { service, packed, all: self })
    }

    pub(super) fn count_of(&self, service: &ServiceName) -> usize {
        self.at(service).len()
    }

    pub(super) fn count(&self) -> usize {
        let homeless = self.others.values().filter(|service| service.is_none()).count();
        self.of_services.values().map(|slices| slices.as_slice().len()).sum::<usize>() + homeless
    }

    /// The names of all slices.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let homeless = self.others.iter().filter(|(_, service)| service.is_none());
        self.all().map(|(_, slice)| slice.name()).chain(homeless.map(|(name, _)| name.to_string()))
    }

    /// The stored copy of the name, if the Service has slices.
    pub(super) fn known(&self, service: &ServiceName) -> Option<&ServiceName> {
        self.of_services.get_key_value(service).map(|(known, _)| known)
    }

    pub(super) fn place(&self, slice: &Slice<'_>, index: usize) -> Option<&Place> {
        self.places.get(slice.packed.place(index)?)
    }

    pub(super) fn ports(&self, list: Id) -> &[SlicePort] {
        self.lists_of_ports.get(list).map_or(&[], |ports| ports)
    }

    pub(super) fn faults_of(&self, name: &str) -> &[Diagnostic] {
        self.faults.get(name).map_or(&[], |found| found)
    }

    /// What is wrong with slices that belong to no Service, or to an unknown one.
    pub(super) fn other_faults(
        &self,
        is_known: impl Fn(&ServiceName) -> bool,
    ) -> impl Iterator<Item = &Diagnostic> {
        let is_other = move |name: &str| !self.find(name).is_some_and(|found| is_known(&found.service));
        self.faults.iter().filter(move |(name, _)| is_other(name)).flat_map(|(_, found)| found)
    }

    fn find(&self, name: &str) -> Option<Found> {
        let at = |service: &ServiceName| {
            let place = self.search(service, name).ok()?;
            Some(Found { service: service.clone(), place })
        };
        match self.others.get(name) {
            Some(service) => at(service.as_ref()?),
            // The longest prefix first: `web-1-x` is more likely a slice of `web-1` than of `web`.
            None => name.rmatch_indices('-').find_map(|(end, _)| {
                let (service, _) = self.of_services.get_key_value(name.get(..end)?)?;
                at(service)
            }),
        }
    }

    /// As [`slice::binary_search`].
    fn search(&self, service: &ServiceName, name: &str) -> Result<usize, usize> {
        self.at(service).binary_search_by(|packed| packed.compare_name(service, name))
    }

    fn at(&self, service: &ServiceName) -> &[PackedSlice] {
        self.of_services.get(service).map_or(&[], Few::as_slice)
    }

    /// How many different places there are.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let Slices { of_services, others, faults, places, lists_of_ports } = self;
        of_services.is_empty()
            && others.is_empty()
            && faults.is_empty()
            && places.len() == 0
            && lists_of_ports.len() == 0
    }
}

/// Whether the slice has a name as the slice controller generates it: `web-x7k2p`.
fn is_named_after(name: &str, service: &ServiceName) -> bool {
    name.strip_prefix(service.as_str()).is_some_and(|rest| rest.starts_with('-'))
}
