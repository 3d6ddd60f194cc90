//! The examples of README.md and of some guides, run and compared with the output that they show. Other commands of the guides:
//! `deploy.rs`.
//!
//! A fenced block is one of these: a session (`$ command` lines, each followed by what it prints), the log of `run`
//! (`# ferroxy run …`), or an excerpt from what a command prints. `UPDATE_README=1 cargo test --test command_line readme` writes the
//! output of sessions again: read it before committing. Guides may have other blocks, too, with `#` before what runs on a node.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use rustix::process::Signal;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use crate::support::repository::{path, text};
use crate::support::{self, Agent, DEADLINE, Done, FERROXY, nft, wait_until};

/// Documents whose sessions with `$ ferroxy …` are run.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/iptables.md", "docs/troubleshooting.md"];

/// Commands that no test can run here, and why.
const NOT_RUN: [(&str, &str); 2] = [
    ("kubectl ", "needs a cluster; deploy.rs builds the kustomization"),
    ("helm ", "needs a cluster; deploy.rs renders the chart"),
];

/// Blocks without a command: the first line, and the folder and the command whose output contains the block.
const EXCERPTS: [(&str, &str, &str); 1] = [(
    "map frontends {",
    "conformance/cases/clusterip-tcp",
    "render --proxy-mode=nftables --cluster-cidr=10.244.0.0/16 --hostname-override=ka --manifests objects.yaml",
)];

/// Blocks that are no output at all, by their first line.
const PICTURES: [&str; 1] = [" API server"];

#[derive(Debug, PartialEq, Eq)]
struct Block<'t> {
    /// The number of the first line inside, from 1.
    line: usize,
    lines: Vec<&'t str>,
}

/// `$ command`, and what the README shows of its output.
#[derive(Debug, PartialEq, Eq)]
struct Example<'t> {
    line: usize,
    folder: &'t str,
    command: &'t str,
    shown: String,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        match (line.starts_with("```"), open) {
            (true, false) => blocks.push(Block { line: index + 2, lines: Vec::new() }),
            (false, true) => blocks.last_mut().unwrap().lines.push(line),
            _ => {}
        }
        open ^= line.starts_with("```");
    }
    assert!(!open, "a block without an end");
    blocks
}

/// The commands of a session; none if the block is no session.
fn session<'t>(block: &Block<'t>) -> Vec<Example<'t>> {
    let mut examples: Vec<Example<'t>> = Vec::new();
    let mut folder = ".";
    for (index, line) in block.lines.iter().enumerate() {
        let command = line.strip_prefix("$ ").map(|it| it.split("  #").next().unwrap_or(it).trim());
        match command {
            Some(command) if command.starts_with("cd ") => folder = &command[3..],
            Some(command) => {
                examples.push(Example { line: block.line + index, folder, command, shown: String::new() })
            }
            None => {
                if let Some(example) = examples.last_mut() {
                    example.shown += line;
                    example.shown.push('\n');
                }
            }
        }
    }
    examples
}

/// Runs it without privileges: the output must not depend on this machine's kernel. The bounding set is per thread.
fn printed(folder: &str, arguments: &str) -> String {
    let folder = path(folder);
    let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    let run = move || {
        for capability in CapabilitySet::all().iter() {
            // Fails without privileges, and for capabilities that the kernel does not know. Both are harmless.
            let _ = remove_capability_from_bounding_set(capability);
        }
        let mut command = Command::new(FERROXY);
        Done::of(command.args(&arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap())
    };
    let done = thread::spawn(run).join().unwrap();
    assert!(matches!(done.code, 0 | 2), "{done:?}");
    done.stdout
}

#[test]
fn every_block_is_checked() {
    let (readme, makefile) = (text("README.md"), text("Makefile"));
    for block in blocks(&readme) {
        let first =
            *block.lines.first().unwrap_or_else(|| panic!("README.md:{}: an empty block", block.line));
        let mut known = first.starts_with("# ferroxy run ")
            || EXCERPTS.iter().any(|it| it.0 == first)
            || PICTURES.iter().any(|it| first.starts_with(it));
        for Example { line, command, .. } in session(&block) {
            known = true;
            let target = command.strip_prefix("make ");
            let runs = command.starts_with("ferroxy ")
                || NOT_RUN.iter().any(|(start, _)| command.starts_with(start))
                || target.is_some_and(|it| makefile.lines().any(|line| line.starts_with(&format!("{it}: "))));
            assert!(
                runs,
                "README.md:{line}: `{command}` is no command of ours: add it to NOT_RUN with a reason"
            );
        }
        assert!(known, "README.md:{}: what does this show? Make it a session or an excerpt", block.line);
    }
}

#[test]
fn commands_print_what_is_shown() {
    let wrong: Vec<String> = DOCUMENTS.into_iter().flat_map(compare).collect();
    assert!(wrong.is_empty(), "{}\nUPDATE_README=1 writes what is printed", wrong.join("\n"));
}

/// The differences between a document and the output. With `UPDATE_README`, rewrites the document instead.
fn compare(document: &str) -> Vec<String> {
    let before = text(document);
    let mut updated = before.clone();
    let examples: Vec<Example<'_>> = blocks(&before).iter().flat_map(session).collect();
    let ours: Vec<_> = examples.iter().filter(|it| it.command.starts_with("ferroxy ")).collect();
    assert!(!ours.is_empty(), "{document} shows no command of ours: remove it from DOCUMENTS");
    let mut wrong = Vec::new();
    for Example { line, folder, command, shown } in ours {
        let printed = printed(folder, command.strip_prefix("ferroxy ").unwrap());
        let (printed, shown) = (printed.trim_end(), shown.trim_end());
        if printed != shown {
            let with =
                |output: &str| format!("$ {command}\n{output}{}", if output.is_empty() { "" } else { "\n" });
            updated = updated.replacen(&with(shown), &with(printed), 1);
            wrong.push(format!("{document}:{line}: `{command}` prints\n{printed}\nnot\n{shown}"));
        }
    }
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(path(document), updated).unwrap();
        return vec![];
    }
    wrong
}

#[test]
fn excerpts_are_part_of_what_is_printed() {
    let readme = text("README.md");
    for (first, folder, arguments) in EXCERPTS {
        let block = blocks(&readme).into_iter().find(|it| it.lines.first() == Some(&first));
        let block = block.unwrap_or_else(|| panic!("README.md shows no {first:?} any more: remove it here"));
        let printed = printed(folder, arguments);
        let missing = first_missing(&block.lines, &printed);
        assert_eq!(missing, None, "README.md, block of line {}: not in\n{printed}", block.line);
    }
}

/// The first line that the printed text does not have. An excerpt is parts `NAME {` … `}`, each with some of the lines of
/// that part in their order. Layout does not count.
fn first_missing<'t>(excerpt: &[&'t str], text: &str) -> Option<&'t str> {
    let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let printed: Vec<String> = text.lines().map(plain).collect();
    excerpt.split_inclusive(|line| *line == "}").find_map(|part| {
        let start = printed.iter().position(|line| *line == plain(part[0])).unwrap_or(printed.len());
        let end =
            printed[start..].iter().position(|line| line == "}").map_or(printed.len(), |it| start + it + 1);
        let mut rest = printed[start..end].iter();
        part.iter().find(|line| !rest.any(|it| *it == plain(line))).copied()
    })
}

/// The steps that the README describes: one endpoint is replaced, an element is deleted with `nft`, the agent is stopped
/// and started again.
#[test]
fn run_logs_what_is_shown() {
    let Some(node) = support::lonely_node() else { return };
    let readme = text("README.md");
    let block = blocks(&readme).into_iter().find(|it| it.lines[0].starts_with("# ferroxy run ")).unwrap();
    let (commands, shown): (Vec<&str>, Vec<&str>) =
        block.lines.iter().partition(|line| line.starts_with("# ferroxy run "));
    let [synced, changed, repaired, stopped, restarted] = shown[..] else { panic!("five lines: {shown:?}") };
    assert!(commands.iter().all(|it| *it == commands[0]), "{commands:?}");

    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("objects.yaml");
    let objects = text("conformance/cases/clusterip-tcp/objects.yaml");
    std::fs::write(&manifest, &objects).unwrap();
    let start = || Agent::spawn(&node, run_arguments(commands[0], folder.path().to_owned()));

    let agent = start();
    is_logged(&agent, synced);
    std::fs::write(&manifest, objects.replace("10.244.2.5", "10.244.2.6")).unwrap();
    is_logged(&agent, changed);
    nft(&node, &["delete element ip ferroxy cluster-ips { 10.96.0.80 }"]);
    is_logged(&agent, repaired);
    agent.signal(Signal::TERM);
    is_logged(&agent, stopped);
    agent.wait();
    is_logged(&start(), restarted);
}

/// The words after `# ferroxy run`, with this folder in place of `manifests/`.
fn run_arguments(command: &str, manifests: PathBuf) -> Vec<std::ffi::OsString> {
    let words = command.split_whitespace().skip(3);
    words.map(|word| if word == "manifests/" { manifests.clone().into() } else { word.into() }).collect()
}

/// Waits for the line of the log that begins as the README's does, and compares all of it but times.
fn is_logged(agent: &Agent, shown: &str) {
    let (_, message) = shown.split_once(' ').unwrap();
    let begins = message.split(|it: char| it.is_ascii_digit()).next().unwrap();
    let find = || {
        agent
            .log()
            .lines()
            .filter_map(|line| line.split_once("] "))
            .map(|it| it.1.to_owned())
            .find(|it| it.starts_with(begins))
    };
    wait_until(&format!("{begins:?} is logged"), DEADLINE, || find().is_some());
    assert_eq!(without_times(&find().unwrap()), without_times(message), "README.md shows another line");
}

/// `1.9ms` and `178.9µs` become `TIME`.
fn without_times(message: &str) -> String {
    let is_time = |word: &str| {
        let unit = word.trim_start_matches(|it: char| it.is_ascii_digit() || it == '.');
        unit.len() < word.len() && ["s", "ms", "µs"].contains(&unit)
    };
    let words = message.split(' ').map(|word| if is_time(word) { "TIME" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_session_is_commands_with_their_output() {
    let text =
        "words\n```console\n$ cd a/b\n$ ferroxy x  # why\nout\n\nmore\n$ make y\n```\n```\nother\n```\n";
    let blocks = blocks(text);
    assert_eq!(blocks[1], Block { line: 11, lines: vec!["other"] });
    assert_eq!(session(&blocks[1]), []);
    let found: Vec<_> =
        session(&blocks[0]).into_iter().map(|it| (it.line, it.folder, it.command, it.shown)).collect();
    assert_eq!(
        found,
        [(4, "a/b", "ferroxy x", "out\n\nmore\n".to_owned()), (8, "a/b", "make y", String::new())]
    );
}

#[test]
fn an_excerpt_that_is_not_there_is_found() {
    let printed = "map a {\n\tx 1\n\ty  2\n}\nmap b {\n\tz 3\n}\n";
    assert_eq!(first_missing(&["map b {", "z 3", "}", "map a {", "y 2", "}"], printed), None);
    assert_eq!(first_missing(&["map a {", "y 2", "x 1", "}"], printed), Some("x 1"));
    assert_eq!(first_missing(&["map a {", "z 3", "}"], printed), Some("z 3"));
    assert_eq!(first_missing(&["map c {", "}"], printed), Some("map c {"));
}

#[test]
fn times_are_not_compared_and_everything_else_is() {
    assert_eq!(without_times("2 of 2 in 1.9ms"), without_times("2 of 2 in 178.9µs"));
    assert_ne!(without_times("1 operations in 1.9ms"), without_times("1 operation in 1.9ms"));
}
