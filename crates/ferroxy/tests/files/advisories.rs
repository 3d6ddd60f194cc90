//! `scripts/check-advisories` finds the advisories that concern our lock files, in the snapshot or in a database.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::Done;
use crate::support::repository::{path, text, tool};

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

/// The snapshot of the repository. An advisory that concerns us fails this test, as it fails `make lint`.
#[test]
fn the_snapshot_covers_every_crate_and_concerns_none() {
    let Some(_) = tool("python3") else { return };
    let checked = check(None);
    assert!(checked.code == 0 && checked.stdout.contains(" advisories, the newest of 2"), "{checked:?}");

    let (name, version) = used();
    let snapshot = text("scripts/advisories.toml");
    let changed = tempfile::NamedTempFile::new().unwrap();
    let check_changed = |text: &str| {
        fs::write(changed.path(), text).unwrap();
        check(Some(changed.path()))
    };
    let uncovered = check_changed(&snapshot.replace(&format!("\"{name}\", "), ""));
    assert!(
        uncovered.code == 1 && uncovered.stdout.contains(&format!("{name} is not covered")),
        "{uncovered:?}"
    );
    let advisory = format!(
        "{snapshot}\n[[advisory]]\nid = \"RUSTSEC-2026-9999\"\npackage = \"{name}\"\ndate = \"2026-01-02\"\n\
         patched = [\">= 999.0.0\"]\nunaffected = []\n"
    );
    let vulnerable = check_changed(&advisory);
    let expected = format!("{name} {version}: RUSTSEC-2026-9999 (vulnerable); fixed in: >= 999.0.0");
    assert!(vulnerable.code == 1 && vulnerable.stdout.contains(&expected), "{vulnerable:?}");
}

#[test]
fn a_snapshot_of_a_database_finds_the_same() {
    let Some(_) = tool("python3") else { return };
    let print = |database: Option<&Path>| {
        let mut command = Command::new(path("scripts/check-advisories"));
        command.arg("--snapshot").env_remove("ADVISORY_DB").envs(database.map(|path| ("ADVISORY_DB", path)));
        Done::of(command.output().unwrap())
    };
    let (name, version) = used();
    let printed = print(Some(database("", "\">= 999.0.0\"", "").path()));
    assert_eq!(printed.code, 0, "{printed:?}");
    let snapshot = tempfile::NamedTempFile::new().unwrap();
    fs::write(snapshot.path(), &printed.stdout).unwrap();
    let found = check(Some(snapshot.path()));
    let expected = format!("{name} {version}: RUSTSEC-2026-9999 (vulnerable); fixed in: >= 999.0.0");
    assert!(found.code == 1 && found.stdout.contains(&expected), "{found:?}");
    assert!(!found.stdout.contains("is not covered"), "{found:?}");
    let without = print(None);
    assert!(without.code == 1 && without.stdout.contains("--snapshot needs ADVISORY_DB"), "{without:?}");
}

#[test]
fn a_directory_that_is_no_database_is_an_error() {
    let Some(_) = tool("python3") else { return };
    let empty = tempfile::tempdir().unwrap();
    let wrong = check(Some(empty.path()));
    assert!(wrong.code == 1 && wrong.stdout.contains("no advisories in"), "{wrong:?}");
}
