//! `scripts/check-advisories`: it finds what concerns Cargo.lock in a database of advisories, and says when it has none.

#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too; clippy does not know")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use support::Done;
use support::repository::{path, text, tool};

/// A crate that we use, and its version.
fn used() -> (String, String) {
    let lock = text("Cargo.lock");
    let (_, entry) = lock.split_once("name = \"rustix\"\nversion = \"").unwrap();
    ("rustix".to_owned(), entry.split('"').next().unwrap().to_owned())
}

/// A database with one advisory about that crate.
fn database(kind: &str, patched: &str, unaffected: &str) -> TempDir {
    let (name, _) = used();
    let folder = tempfile::tempdir().unwrap();
    let crates = folder.path().join("crates").join(&name);
    fs::create_dir_all(&crates).unwrap();
    let text = format!(
        "```toml\n[advisory]\nid = \"RUSTSEC-2026-9999\"\npackage = \"{name}\"\ndate = \"2026-01-02\"\n{kind}\n\
         [versions]\npatched = [{patched}]\nunaffected = [{unaffected}]\n```\n\n# It leaks\n\nSlowly.\n"
    );
    fs::write(crates.join("RUSTSEC-2026-9999.md"), text).unwrap();
    folder
}

fn check(database: Option<&Path>) -> Done {
    let mut command = Command::new(path("scripts/check-advisories"));
    command.env_remove("ADVISORY_DB").envs(database.map(|path| ("ADVISORY_DB", path)));
    Done::of(command.output().unwrap())
}

#[test]
fn a_vulnerable_crate_fails_with_its_advisory() {
    let Some(_) = tool("python3") else { return };
    let (name, version) = used();
    let next = "\">= 999.0.0\"";
    let found = check(Some(database("", next, "").path()));
    let expected =
        format!("{name} {version}: RUSTSEC-2026-9999 (vulnerable): It leaks; fixed in: >= 999.0.0");
    assert!(found.code == 1 && found.stdout.contains(&expected), "{found:?}");
    assert!(
        found.stdout.contains("1 advisories, the newest of 2026-01-02, "),
        "its age is missing: {found:?}"
    );

    for fine in [
        database("", &format!("\">= {version}\""), ""),
        database("", next, &format!("\"< 0.0.1\", \"={version}\"")),
        database("withdrawn = \"2026-01-03\"", next, ""),
    ] {
        // The last one leaves no advisory at all, which is an error of its own.
        let passed = check(Some(fine.path()));
        assert!(!passed.stdout.contains("RUSTSEC-2026-9999 ("), "{passed:?}");
    }
    let note = check(Some(database("informational = \"unmaintained\"", "", "").path()));
    assert!(
        note.code == 0 && note.stdout.contains("(unmaintained): It leaks; fixed in: no version"),
        "{note:?}"
    );
}

#[test]
fn without_a_database_it_says_that_nothing_is_checked() {
    let Some(_) = tool("python3") else { return };
    let unchecked = check(None);
    assert!(unchecked.code == 0 && unchecked.stdout.contains("NOT CHECKED"), "{unchecked:?}");
    let empty = tempfile::tempdir().unwrap();
    let wrong = check(Some(empty.path()));
    assert!(wrong.code == 1 && wrong.stdout.contains("no advisories in"), "{wrong:?}");
}
