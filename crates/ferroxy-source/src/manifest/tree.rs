//! Which files make up the manifests, and which directories to watch for them. Reads no file.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ferroxy_platform::files::{self, Identity, entry_of, identity};

/// More files than this are not manifests.
const MAX_FILES: usize = 100_000;
/// Directories nested deeper than this are not entered.
const MAX_LEVELS: usize = 32;
/// A file that changed less than this ago could change again with the same timestamps: they are coarse, and
/// very coarse on network file systems.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Tree {
    root: PathBuf,
    /// The directory that was walked; none if the root is a file.
    walked: Option<Identity>,
    /// Every manifest, in path order, by the path it was found under.
    pub(super) files: BTreeMap<PathBuf, Stamp>,
    /// Resolved directories whose entries matter: watching them shows every change.
    pub(super) directories: BTreeSet<PathBuf>,
    pub(super) troubles: Vec<Trouble>,
}

/// A path that could not be looked at.
#[derive(Debug, PartialEq)]
pub(super) struct Trouble {
    pub(super) path: PathBuf,
    pub(super) reason: String,
    /// Files under it may still exist, as far as we know.
    pub(super) may_exist: bool,
}

/// A file's identity and age. Equal stamps that have settled mean equal contents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stamp {
    identity: Identity,
    size: u64,
    modified: Option<SystemTime>,
    changed: SystemTime,
    pub(super) settled: bool,
}

/// Finds the manifests: the path itself if it is a file, else `.yaml`, `.yml` and `.json` files at any depth.
/// Hidden entries are skipped, links are followed: so a mounted ConfigMap (`a.yaml → ..data/a.yaml`)
/// shows each of its files once. Fails only if the path itself cannot be looked at.
pub(super) fn find(root: &Path) -> io::Result<Tree> {
    let metadata = fs::metadata(root)?;
    let tree = Tree { root: root.to_path_buf(), ..Tree::default() };
    #[allow(clippy::disallowed_methods, reason = "times of files")]
    let mut walk = Walk { tree, entered: HashSet::new(), now: SystemTime::now() };
    if metadata.is_dir() {
        fs::read_dir(root)?;
        walk.tree.walked = Some(identity(root, &metadata));
        walk.directory(root, &metadata, 0);
    } else if metadata.is_file() {
        walk.tree.directories.extend(entry_of(root).and_then(|it| it.parent().map(Path::to_path_buf)));
        walk.file(root, &metadata);
    } else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a directory"));
    }
    Ok(walk.tree)
}

impl Tree {
    /// Whether the root is still the same directory. If not, files that seem removed from it may still exist.
    pub(super) fn is_still_there(&self) -> bool {
        let now = fs::metadata(&self.root).map(|metadata| identity(&self.root, &metadata));
        now.is_ok_and(|now| self.walked.is_none_or(|walked| walked == now))
    }
}

struct Walk {
    tree: Tree,
    /// A directory is read once, however many links lead to it: this stops loops.
    entered: HashSet<Identity>,
    now: SystemTime,
}

impl Walk {
    fn directory(&mut self, path: &Path, metadata: &Metadata, level: usize) {
        if !self.entered.insert(identity(path, metadata)) {
            return;
        }
        if level > MAX_LEVELS {
            return self.trouble(path, format!("lies more than {MAX_LEVELS} directories deep"), false);
        }
        match entries(path) {
            Ok(names) => {
                self.tree.directories.extend(fs::canonicalize(path).ok());
                names.into_iter().for_each(|name| self.entry(&path.join(name), level));
            }
            Err(error) => self.trouble(path, error.to_string(), true),
        }
    }

    fn entry(&mut self, path: &Path, level: usize) {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.nothing(path),
            Err(_) if !is_manifest(path) && !path.is_dir() => return,
            Err(error) => return self.trouble(path, error.to_string(), true),
        };
        if metadata.is_dir() {
            self.directory(path, &metadata, level + 1);
        } else if metadata.is_file() && is_manifest(path) {
            self.file(path, &metadata);
        }
    }

    /// The entry was removed since the directory was read, or is a dangling link. Only the link is reported.
    fn nothing(&mut self, path: &Path) {
        if is_manifest(path) && fs::symlink_metadata(path).is_ok() {
            self.trouble(path, "is a dangling link".to_owned(), false);
        }
    }

    fn file(&mut self, path: &Path, metadata: &Metadata) {
        if self.tree.files.len() >= MAX_FILES {
            if self.tree.files.len() == MAX_FILES {
                self.trouble(path, format!("there are more than {MAX_FILES} files"), false);
            }
            return;
        }
        self.tree.files.insert(path.to_path_buf(), Stamp::of(path, metadata, self.now));
        // The directory of the real file, if this is a link: its contents change there.
        let real = fs::canonicalize(path).ok();
        self.tree.directories.extend(real.and_then(|it| it.parent().map(Path::to_path_buf)));
    }

    fn trouble(&mut self, path: &Path, reason: String, may_exist: bool) {
        self.tree.troubles.push(Trouble { path: path.to_path_buf(), reason, may_exist });
    }
}

/// The names in a directory that are not hidden, sorted.
fn entries(path: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == "yaml" || it == "yml" || it == "json")
}

impl Stamp {
    fn of(path: &Path, metadata: &Metadata, now: SystemTime) -> Stamp {
        let modified = metadata.modified().ok();
        // Copying tools set the modification time back, but not the change time.
        let changed = files::changed(metadata);
        let youngest = modified.map_or(changed, |modified| modified.max(changed));
        let settled = youngest + SETTLED_AFTER < now;
        Stamp { identity: identity(path, metadata), size: metadata.len(), modified, changed, settled }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(root: &Path, name: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn files(root: &Path) -> Vec<String> {
        let tree = find(root).unwrap();
        tree.files.keys().map(|it| it.strip_prefix(root).unwrap().display().to_string()).collect()
    }

    #[test]
    fn manifests_at_any_depth_in_path_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["b.yaml", "a/x.json", "a.yml", "a/deep/er.yaml", "notes.txt", ".hidden.yaml", ".git/c.yaml"]
        {
            write(dir.path(), name);
        }
        assert_eq!(files(dir.path()), ["a/deep/er.yaml", "a/x.json", "a.yml", "b.yaml"]);
    }

    #[test]
    fn a_configmap_mount_shows_each_file_once() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "..2024/a.yaml");
        symlink("..2024", dir.path().join("..data")).unwrap();
        symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
        assert_eq!(files(dir.path()), ["a.yaml"]);
        let real = fs::canonicalize(dir.path()).unwrap();
        let expected = BTreeSet::from([real.clone(), real.join("..2024")]);
        assert_eq!(find(dir.path()).unwrap().directories, expected);
    }

    #[test]
    fn links_in_circles_end() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a/x.yaml");
        symlink(dir.path(), dir.path().join("a/up")).unwrap();
        symlink("self.yaml", dir.path().join("self.yaml")).unwrap();
        assert_eq!(files(dir.path()), ["a/x.yaml"]);
    }

    #[test]
    fn a_dangling_link_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        symlink("nowhere", dir.path().join("a.yaml")).unwrap();
        let tree = find(dir.path()).unwrap();
        assert_eq!(tree.troubles.len(), 1);
        assert!(!tree.troubles[0].may_exist);
    }

    #[test]
    fn a_single_file_may_have_any_name_and_its_directory_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "objects");
        let tree = find(&dir.path().join("objects")).unwrap();
        assert_eq!(tree.files.len(), 1);
        assert_eq!(tree.directories, BTreeSet::from([fs::canonicalize(dir.path()).unwrap()]));
    }

    #[test]
    fn what_is_neither_file_nor_directory_is_refused() {
        assert_eq!(find(Path::new("/dev/null")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(find(Path::new("/nonexistent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_directory_that_moved_away_meanwhile_is_not_still_there() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        write(&root, "a.yaml");
        let tree = find(&root).unwrap();
        assert!(tree.is_still_there());
        fs::rename(&root, dir.path().join("elsewhere")).unwrap();
        assert!(!tree.is_still_there());
        write(&root, "a.yaml");
        assert!(!tree.is_still_there(), "another directory");
    }

    #[test]
    fn a_fresh_stamp_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a.yaml");
        let path = dir.path().join("a.yaml");
        let metadata = fs::metadata(&path).unwrap();
        let written = metadata.modified().unwrap();
        assert!(!Stamp::of(&path, &metadata, written).settled);
        assert!(Stamp::of(&path, &metadata, written + Duration::from_secs(10)).settled);
    }
}
