//! One manifest file: the objects that were last read from it, as names and digests. `source.rs` decides which of two
//! objects with one name counts.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use ferroxy_core::{Cause, Diagnostic};

use super::MAX_FILE_BYTES;
use super::read::{self, Reading};
use super::tree::{Stamp, Tree};
use crate::object::{Key, Object};

/// The objects and problems that were last read from one file.
#[derive(Debug)]
pub(super) struct ReadFile {
    pub(super) stamp: Stamp,
    pub(super) objects: Vec<Held>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// An object in a file. Its contents have been passed on and are not kept: a digest is enough to detect changes, and a
/// large cluster takes a tenth of the memory.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) key: Arc<Key>,
    pub(super) digest: u64,
}

impl Held {
    fn new(object: &Object) -> Held {
        let mut hasher = DefaultHasher::new();
        object.event().hash(&mut hasher);
        Held { key: Arc::new(object.key().clone()), digest: hasher.finish() }
    }
}

impl ReadFile {
    /// Reads the file and hands over each object in it. `None`: the file has just been removed.
    pub(super) fn read(
        path: &Path,
        mut stamp: Stamp,
        previous: Option<ReadFile>,
        tree: &Tree,
        each: &mut dyn FnMut(&Held, Object),
    ) -> Option<ReadFile> {
        let name = path.display().to_string();
        let had_objects = previous.as_ref().is_some_and(|it| !it.objects.is_empty());
        let mut objects = Vec::new();
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
            Ok(text) => read::read(&name, &text, &mut |object| {
                let held = Held::new(&object);
                each(&held, object);
                objects.push(held);
            }),
        };
        let mut file = ReadFile { stamp, objects, diagnostics: reading.diagnostics };
        if reading.incomplete {
            file.keep(path, previous.map(|it| it.objects).unwrap_or_default());
        }
        Some(file)
    }

    /// A part of the file cannot be read: objects that were in it before and are not found now stay in force.
    fn keep(&mut self, path: &Path, earlier: Vec<Held>) {
        let seen: HashSet<&Key> = self.objects.iter().map(|it| &*it.key).collect();
        let kept: Vec<Held> = earlier.into_iter().filter(|it| !seen.contains(&*it.key)).collect();
        if !kept.is_empty() {
            let reason = "not all of the file can be read".to_owned();
            let effect = format!(
                "objects last read from it and missing now ({}) stay in force until it can be read again or is removed",
                kept.len()
            );
            self.diagnostics.push(about(path, "contents", reason, &effect));
            self.objects.extend(kept);
        }
    }
}

/// Reads the file again and passes on the objects that can be read now. Errors were reported before.
pub(super) fn read_again(path: &Path, each: &mut dyn FnMut(Held, Object)) {
    if let Ok(text) = contents(path) {
        read::read(&path.display().to_string(), &text, &mut |object| each(Held::new(&object), object));
    }
}

/// Something of this path cannot be read.
pub(super) fn about(path: &Path, field: &str, reason: String, effect: &str) -> Diagnostic {
    let object = read::file(&path.display().to_string());
    let cause = Cause::SourceIncomplete;
    Diagnostic { object, field: field.to_owned(), reason, effect: effect.to_owned(), cause }
}

fn contents(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    // The size is not checked first: the file may grow, and some file systems do not report it.
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let reason = format!("the file is larger than {} MiB", MAX_FILE_BYTES >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8 text"))
}
