//! Ring 0: the house rules, as tests. They check the text of the repository; other tests check what the code does.
//!
//! Each rule is a module with a pure function from text to findings, and with tests that show how it fails. A finding is
//! printed as `file:line: what is wrong; what to do`. An allowed finding has a line in `exceptions.rs`, with the reason;
//! an exception that is no longer needed fails the test, too.
//!
//! No rule asks `git`: the tests also pass in an unpacked source archive.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "the functions that tests share are tests too")]

mod cargo;
mod dependencies;
mod exceptions;
mod finding;
mod header;
mod hosts;
mod length;
mod limits;
mod modes;
mod names;
mod paths;
mod phrases;
mod pins;
mod rust;
mod safety;
mod tree;

use finding::{Finding, judge};
use tree::{File, Tree};

/// Applies a rule to every Rust file, or to every file.
fn each<'t>(
    files: impl Iterator<Item = &'t File>,
    rule: impl Fn(&str, &str) -> Vec<Finding>,
) -> Vec<Finding> {
    files.flat_map(|file| rule(&file.path, &file.text)).collect()
}

#[test]
fn every_rust_file_begins_with_what_it_is() {
    judge("header", each(Tree::read().rust(), header::findings));
}

#[test]
fn files_are_short() {
    judge("file length", each(Tree::read().rust(), length::of_file));
}

#[test]
fn functions_are_short() {
    judge("function length", each(Tree::read().rust(), length::of_functions));
}

#[test]
fn half_of_the_files_are_very_short() {
    let tree = Tree::read();
    let files: Vec<_> = tree.rust().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    judge("median file length", length::of_median(&files));
}

#[test]
fn names_say_what_a_thing_is() {
    let tree = Tree::read();
    let mut found: Vec<_> = tree.files().flat_map(|file| names::of_file(&file.path)).collect();
    found.extend(each(tree.rust(), names::of_items));
    judge("name", found);
}

#[test]
fn our_crates_depend_in_one_direction() {
    judge("direction", dependencies::direction(&Tree::read().crates()));
}

#[test]
fn only_the_binary_uses_anyhow() {
    judge("anyhow", dependencies::anyhow(&Tree::read().crates()));
}

#[test]
fn the_contract_knows_no_dataplane() {
    judge("contract", each(Tree::read().rust(), dependencies::contract));
}

#[test]
fn the_binary_knows_no_mode_by_name() {
    let tree = Tree::read();
    judge("mode", each(tree.rust(), modes::findings));
    let files = tree.rust().map(|file| (file.path.as_str(), file.text.as_str()));
    assert_eq!(modes::unused(files), Vec::<&str>::new(), "remove these from tests/tidy/modes.rs");
}

#[test]
fn every_dependency_is_pinned_in_one_place() {
    judge("pin", each(Tree::read().manifests(), pins::findings));
}

#[test]
fn every_package_comes_from_crates_io() {
    judge("registry", each(Tree::read().files(), hosts::of_lock_file));
}

#[test]
fn no_path_of_one_machine_and_no_registry_is_named() {
    judge("place", each(Tree::read().files(), hosts::findings));
}

#[test]
fn crates_without_unsafe_forbid_it() {
    let tree = Tree::read();
    let crates: Vec<_> = tree.crates().into_iter().map(|it| (it.path.clone(), tree.sources(it))).collect();
    judge("unsafe", crates.iter().flat_map(|(path, sources)| safety::findings(path, sources)).collect());
}

#[test]
fn limits_are_those_of_the_code() {
    let tree = Tree::read();
    let code = |path: &str| tree.files().find(|file| file.path == path).map(|file| file.text.as_str());
    judge("limit", limits::findings("docs/limits.md", code("docs/limits.md").unwrap_or_default(), code));
}

#[test]
fn words_are_plain() {
    judge("phrase", each(Tree::read().files(), phrases::findings));
}

#[test]
fn documents_name_files_that_exist() {
    let tree = Tree::read();
    let files: Vec<&str> = tree.files().map(|file| file.path.as_str()).collect();
    judge("path", each(tree.files(), |path, text| paths::findings(path, text, &files)));
}

#[test]
fn exceptions_are_few() {
    assert!(exceptions::EXCEPTIONS.len() <= 12, "shorten a file or a function instead");
    let rules = ["file length", "function length", "place", "name", "path", "unsafe"];
    for exception in exceptions::EXCEPTIONS {
        assert!(rules.contains(&exception.rule), "no exceptions from this rule: {exception:?}");
        assert!(exception.reason.len() > 20, "say why: {exception:?}");
    }
}
