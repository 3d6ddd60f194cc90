//! Reports the changes in the lists and watches of one kind, and the problems of its objects. Neither the objects nor
//! their names are kept, except the names of a list that is repeated: the receiver of the events keeps the objects, and
//! knows which of them the list does not contain.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use ferroxy_core::{Cause, Diagnostic, Event, Object as Subject};

use super::decode::{Content, Item};
use super::outlet::Outlet;
use crate::object::{Key, Kind};
use crate::wire::field::Note;
use crate::wire::room::MOST_ENTRIES;

/// The most objects whose Diagnostics are kept.
const MOST_TROUBLED: usize = 50;

#[derive(Debug)]
pub(super) struct Inventory {
    kind: Kind,
    list: List,
    /// An object was reported.
    has_reported: bool,
    /// The Diagnostics of at most [`MOST_TROUBLED`] objects; further objects with problems are only counted.
    troubles: BTreeMap<Box<str>, Vec<Diagnostic>>,
    beyond: HashSet<Box<str>>,
    /// Why the last object without an identity cannot be used.
    unusable: Option<&'static str>,
}

/// The list that is being received.
#[derive(Debug)]
enum List {
    /// No list is being received: changes are reported.
    Complete,
    /// Nothing was reported before this list, so no object can be gone.
    First,
    /// The names in the list so far.
    Again(BTreeSet<Box<str>>),
}

impl Inventory {
    pub(super) fn new(kind: Kind) -> Inventory {
        Inventory {
            kind,
            list: List::Complete,
            has_reported: false,
            troubles: BTreeMap::new(),
            beyond: HashSet::new(),
            unusable: None,
        }
    }

    /// A list begins, perhaps again after one that was interrupted.
    pub(super) fn begin_list(&mut self) {
        self.list = if self.has_reported { List::Again(BTreeSet::new()) } else { List::First };
        self.unusable = None;
    }

    /// A list is complete: objects that it does not contain are gone.
    pub(super) fn end_list(&mut self, out: &mut Outlet) {
        if let List::Again(names) = std::mem::replace(&mut self.list, List::Complete) {
            self.troubles.retain(|name, _| names.contains(name));
            self.beyond.retain(|name| names.contains(name));
            out.tell(Event::Listed { kind: self.kind.into(), names });
        }
    }

    pub(super) fn change(&mut self, item: Item, out: &mut Outlet) {
        match item.content {
            Content::Object(object, notes) => {
                let key = object.key();
                let name: Box<str> = key.subject().name.into();
                self.note(&name, key, notes, "the field is treated as absent");
                if let List::Again(names) = &mut self.list {
                    names.insert(name);
                }
                self.has_reported = true;
                out.tell(object.into());
            }
            Content::LeftOut(key) => self.forget(key, out),
            Content::TooLong(key) => self.ignore(key, out),
            Content::Unusable(why) => self.unusable = Some(why),
        }
    }

    pub(super) fn delete(&mut self, item: Item, out: &mut Outlet) {
        match item.content {
            Content::Object(object, _) => self.forget(object.key().clone(), out),
            Content::LeftOut(key) | Content::TooLong(key) => self.forget(key, out),
            Content::Unusable(why) => self.unusable = Some(why),
        }
    }

    /// The problems of objects, named or not, that this server sent.
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

    /// The object has no problem any more.
    fn settle(&mut self, name: &str) {
        self.troubles.remove(name);
        self.beyond.remove(name);
    }

    /// The object is not one of ours, or not any more. During a list, removals are unknown until it is complete.
    fn forget(&mut self, key: Key, out: &mut Outlet) {
        self.settle(&key.subject().name);
        if matches!(self.list, List::Complete) {
            out.tell(key.gone());
        }
    }

    /// An object that exists and is too long to be used. An earlier, shorter version of it is removed.
    fn ignore(&mut self, key: Key, out: &mut Outlet) {
        let name: Box<str> = key.subject().name.into();
        let field = if key.kind == Kind::Slice { "endpoints" } else { "spec" };
        let reason = format!("the lists of the object have more than {MOST_ENTRIES} entries");
        let notes = vec![Note { field: field.to_owned(), reason }];
        self.note(&name, &key, notes, "the object is ignored");
        if let List::Again(names) = &mut self.list {
            names.insert(name);
        }
        out.tell(key.gone());
    }

    fn note(&mut self, name: &str, key: &Key, notes: Vec<Note>, effect: &str) {
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
            effect: effect.to_owned(),
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

    /// The shorter version is removed, also if the long one comes with a list. The Diagnostic names the object until it
    /// is deleted.
    #[test]
    fn an_object_with_too_many_entries_is_named() {
        let key = Key::new(Kind::Slice, "default", "s1");
        let long = || Item { version: None, content: Content::TooLong(key.clone()) };
        let (mut inventory, mut out) = (Inventory::new(Kind::Slice), Outlet::new(|_| {}));
        let server = Subject { kind: ObjectKind::ApiServer, name: "https://10.96.0.1".into() };
        let troubles = |inventory: &Inventory| -> Vec<String> {
            inventory.troubles(&server).map(|it| it.to_string()).collect()
        };
        inventory.change(slice(1, ""), &mut out);
        for is_listed in [false, true] {
            if is_listed {
                inventory.begin_list();
            }
            inventory.change(long(), &mut out);
            inventory.end_list(&mut out);
            let found = troubles(&inventory);
            assert!(found.len() == 1 && found[0].contains("default/s1"), "{found:?}");
        }
        inventory.delete(long(), &mut out);
        assert_eq!(troubles(&inventory), Vec::<String>::new());
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
