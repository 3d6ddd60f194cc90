//! Links in the Markdown files of this repository lead to files and headings that exist, on GitHub and in the book (`make site`), and
//! the book has every page of `docs/`. Addresses in the internet are not asked.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "the functions that tests share are tests too")]

mod book;
mod check;
mod markdown;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use check::Repository;

/// The repository with all of its files, found without git: everything but what `.gitignore` lists.
fn repository() -> Repository {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let ignored: Vec<PathBuf> = fs::read_to_string(root.join(".gitignore"))
        .unwrap()
        .lines()
        .map(|line| root.join(line.trim_start_matches('/')))
        .chain([root.join(".git")])
        .collect();
    let mut files = BTreeMap::new();
    walk(&root, &root, &ignored, &mut files);
    Repository::new(files)
}

/// Paths from the root, and the text of those that are Markdown.
fn walk(root: &Path, folder: &Path, ignored: &[PathBuf], files: &mut BTreeMap<String, Option<String>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if ignored.contains(&path) {
            continue;
        }
        if path.is_dir() {
            walk(root, &path, ignored, files);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let text = name.ends_with(".md").then(|| fs::read_to_string(&path).unwrap());
        files.insert(name, text);
    }
}

#[test]
fn every_link_leads_somewhere() {
    let repository = repository();
    assert!(repository.links() > 100, "only {} links: are they still found?", repository.links());
    let found = repository.findings();
    assert!(found.is_empty(), "broken links:\n{}", found.join("\n"));
}

#[test]
fn the_book_has_every_page_once() {
    let repository = repository();
    let found = book::findings(&repository);
    assert!(found.is_empty(), "docs/SUMMARY.md:\n{}", found.join("\n"));
}
