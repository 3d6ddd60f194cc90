//! Which objects of one kind have been told of: their names, and what was wrong with them. The objects themselves are
//! not kept.

use std::collections::{BTreeMap, HashMap};

use ferroxy_core::{Cause, Diagnostic, Event, Object as Subject};

use super::decode::{Content, Item};
use super::outlet::Outlet;
use crate::object::{Key, Kind};
use crate::wire::field::Note;

#[derive(Debug)]
pub(super) struct Inventory {
    kind: Kind,
    /// By `namespace/name`, or the bare name of a cluster-wide kind: the last list or the watch after it that had it.
    objects: HashMap<Box<str>, u32>,
    /// Counts the lists. What an older list saw and a complete one did not is gone.
    generation: u32,
    troubles: BTreeMap<Box<str>, Vec<Diagnostic>>,
    /// Why the last object that nobody could name was of no use.
    unusable: Option<&'static str>,
}

impl Inventory {
    pub(super) fn new(kind: Kind) -> Inventory {
        Inventory { kind, objects: HashMap::new(), generation: 0, troubles: BTreeMap::new(), unusable: None }
    }

    /// A list begins, perhaps once more after one that broke off.
    pub(super) fn begin_list(&mut self) {
        self.generation += 1;
        self.unusable = None;
    }

    /// A list is complete: what it did not contain is gone.
    pub(super) fn end_list(&mut self, out: &mut Outlet) {
        let generation = self.generation;
        let gone = self.objects.extract_if(|_, seen| *seen != generation);
        let mut names: Vec<Box<str>> = gone.map(|(name, _)| name).collect();
        names.sort_unstable();
        for name in names {
            self.troubles.remove(&name);
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

    /// What is wrong with objects, and with what this server sent as one.
    pub(super) fn troubles(&self, server: &Subject) -> impl Iterator<Item = Diagnostic> {
        let unusable = self.unusable.map(|why| Diagnostic {
            object: server.clone(),
            field: format!("{}s", self.kind.as_str()),
            reason: format!("one object cannot be used: {why}"),
            effect: "it is not seen".to_owned(),
            cause: Cause::SourceIncomplete,
        });
        unusable.into_iter().chain(self.troubles.values().flatten().cloned())
    }

    fn forget(&mut self, name: &str, out: &mut Outlet) {
        self.troubles.remove(name);
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
            self.troubles.remove(name);
            return;
        }
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
