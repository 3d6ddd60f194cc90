//! The objects of all kinds with their versions, and the last changes of each kind for watches and exact lists. No HTTP.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::kind::Kind;
use super::object::{Key, Object, ObjectError, Version};
use super::selector::Selector;

#[derive(Debug)]
pub(super) struct Store {
    /// The version of the last change of any kind.
    version: Version,
    shelves: BTreeMap<Kind, Shelf>,
    /// How many changes of a kind are remembered.
    history: usize,
}

/// Everything of one kind.
#[derive(Debug, Default)]
struct Shelf {
    objects: BTreeMap<Key, Arc<Object>>,
    changes: VecDeque<Change>,
    /// The version of the last change that is no longer in `changes`.
    forgotten: Version,
}

#[derive(Debug, Clone)]
pub(super) struct Change {
    pub version: Version,
    pub before: Option<Arc<Object>>,
    pub after: Option<Arc<Object>>,
}

/// Selects objects of a kind.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    pub kind: Kind,
    pub namespace: Option<String>,
    pub selector: Selector,
}

impl Selection {
    pub fn has(&self, object: &Object) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == object.key.namespace)
            && self.selector.matches(object)
    }
}

/// The requested version has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forgotten {
    pub oldest: Version,
}

#[derive(Debug)]
pub(super) struct Page {
    pub objects: Vec<Arc<Object>>,
    /// More objects follow.
    pub more: bool,
}

impl Store {
    pub fn new(history: usize) -> Store {
        let shelves = Kind::ALL.into_iter().map(|kind| (kind, Shelf::default())).collect();
        // Real clusters do not begin at zero, and version 0 has a special meaning in requests.
        Store { version: 1, shelves, history }
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn put(&mut self, json: &[u8]) -> Result<Arc<Object>, ObjectError> {
        let version = self.version + 1;
        let object = Arc::new(Object::read(json, version)?);
        let shelf = self.shelves.entry(object.kind).or_default();
        let before = shelf.objects.insert(object.key.clone(), Arc::clone(&object));
        shelf.remember(Change { version, before, after: Some(Arc::clone(&object)) }, self.history);
        self.version = version;
        Ok(object)
    }

    /// None if the object does not exist.
    pub fn delete(&mut self, kind: Kind, key: &Key) -> Option<Version> {
        let shelf = self.shelves.get_mut(&kind)?;
        let before = shelf.objects.remove(key)?;
        self.version += 1;
        shelf.remember(Change { version: self.version, before: Some(before), after: None }, self.history);
        Some(self.version)
    }

    /// Forgets all previous changes: older versions have expired, as after a compaction of etcd.
    pub fn compact(&mut self) {
        for shelf in self.shelves.values_mut() {
            shelf.changes.clear();
            shelf.forgotten = self.version;
        }
    }

    pub fn get(&self, kind: Kind, key: &Key) -> Option<&Arc<Object>> {
        self.shelves.get(&kind)?.objects.get(key)
    }

    pub fn all(&self, selection: &Selection) -> Vec<Arc<Object>> {
        let objects = self.shelves.get(&selection.kind).into_iter().flat_map(|shelf| shelf.objects.values());
        objects.filter(|object| selection.has(object)).cloned().collect()
    }

    /// The objects at a version, in order, after a key, up to a limit.
    pub fn page(
        &self,
        selection: &Selection,
        at: Version,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Page, Forgotten> {
        let Some(shelf) = self.shelves.get(&selection.kind) else {
            return Ok(Page { objects: Vec::new(), more: false });
        };
        let undone = shelf.undo_until(at)?;
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let same = shelf.objects.range::<Key, _>(range).filter(|(key, _)| !undone.contains_key(key));
        let same = same.map(|(_, object)| object);
        let other = undone.range::<Key, _>(range).filter_map(|(_, before)| *before);
        // The first objects of the union are among the first of both lists; one more than the limit shows whether more
        // follow.
        let first = |objects: &mut dyn Iterator<Item = &Arc<Object>>| -> Vec<Arc<Object>> {
            objects.filter(|object| selection.has(object)).take(limit.saturating_add(1)).cloned().collect()
        };
        let mut objects = first(&mut same.into_iter());
        let others = first(&mut other.into_iter());
        if !others.is_empty() {
            objects.extend(others);
            objects.sort_by(|a, b| a.key.cmp(&b.key));
        }
        let more = objects.len() > limit;
        objects.truncate(limit);
        Ok(Page { objects, more })
    }

    /// The changes of a kind after a version.
    pub fn changes_since(&self, kind: Kind, version: Version) -> Result<Vec<Change>, Forgotten> {
        let Some(shelf) = self.shelves.get(&kind) else { return Ok(Vec::new()) };
        Ok(shelf.since(version)?.cloned().collect())
    }

    /// The last changes of a kind, up to a limit: for repeated events.
    pub fn last_changes(&self, kind: Kind, count: usize) -> Vec<Change> {
        let Some(shelf) = self.shelves.get(&kind) else { return Vec::new() };
        shelf.changes.iter().skip(shelf.changes.len().saturating_sub(count)).cloned().collect()
    }
}

impl Shelf {
    fn remember(&mut self, change: Change, at_most: usize) {
        self.changes.push_back(change);
        while self.changes.len() > at_most {
            if let Some(change) = self.changes.pop_front() {
                self.forgotten = change.version;
            }
        }
    }

    fn since(&self, version: Version) -> Result<impl DoubleEndedIterator<Item = &Change>, Forgotten> {
        if version < self.forgotten {
            return Err(Forgotten { oldest: self.forgotten });
        }
        let first = self.changes.partition_point(|change| change.version <= version);
        Ok(self.changes.range(first..))
    }

    /// The state at that version of each object that has changed since.
    fn undo_until(&self, version: Version) -> Result<BTreeMap<&Key, Option<&Arc<Object>>>, Forgotten> {
        let mut undone = BTreeMap::new();
        for change in self.since(version)?.rev() {
            if let Some(object) = change.after.as_ref().or(change.before.as_ref()) {
                undone.insert(&object.key, change.before.as_ref());
            }
        }
        Ok(undone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(name: &str, spec: &str) -> Vec<u8> {
        json!({"kind": "Service", "metadata": {"name": name}, "spec": spec}).to_string().into_bytes()
    }

    fn everything() -> Selection {
        Selection { kind: Kind::Service, namespace: None, selector: Selector::default() }
    }

    fn key(name: &str) -> Key {
        Key::new("default", name)
    }

    /// `name=spec` of each.
    fn shown(objects: &[Arc<Object>]) -> Vec<String> {
        let show = |object: &Arc<Object>| {
            let parsed: Value = serde_json::from_slice(object.text()).unwrap();
            format!("{}={}", object.key.name, parsed["spec"].as_str().unwrap())
        };
        objects.iter().map(show).collect()
    }

    fn store() -> Store {
        let mut store = Store::new(100);
        for name in ["a", "b", "c", "d"] {
            store.put(&service(name, "1")).unwrap();
        }
        store
    }

    #[test]
    fn every_change_has_a_version_of_its_own() {
        let mut store = store();
        let before = store.version();
        store.put(&service("a", "2")).unwrap();
        store.put(br#"{"kind":"Node","metadata":{"name":"ka"}}"#).unwrap();
        store.delete(Kind::Service, &key("b")).unwrap();
        assert_eq!(store.version(), before + 3);
        let changes = store.changes_since(Kind::Service, before).unwrap();
        let versions: Vec<Version> = changes.iter().map(|change| change.version).collect();
        assert_eq!(versions, [before + 1, before + 3], "the node's change is of another kind");
        assert_eq!(store.delete(Kind::Service, &key("b")), None);
        store.put(b"{}").unwrap_err();
        assert_eq!(store.version(), before + 3, "what changes nothing uses no version");
    }

    #[test]
    fn pages_show_one_moment_while_objects_change() {
        let mut store = store();
        let at = store.version();
        let first = store.page(&everything(), at, None, 2).unwrap();
        assert_eq!((shown(&first.objects), first.more), (vec!["a=1".into(), "b=1".into()], true));

        store.put(&service("c", "2")).unwrap();
        store.put(&service("c", "3")).unwrap();
        store.delete(Kind::Service, &key("d")).unwrap();
        store.put(&service("bb", "new")).unwrap();
        let second = store.page(&everything(), at, Some(&key("b")), 2).unwrap();
        assert_eq!((shown(&second.objects), second.more), (vec!["c=1".into(), "d=1".into()], false));
        let now = store.page(&everything(), store.version(), None, 10).unwrap();
        assert_eq!(shown(&now.objects), ["a=1", "b=1", "bb=new", "c=3"]);
        let short = store.page(&everything(), at, None, 3).unwrap();
        assert_eq!(
            (shown(&short.objects), short.more),
            (vec!["a=1".into(), "b=1".into(), "c=1".into()], true)
        );
    }

    #[test]
    fn what_is_too_old_is_forgotten() {
        let mut store = Store::new(2);
        for name in ["a", "b", "c"] {
            store.put(&service(name, "1")).unwrap();
        }
        assert_eq!(store.changes_since(Kind::Service, 1).unwrap_err(), Forgotten { oldest: 2 });
        assert_eq!(store.changes_since(Kind::Service, 2).unwrap().len(), 2);
        store.page(&everything(), 1, None, 10).unwrap_err();
        assert_eq!(shown(&store.page(&everything(), 2, None, 10).unwrap().objects), ["a=1"]);

        store.compact();
        store.changes_since(Kind::Service, 3).unwrap_err();
        assert!(store.changes_since(Kind::Service, 4).unwrap().is_empty(), "now is never too old");
        assert!(store.last_changes(Kind::Service, 5).is_empty());
    }
}
