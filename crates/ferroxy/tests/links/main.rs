//! Links in the Markdown files of this repository lead to files and headings that exist, on GitHub and in the book (`make site`), and
//! the book has every page of `docs/`. Links to the internet are not checked.

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

/// The needs of `make site`, without mdBook: its pages, the program that rewrites links, and a folder that git ignores.
#[test]
fn the_settings_of_the_book_lead_to_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let settings = fs::read_to_string(root.join("book.toml")).unwrap();
    let value = |name: &str| {
        let line = settings.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.unwrap_or_else(|| panic!("book.toml has no {name}")).trim_matches('"').to_owned()
    };
    assert!(root.join(value("src")).join("SUMMARY.md").is_file());
    let program = fs::metadata(root.join(value("command"))).unwrap();
    #[cfg(unix)]
    assert_ne!(
        std::os::unix::fs::PermissionsExt::mode(&program.permissions()) & 0o111,
        0,
        "it cannot be run"
    );
    assert!(program.is_file());
    let ignored = fs::read_to_string(root.join(".gitignore")).unwrap();
    let folder = value("build-dir");
    assert!(ignored.lines().any(|it| folder.starts_with(it.trim_matches('/'))), "{folder} is not ignored");
    // The names of pages that `scripts/site` looks for afterwards come from the same list.
    let site = fs::read_to_string(root.join("scripts/site")).unwrap();
    assert!(site.contains(&format!("{}/SUMMARY.md", value("src"))) && site.contains(&folder));
}
