//! The names of all objects of one kind that were reported, and what is wrong with them. The objects themselves are
//! not kept.

use std::collections::{BTreeMap, HashMap, HashSet};

use ferroxy_core::{Cause, Diagnostic, Event, Object as Subject};

use super::decode::{Content, Item};
use super::outlet::Outlet;
use crate::object::{Key, Kind};
use crate::wire::field::Note;

/// The most objects whose Diagnostics are kept.
const MOST_TROUBLED: usize = 50;

#[derive(Debug)]
pub(super) struct Inventory {
    kind: Kind,
    /// By `namespace/name`, or the bare name of a cluster-wide kind: the generation of the last list that had it.
    objects: HashMap<Box<str>, u32>,
    /// Counts the lists. An object of an older generation that a complete list does not contain is gone.
    generation: u32,
    /// Of so many objects; the others with trouble are only counted.
    troubles: BTreeMap<Box<str>, Vec<Diagnostic>>,
    beyond: HashSet<Box<str>>,
    /// Why the last object without an identity cannot be used.
    unusable: Option<&'static str>,
}

impl Inventory {
    pub(super) fn new(kind: Kind) -> Inventory {
        Inventory {
            kind,
            objects: HashMap::new(),
            generation: 0,
            troubles: BTreeMap::new(),
            beyond: HashSet::new(),
            unusable: None,
        }
    }

    /// A list begins, perhaps again after one that was interrupted.
    pub(super) fn begin_list(&mut self) {
        self.generation += 1;
        self.unusable = None;
    }

    /// A list is complete: objects that it does not contain are gone.
    pub(super) fn end_list(&mut self, out: &mut Outlet) {
        let generation = self.generation;
        let gone = self.objects.extract_if(|_, seen| *seen != generation);
        let mut names: Vec<Box<str>> = gone.map(|(name, _)| name).collect();
        names.sort_unstable();
        for name in names {
            self.settle(&name);
            out.tell(self.gone(&name));
        }
    }

    pub(super) fn change(&mut self, item: Item, out: &mut Outlet) {
        match item.content {
            Content::Object(object, notes) => {
                let key = object.key();
                let name: Box<str> = key.subject().name.into();
                self.note(&name, key, notes);
                self.objects.insert(name, self.generation);
                out.tell(object.into());
            }
            Content::LeftOut(key) => self.forget(&key.subject().name, out),
            Content::Unusable(why) => self.unusable = Some(why),
        }
    }

    pub(super) fn delete(&mut self, item: Item, out: &mut Outlet) {
        match item.content {
            Content::Object(object, _) => self.forget(&object.key().subject().name, out),
            Content::LeftOut(key) => self.forget(&key.subject().name, out),
            Content::Unusable(why) => self.unusable = Some(why),
        }
    }

    /// What is wrong with objects, named or not, that this server sent.
    pub(super) fn troubles(&self, server: &Subject) -> impl Iterator<Item = Diagnostic> {
        let unusable = self.unusable.map(|why| Diagnostic {
            object: server.clone(),
            field: format!("{}s", self.kind.as_str()),
            reason: format!("one object cannot be used: {why}"),
            effect: "it is ignored".to_owned(),
            cause: Cause::SourceIncomplete,
        });
        let beyond = (!self.beyond.is_empty()).then(|| Diagnostic {
            object: server.clone(),
            field: format!("{}s", self.kind.as_str()),
            reason: format!("and {} more of them have fields that cannot be used", self.beyond.len()),
            effect: "these fields are treated as absent".to_owned(),
            cause: Cause::Field,
        });
        unusable.into_iter().chain(self.troubles.values().flatten().cloned()).chain(beyond)
    }

    /// Nothing is wrong with the object, any more.
    fn settle(&mut self, name: &str) {
        self.troubles.remove(name);
        self.beyond.remove(name);
    }

    fn forget(&mut self, name: &str, out: &mut Outlet) {
        self.settle(name);
        if self.objects.remove(name).is_some() {
            out.tell(self.gone(name));
        }
    }

    fn gone(&self, name: &str) -> Event {
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        Key { kind: self.kind, namespace: namespace.to_owned(), name: name.to_owned() }.gone()
    }

    fn note(&mut self, name: &str, key: &Key, notes: Vec<Note>) {
        if notes.is_empty() {
            return self.settle(name);
        }
        if self.troubles.len() >= MOST_TROUBLED && !self.troubles.contains_key(name) {
            self.beyond.insert(name.into());
            return;
        }
        self.beyond.remove(name);
        let diagnostic = |note: Note| Diagnostic {
            object: key.subject(),
            field: note.field,
            reason: note.reason,
            effect: "it is treated as absent".to_owned(),
            cause: Cause::Field,
        };
        self.troubles.insert(name.into(), notes.into_iter().map(diagnostic).collect());
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::ObjectKind;

    use super::super::decode::{Line, line};
    use super::super::encoding::Encoding;
    use super::*;

    fn slice(number: usize, annotation: &str) -> Item {
        let text = format!(
            r#"{{"type":"ADDED","object":{{"metadata":{{"name":"s{number}","annotations":
            {{"endpoints.kubernetes.io/last-change-trigger-time":"{annotation}"}}}},"addressType":"IPv4"}}}}"#
        );
        match line(Encoding::Json, Kind::Slice, text.as_bytes()) {
            Ok(Line::Changed(item)) => item,
            other => panic!("{other:?}"),
        }
    }

    /// The annotation of 200 KB that sixty slices have.
    #[test]
    fn one_annotation_in_many_objects_stays_small() {
        let mut inventory = Inventory::new(Kind::Slice);
        let mut out = Outlet::new(|_| {});
        let server = Subject { kind: ObjectKind::ApiServer, name: "https://10.96.0.1".into() };
        inventory.begin_list();
        for number in 0..60 {
            inventory.change(slice(number, &"x".repeat(200_000)), &mut out);
        }
        let troubles: Vec<Diagnostic> = inventory.troubles(&server).collect();
        assert_eq!(troubles.len(), MOST_TROUBLED + 1);
        assert!(troubles[MOST_TROUBLED].reason.starts_with("and 10 more"), "{}", troubles[MOST_TROUBLED]);
        assert!(troubles.iter().map(|it| it.to_string().len()).sum::<usize>() < 20_000);
        for number in 0..60 {
            inventory.change(slice(number, "2026-01-01T00:00:00Z"), &mut out);
        }
        assert_eq!(inventory.troubles(&server).count(), 0);
    }
}
