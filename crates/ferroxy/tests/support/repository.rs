//! Files of this repository, and the tools that check them: from `scripts/ensure-tools`, or the system's.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Done;

/// A path in this repository.
pub fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(relative).canonicalize().unwrap_or_else(
        |error| {
            panic!("{relative}: {error}");
        },
    )
}

pub fn text(relative: &str) -> String {
    fs::read_to_string(path(relative)).unwrap()
}

/// The documents of a YAML file.
pub fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// A tool; `None` if this machine lacks it (prints a message; fails in CI).
pub fn tool(name: &str) -> Option<Command> {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools").join(name);
    let program = if fetched.exists() { fetched } else { PathBuf::from(name) };
    let found = Command::new(&program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match found {
        Ok(_) => Some(Command::new(program)),
        Err(error) => {
            skip(&format!("{name}: {error}; scripts/ensure-tools fetches it"));
            None
        }
    }
}

/// Runs it in this repository's directory, with something on standard input.
pub fn run(command: &mut Command, input: &str) -> Done {
    command.current_dir(path("."));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Done::of(child.wait_with_output().unwrap())
}

/// Runs a command that must succeed, and returns its output.
pub fn output(command: &mut Command, input: &str) -> String {
    let done = run(command, input);
    assert_eq!(done.code, 0, "{command:?}: {}{}", done.stdout, done.stderr);
    done.stdout
}

/// For a test that must return because this machine lacks something.
pub fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI must run every test, and this one cannot: {reason}");
    let thread = std::thread::current();
    let line = format!("SKIPPED: {}: {reason}\n", thread.name().unwrap_or("a test"));
    // Not eprintln!, whose output the test harness keeps to itself when a test passes.
    io::stderr().write_all(line.as_bytes()).unwrap();
}
