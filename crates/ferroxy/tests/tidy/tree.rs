//! The files of this repository, found without git: everything below its root but what `.gitignore` lists.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo::Manifest;

#[derive(Debug, Clone)]
pub struct File {
    /// From the repository's root, with `/`.
    pub path: String,
    pub text: String,
}

/// Every text file. (Files that are not UTF-8 are data.)
#[derive(Debug)]
pub struct Tree(Vec<File>);

impl Tree {
    pub fn read() -> Tree {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        let ignored = ignored(&fs::read_to_string(root.join(".gitignore")).unwrap());
        let mut files = Vec::new();
        walk(&root, &root, &ignored, &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        assert!(files.len() > 500, "only {} files below {}", files.len(), root.display());
        Tree(files)
    }

    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.0.iter()
    }

    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files().filter(|file| file.path.ends_with(".rs"))
    }

    pub fn manifests(&self) -> impl Iterator<Item = &File> {
        self.files().filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml"))
    }

    /// The manifests of our own crates.
    pub fn crates(&self) -> Vec<Manifest> {
        let ours = self.manifests().filter(|file| file.path.starts_with("crates/"));
        ours.map(|file| Manifest::of(&file.path, &file.text)).collect()
    }

    /// The library and the binary of a crate, without its tests and benchmarks.
    pub fn sources(&self, of: Manifest) -> Vec<(&str, &str)> {
        let folder = of.path.replace("Cargo.toml", "src/");
        let files = self.rust().filter(|file| file.path.starts_with(&folder));
        files.map(|file| (file.path.as_str(), file.text.as_str())).collect()
    }
}

/// The folders that `.gitignore` lists. It has only lines of this form.
fn ignored(gitignore: &str) -> Vec<PathBuf> {
    let line = |line: &str| {
        let path = line.strip_prefix('/').unwrap_or_else(|| panic!(".gitignore: {line:?} has no leading /"));
        PathBuf::from(path)
    };
    gitignore.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(line).collect()
}

fn walk(root: &Path, folder: &Path, ignored: &[PathBuf], files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        let relative = path.strip_prefix(root).unwrap();
        if relative == Path::new(".git") || ignored.iter().any(|it| it == relative) {
            continue;
        }
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            walk(root, &path, ignored, files);
        } else if kind.is_file()
            && let Ok(text) = String::from_utf8(fs::read(&path).unwrap())
        {
            files.push(File { path: relative.to_str().unwrap().replace('\\', "/"), text });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_not_judged() {
        assert_eq!(
            ignored("# built\n/target\n/fuzz/corpus\n"),
            [Path::new("target"), Path::new("fuzz/corpus")]
        );
        let tree = Tree::read();
        assert!(
            tree.files().all(|file| !file.path.starts_with("target/") && !file.path.starts_with(".git/"))
        );
        assert!(tree.rust().any(|file| file.path == "crates/ferroxy/tests/tidy/tree.rs"));
    }
}
