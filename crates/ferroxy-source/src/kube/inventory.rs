//! Which objects of one kind have been told of: their names and versions, and what was wrong with them. The objects
//! themselves are not kept.

use std::collections::{BTreeMap, HashMap};

use ferroxy_core::{Diagnostic, Event, Object as Subject};

use super::decode::{Content, Item};
use super::outlet::Outlet;
use crate::object::{Key, Kind};
use crate::wire::field::Note;

#[derive(Debug)]
pub(super) struct Inventory {
    kind: Kind,
    /// By `namespace/name`, or the bare name of a cluster-wide kind.
    objects: HashMap<Box<str>, Known>,
    /// Counts the lists. What an older list saw and a complete one did not is gone.
    generation: u32,
    troubles: BTreeMap<Box<str>, Vec<Diagnostic>>,
    /// Why the last object that nobody could name was of no use.
    unusable: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    generation: u32,
    /// 0: not a number.
    version: u64,
}

/// Where an object comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Origin {
    /// Always the truth: a server restored from a backup may count from further back.
    List,
    /// Here, an older version than the known one is a repetition of the past.
    Watch,
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
        let gone = self.objects.extract_if(|_, known| known.generation != generation);
        let mut names: Vec<Box<str>> = gone.map(|(name, _)| name).collect();
        names.sort_unstable();
        for name in names {
            self.troubles.remove(&name);
            out.tell(self.gone(&name));
        }
    }

    pub(super) fn change(&mut self, item: Item, from: Origin, out: &mut Outlet) {
        let version = item.version.as_deref().map_or(0, number);
        match item.content {
            Content::Object(object, notes) => {
                let key = object.key();
                let name: Box<str> = key.subject().name.into();
                if !self.is_past(&name, version, from) {
                    self.note(&name, &key, notes);
                    self.objects.insert(name, Known { generation: self.generation, version });
                    out.tell(object.into());
                }
            }
            Content::LeftOut(key) => self.forget(&key.subject().name, out),
            Content::Unusable(why) => self.unusable = Some(why),
        }
    }

    pub(super) fn delete(&mut self, item: Item, from: Origin, out: &mut Outlet) {
        let version = item.version.as_deref().map_or(0, number);
        let key = match item.content {
            Content::Object(object, _) => object.key(),
            Content::LeftOut(key) => key,
            Content::Unusable(why) => {
                self.unusable = Some(why);
                return;
            }
        };
        let name = key.subject().name;
        if !self.is_past(&name, version, from) {
            self.forget(&name, out);
        }
    }

    /// What is wrong with objects, and with what this server sent as one.
    pub(super) fn troubles(&self, server: &Subject) -> impl Iterator<Item = Diagnostic> {
        let unusable = self.unusable.map(|why| Diagnostic {
            object: server.clone(),
            field: format!("{}s", self.kind.as_str()),
            reason: format!("one object cannot be used: {why}"),
            effect: "it is not seen".to_owned(),
        });
        unusable.into_iter().chain(self.troubles.values().flatten().cloned())
    }

    fn is_past(&self, name: &str, version: u64, from: Origin) -> bool {
        let known = self.objects.get(name).map_or(0, |known| known.version);
        from == Origin::Watch && version != 0 && version < known
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
        };
        self.troubles.insert(name.into(), notes.into_iter().map(diagnostic).collect());
    }
}

/// Versions are opaque to clients by contract, and numbers in every server there is. 0: this one is not.
pub(super) fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}
