//! The manifests as a whole: which objects are in force, and what each new look at the files changes about that.
//! When to look is decided in `watch.rs`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferroxy_core::{Diagnostic, Event};

use super::read::{self, Reading};
use super::tree::{self, Stamp, Tree, Trouble};
use super::{MAX_FILE_BYTES, MAX_OBJECTS};
use crate::object::{Key, Object};

/// A manifest or a directory of manifests, as it was when last looked at.
#[derive(Debug)]
pub struct ManifestSource {
    path: PathBuf,
    files: BTreeMap<PathBuf, ReadFile>,
    in_force: BTreeMap<Key, Arc<Object>>,
    diagnostics: Vec<Diagnostic>,
    directories: BTreeSet<PathBuf>,
    /// What could not be looked at last time. `None`: nothing could, or this is the first time.
    troubles: Option<Vec<Trouble>>,
}

/// What a look at the files brought.
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
    /// Reads everything once. Later the path may come and go; here it must exist.
    pub fn open(
        path: impl Into<PathBuf>,
    ) -> Result<(ManifestSource, Vec<Event>, Vec<Diagnostic>), OpenError> {
        let path = path.into();
        let tree = tree::find(&path).map_err(|reason| OpenError { path: path.clone(), reason })?;
        let mut source = ManifestSource {
            path,
            files: BTreeMap::new(),
            in_force: BTreeMap::new(),
            diagnostics: Vec::new(),
            directories: BTreeSet::new(),
            troubles: None,
        };
        let batch = source.take_in(tree);
        Ok((source, batch.events, batch.diagnostics))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks again, and reads the files that may have changed. `None`: nothing did, and nothing is newly wrong.
    pub fn refresh(&mut self) -> Option<Batch> {
        let before = self.diagnostics.clone();
        let batch = match tree::find(&self.path) {
            Ok(tree) => self.take_in(tree),
            Err(error) => self.keep_all(&error),
        };
        (!batch.events.is_empty() || batch.diagnostics != before).then_some(batch)
    }

    /// Resolved directories that show every change when watched.
    pub(super) fn directories(&self) -> &BTreeSet<PathBuf> {
        &self.directories
    }

    fn take_in(&mut self, tree: Tree) -> Batch {
        let before = std::mem::take(&mut self.files);
        let (files, changed) = next_files(before, &tree);
        self.files = files;
        self.directories = tree.directories;
        // Looking happens all the time: when nothing is new, it must not cost a walk through all objects.
        if !changed && self.troubles.as_ref() == Some(&tree.troubles) {
            return Batch { events: Vec::new(), diagnostics: self.diagnostics.clone() };
        }
        let mut merge = Merge::default();
        for trouble in &tree.troubles {
            let effect = if trouble.may_exist {
                "what was last read from it stays in force"
            } else {
                "it is not read"
            };
            merge.diagnostics.push(about(&trouble.path, "path", trouble.reason.clone(), effect));
        }
        self.files.iter().for_each(|(path, file)| merge.file(path, file));
        let events = difference(&self.in_force, &merge.objects);
        self.in_force = merge.objects;
        self.diagnostics = merge.diagnostics;
        self.troubles = Some(tree.troubles);
        Batch { events, diagnostics: self.diagnostics.clone() }
    }

    fn keep_all(&mut self, error: &io::Error) -> Batch {
        let effect = format!("the objects last read from it ({}) stay in force", self.in_force.len());
        self.diagnostics = vec![about(&self.path, "path", error.to_string(), &effect)];
        self.troubles = None;
        Batch { events: Vec::new(), diagnostics: self.diagnostics.clone() }
    }
}

/// What was last read from one file.
#[derive(Debug, Clone)]
struct ReadFile {
    stamp: Stamp,
    objects: Vec<Arc<Object>>,
    diagnostics: Vec<Diagnostic>,
}

/// Reads what may have changed, keeps what has not, and drops what is no longer there. `true`: some of it did.
fn next_files(mut before: BTreeMap<PathBuf, ReadFile>, tree: &Tree) -> (BTreeMap<PathBuf, ReadFile>, bool) {
    let mut files = BTreeMap::new();
    let mut changed = false;
    for (path, &stamp) in &tree.files {
        let next = match before.remove(path) {
            Some(same) if same.stamp == stamp && stamp.settled => Some(same),
            previous => {
                changed = true;
                read_file(path, stamp, previous, tree)
            }
        };
        files.extend(next.map(|file| (path.clone(), file)));
    }
    let lost_sight_of =
        |path: &Path| tree.troubles.iter().any(|it| it.may_exist && path.starts_with(&it.path));
    let missing = before.len();
    // Nothing was removed from a directory that was itself taken away while we looked.
    let keep_all = missing > 0 && !tree.is_still_there();
    files.extend(before.into_iter().filter(|(path, _)| keep_all || lost_sight_of(path)));
    (files, changed || missing > 0)
}

/// `None`: the file has just been removed.
fn read_file(path: &Path, mut stamp: Stamp, previous: Option<ReadFile>, tree: &Tree) -> Option<ReadFile> {
    let name = path.display().to_string();
    let had_objects = previous.as_ref().is_some_and(|it| !it.objects.is_empty());
    let reading = match contents(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && tree.is_still_there() => return None,
        Err(error) => {
            // Reading may work the next time, though nothing about the file changes: so try.
            stamp.settled = false;
            Reading::refused(&name, "contents", error.to_string())
        }
        // Writing a file in place empties it first. To remove its objects, remove it.
        Ok(text) if had_objects && text.trim().is_empty() => {
            Reading::refused(&name, "contents", "the file is empty, as if being written".to_owned())
        }
        Ok(text) => read::read(&name, &text),
    };
    Some(settle(path, stamp, reading, previous))
}

/// If something in the file could not be read, what it held before and does not show now stays in force.
fn settle(path: &Path, stamp: Stamp, reading: Reading, previous: Option<ReadFile>) -> ReadFile {
    let mut file = ReadFile {
        stamp,
        objects: reading.objects.into_iter().map(Arc::new).collect(),
        diagnostics: reading.diagnostics,
    };
    if reading.incomplete {
        let seen: HashSet<Key> = file.objects.iter().map(|it| it.key()).collect();
        let earlier = previous.map(|it| it.objects).unwrap_or_default();
        let kept: Vec<_> = earlier.into_iter().filter(|it| !seen.contains(&it.key())).collect();
        if !kept.is_empty() {
            let reason = "not all of the file can be read".to_owned();
            let effect = format!(
                "objects last read from it and not seen now ({}) stay in force until it reads well again or is removed",
                kept.len()
            );
            file.diagnostics.push(about(path, "contents", reason, &effect));
            file.objects.extend(kept);
        }
    }
    file
}

fn contents(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    // The size is not asked for first: the file may grow, and in some file systems it is not told.
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let reason = format!("the file is larger than {} MiB", MAX_FILE_BYTES >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8 text"))
}

/// All files put together, in path order: of two objects with one name, the first counts.
#[derive(Default)]
struct Merge<'a> {
    objects: BTreeMap<Key, Arc<Object>>,
    from: BTreeMap<Key, &'a Path>,
    diagnostics: Vec<Diagnostic>,
    full: bool,
}

impl<'a> Merge<'a> {
    fn file(&mut self, path: &'a Path, file: &ReadFile) {
        self.diagnostics.extend_from_slice(&file.diagnostics);
        for object in &file.objects {
            let key = object.key();
            if let Some(first) = self.from.get(&key) {
                self.diagnostics.push(Diagnostic {
                    object: key.subject(),
                    field: "metadata.name".to_owned(),
                    reason: format!("is already taken by an object in {}", first.display()),
                    effect: format!("the one in {} is not seen", path.display()),
                });
            } else if self.objects.len() >= MAX_OBJECTS {
                self.too_many(path);
            } else {
                self.objects.insert(key.clone(), Arc::clone(object));
                self.from.insert(key, path);
            }
        }
    }

    fn too_many(&mut self, path: &Path) {
        if !self.full {
            self.full = true;
            let reason = format!("there are more than {MAX_OBJECTS} objects");
            self.diagnostics.push(about(path, "contents", reason, "the rest, from here on, is not seen"));
        }
    }
}

fn difference(before: &BTreeMap<Key, Arc<Object>>, after: &BTreeMap<Key, Arc<Object>>) -> Vec<Event> {
    let gone = before.keys().filter(|key| !after.contains_key(key)).map(|key| key.clone().gone());
    let new = after.iter().filter(|(key, object)| before.get(key) != Some(object));
    gone.chain(new.map(|(_, object)| Event::from(Object::clone(object)))).collect()
}

fn about(path: &Path, field: &str, reason: String, effect: &str) -> Diagnostic {
    let object = read::file(&path.display().to_string());
    Diagnostic { object, field: field.to_owned(), reason, effect: effect.to_owned() }
}

#[cfg(test)]
mod tests;
