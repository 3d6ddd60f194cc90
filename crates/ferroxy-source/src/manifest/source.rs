//! The manifests as a whole: which objects are in force, and what a new look at the files changes.
//! `watch.rs` decides when to look.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferroxy_core::{Cause, Diagnostic, Event};

use super::MAX_OBJECTS;
use super::file::{self, Held, ReadFile, about};
use super::tree::{self, Tree, Trouble};
use crate::object::{Key, Object};

/// A manifest or a directory of manifests, as it was when last looked at.
#[derive(Debug)]
pub struct ManifestSource {
    path: PathBuf,
    files: BTreeMap<PathBuf, ReadFile>,
    /// The digest of each object that was reported last.
    in_force: BTreeMap<Arc<Key>, u64>,
    diagnostics: Vec<Diagnostic>,
    directories: BTreeSet<PathBuf>,
    /// The paths that could not be examined at the last look. `None`: the root could not.
    troubles: Option<Vec<Trouble>>,
    last_look: LastLook,
}

/// When the manifests were last looked at. Stays readable while a thread follows them.
#[derive(Debug, Clone)]
pub struct LastLook(Arc<Mutex<Instant>>);

impl LastLook {
    fn now() -> LastLook {
        LastLook(Arc::new(Mutex::new(Instant::now())))
    }

    pub fn age(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    fn renew(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// The result of a look at the files.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// The difference to what was in force before: removals first, then changed and new objects.
    pub events: Vec<Event>,
    /// Everything that is wrong with the manifests now, not only what is new.
    pub diagnostics: Vec<Diagnostic>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read manifests from {path}: {reason}", path = path.display())]
pub struct OpenError {
    pub path: PathBuf,
    #[source]
    pub reason: io::Error,
}

impl ManifestSource {
    /// Reads everything once, and reports each object as it is read: a large cluster is never completely in
    /// memory. Later the path may disappear and come back; here it must exist.
    pub fn open(
        path: impl Into<PathBuf>,
        mut on_event: impl FnMut(Event),
    ) -> Result<(ManifestSource, Vec<Diagnostic>), OpenError> {
        let path = path.into();
        let tree = tree::find(&path).map_err(|reason| OpenError { path: path.clone(), reason })?;
        // Files are read in path order: of two objects with one name, the first that is read counts.
        let mut seen = HashSet::new();
        let (files, _) = next_files(BTreeMap::new(), &tree, &mut |held, object| {
            if seen.len() < MAX_OBJECTS && seen.insert(Arc::clone(&held.key)) {
                on_event(object.into());
            }
        });
        let merge = Merge::new(&tree.troubles, &files);
        let in_force = merge.objects.into_iter().map(|(key, winner)| (key, winner.digest)).collect();
        let diagnostics = merge.diagnostics;
        let (directories, troubles) = (tree.directories, Some(tree.troubles));
        let source = ManifestSource {
            path,
            files,
            in_force,
            diagnostics: diagnostics.clone(),
            directories,
            troubles,
            last_look: LastLook::now(),
        };
        Ok((source, diagnostics))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shows from another thread that [`refresh`](Self::refresh) is called again and again.
    pub fn last_look(&self) -> LastLook {
        self.last_look.clone()
    }

    /// Looks again, and reads the files that may have changed. `None`: neither objects nor diagnostics changed.
    pub fn refresh(&mut self) -> Option<Batch> {
        let before = self.diagnostics.clone();
        let batch = match tree::find(&self.path) {
            Ok(tree) => self.take_in(tree),
            Err(error) => self.keep_all(&error),
        };
        self.last_look.renew();
        (!batch.events.is_empty() || batch.diagnostics != before).then_some(batch)
    }

    /// Resolved directories that show every change when watched.
    pub(super) fn directories(&self) -> &BTreeSet<PathBuf> {
        &self.directories
    }

    fn take_in(&mut self, tree: Tree) -> Batch {
        let mut fresh = Fresh::new();
        let (files, changed) = next_files(std::mem::take(&mut self.files), &tree, &mut |held, object| {
            if self.in_force.get(&held.key) != Some(&held.digest) {
                fresh.insert(held.digest, object);
            }
        });
        self.files = files;
        self.directories = tree.directories;
        // A look happens every few seconds: if nothing changed, it must not walk through all objects.
        if changed || self.troubles.as_ref() != Some(&tree.troubles) {
            let events = self.compare(&tree.troubles, fresh);
            self.troubles = Some(tree.troubles);
            return Batch { events, diagnostics: self.diagnostics.clone() };
        }
        Batch { events: Vec::new(), diagnostics: self.diagnostics.clone() }
    }

    /// Merges all files again and returns the difference to what was in force.
    fn compare(&mut self, troubles: &[Trouble], mut fresh: Fresh) -> Vec<Event> {
        let Merge { objects: mut after, mut diagnostics, .. } = Merge::new(troubles, &self.files);
        read_what_is_missing(&self.in_force, &after, &mut fresh);
        let mut unreadable = Vec::new();
        after.retain(|key, winner| {
            let before = self.in_force.get(key);
            if before == Some(&winner.digest) || fresh.contains_key(&winner.digest) {
                return true;
            }
            diagnostics.push(unreadable_winner(key, winner.path));
            unreadable.push(winner.path.to_path_buf());
            before.inspect(|digest| winner.digest = **digest).is_some()
        });
        let after = after.into_iter().map(|(key, winner)| (key, winner.digest)).collect();
        let events = difference(&self.in_force, &after, fresh);
        // Retried at the next look, even if the file does not change.
        for path in unreadable {
            self.files.entry(path).and_modify(|file| file.stamp.settled = false);
        }
        self.in_force = after;
        self.diagnostics = diagnostics;
        events
    }

    fn keep_all(&mut self, error: &io::Error) -> Batch {
        let effect = format!("the objects last read from it ({}) stay in force", self.in_force.len());
        self.diagnostics = vec![about(&self.path, "path", error.to_string(), &effect)];
        self.troubles = None;
        Batch { events: Vec::new(), diagnostics: self.diagnostics.clone() }
    }
}

/// Reads files that may have changed, keeps unchanged ones, and drops removed ones. `true`: there may be changes.
fn next_files(
    mut before: BTreeMap<PathBuf, ReadFile>,
    tree: &Tree,
    each: &mut dyn FnMut(&Held, Object),
) -> (BTreeMap<PathBuf, ReadFile>, bool) {
    let mut files = BTreeMap::new();
    let mut changed = false;
    for (path, &stamp) in &tree.files {
        let next = match before.remove(path) {
            Some(same) if same.stamp == stamp && stamp.settled => Some(same),
            previous => {
                changed = true;
                ReadFile::read(path, stamp, previous, tree, each)
            }
        };
        files.extend(next.map(|file| (path.clone(), file)));
    }
    let lost_sight_of =
        |path: &Path| tree.troubles.iter().any(|it| it.may_exist && path.starts_with(&it.path));
    let missing = before.len();
    // If the directory itself was replaced during the look, nothing was removed from it.
    let keep_all = missing > 0 && !tree.is_still_there();
    files.extend(before.into_iter().filter(|(path, _)| keep_all || lost_sight_of(path)));
    (files, changed || missing > 0)
}

/// Objects that were read just now and differ from those in force, by their digest.
type Fresh = HashMap<u64, Object>;

/// All files put together, in path order: of two objects with one name, the first counts.
#[derive(Default)]
struct Merge<'a> {
    objects: BTreeMap<Arc<Key>, Winner<'a>>,
    diagnostics: Vec<Diagnostic>,
    full: bool,
}

struct Winner<'a> {
    digest: u64,
    path: &'a Path,
}

impl<'a> Merge<'a> {
    fn new(troubles: &[Trouble], files: &'a BTreeMap<PathBuf, ReadFile>) -> Merge<'a> {
        let mut merge = Merge::default();
        for trouble in troubles {
            let effect = if trouble.may_exist {
                "what was last read from it stays in force"
            } else {
                "it is not read"
            };
            merge.diagnostics.push(about(&trouble.path, "path", trouble.reason.clone(), effect));
        }
        files.iter().for_each(|(path, file)| merge.file(path, file));
        merge
    }

    fn file(&mut self, path: &'a Path, file: &ReadFile) {
        self.diagnostics.extend_from_slice(&file.diagnostics);
        for Held { key, digest } in &file.objects {
            if let Some(first) = self.objects.get(key) {
                self.diagnostics.push(Diagnostic {
                    object: key.subject(),
                    field: "metadata.name".to_owned(),
                    reason: format!("is already taken by an object in {}", first.path.display()),
                    effect: format!("the one in {} is ignored", path.display()),
                    cause: Cause::Conflict,
                });
            } else if self.objects.len() >= MAX_OBJECTS {
                self.too_many(path);
            } else {
                self.objects.insert(Arc::clone(key), Winner { digest: *digest, path });
            }
        }
    }

    fn too_many(&mut self, path: &Path) {
        if !self.full {
            self.full = true;
            let reason = format!("there are more than {MAX_OBJECTS} objects");
            self.diagnostics.push(about(path, "contents", reason, "the rest, from here on, is ignored"));
        }
    }
}

/// An object may come into force because the one before it in path order is gone. Its file may not have been
/// read just now; then it is read again.
fn read_what_is_missing(
    before: &BTreeMap<Arc<Key>, u64>,
    after: &BTreeMap<Arc<Key>, Winner<'_>>,
    fresh: &mut Fresh,
) {
    let changed = after.iter().filter(|(key, winner)| before.get(*key) != Some(&winner.digest));
    let missing = changed.map(|(_, winner)| winner).filter(|winner| !fresh.contains_key(&winner.digest));
    let (digests, paths): (HashSet<u64>, BTreeSet<&Path>) = missing.map(|it| (it.digest, it.path)).unzip();
    for path in paths {
        file::read_again(path, &mut |held, object| {
            if digests.contains(&held.digest) {
                fresh.insert(held.digest, object);
            }
        });
    }
}

fn unreadable_winner(key: &Key, path: &Path) -> Diagnostic {
    Diagnostic {
        object: key.subject(),
        field: "metadata.name".to_owned(),
        reason: format!("is now that of the object in {}, which cannot be read", path.display()),
        effect: "the previous object stays in force".to_owned(),
        cause: Cause::SourceStale,
    }
}

fn difference(
    before: &BTreeMap<Arc<Key>, u64>,
    after: &BTreeMap<Arc<Key>, u64>,
    mut fresh: Fresh,
) -> Vec<Event> {
    let gone = before.keys().filter(|key| !after.contains_key(*key)).map(|key| Key::clone(key).gone());
    let changed = after.iter().filter(|(key, digest)| before.get(*key) != Some(digest));
    gone.chain(changed.filter_map(|(_, digest)| fresh.remove(digest).map(Event::from))).collect()
}

#[cfg(test)]
mod tests;
