//! Counts instructions with valgrind, which runs this test binary again for one piece of work. The count is exact, and the
//! same on a busy machine.

use std::ffi::OsStr;
use std::fs;
use std::io::{Write, stderr};
use std::path::Path;
use std::process::Command;

use ferroxy_lab::api::cluster::Cluster;
use ferroxy_source::Kind;

use crate::work::{Line, Node, decode, lines_of, moves};

/// Names the file with the work.
const FILE: &str = "FERROXY_COST_FILE";

/// Without valgrind this prints a message, and fails if `CI` is set.
pub fn can_be_counted() -> bool {
    let there = Command::new("valgrind").arg("--version").output().is_ok_and(|done| done.status.success());
    assert!(
        there || std::env::var_os("CI").is_none(),
        "CI must count instructions, and there is no valgrind"
    );
    if !there {
        // Not eprintln!, whose output the test harness keeps to itself when a test passes.
        stderr().write_all(b"SKIPPED: cost, as far as it counts instructions: no valgrind\n").unwrap();
    }
    there
}

/// How many instructions it takes to start with a cluster and then apply this many changes.
pub fn of(cluster: Cluster, changes: usize) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("work");
    write(&file, &[lines_of(cluster), moves(cluster, changes)]);
    of_test("what_is_counted", FILE, file.as_os_str())
}

/// How many instructions one of the ignored tests takes. The test reads from this environment variable what to do.
pub fn of_test(name: &str, variable: &str, work: &OsStr) -> u64 {
    let done = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored"])
        .env(variable, work)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    // `I   refs:      50,009,328`
    let count = said.lines().find_map(|line| line.split_once(" refs:")).map(|(_, count)| count.trim());
    let count = count.filter(|_| done.status.success()).unwrap_or_else(|| panic!("{done:?}"));
    count.replace(',', "").parse().unwrap()
}

/// The work that valgrind runs.
pub fn work() {
    let file = std::env::var_os(FILE).expect("the name of the file with the work");
    let text = fs::read_to_string(file).unwrap();
    let (start, changes) = text.split_once("\n\n").expect("two parts");
    let mut node = Node::start(decode(&read(start)));
    for line in read(changes) {
        assert!(node.change(&line).operations > 0);
    }
    // Dropping it is not part of the work.
    std::mem::forget(node);
}

fn write(file: &Path, parts: &[Vec<Line>; 2]) {
    let part = |lines: &Vec<Line>| -> String {
        let line = |line: &Line| format!("{} {}\n", line.kind.as_str(), line.text);
        lines.iter().map(line).collect()
    };
    fs::write(file, format!("{}\n{}", part(&parts[0]), part(&parts[1]))).unwrap();
}

fn read(part: &str) -> Vec<Line> {
    let line = |line: &str| {
        let (kind, text) = line.split_once(' ')?;
        let kind = [Kind::Service, Kind::Slice].into_iter().find(|it| it.as_str() == kind)?;
        Some(Line { kind, text: text.to_owned() })
    };
    part.lines().filter_map(line).collect()
}
