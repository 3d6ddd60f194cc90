//! `kubectl_complete-ferroxy WORD…`: completes the last word. kubectl starts a program of this name when the shell completes
//! `kubectl ferroxy`. It reads one proposal from each line, with a description after a tab, and a directive from the last line.

use std::ffi::OsString;
use std::io::Write;

use clap::{Arg, Command, FromArgMatches, ValueHint};

use super::reach::Reach;
use super::{command_line, is_name};
use crate::command::Answer;

/// Directives for the shell: it proposes nothing else, or files as well.
const NOTHING_ELSE: &str = ":4";
const FILES: &str = ":0";

/// The user waits for every completion.
const SECONDS: u64 = 3;

pub fn run(args: &[OsString]) -> anyhow::Result<Answer> {
    let words: Vec<String> = args.iter().skip(1).map(|it| it.to_string_lossy().into_owned()).collect();
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut root = command_line();
    root.build();
    let proposals = propose(&root, before, last);
    let mut out = std::io::stdout().lock();
    for (word, description) in &proposals.words {
        writeln!(out, "{word}\t{description}")?;
    }
    for name in proposals.names.iter().flat_map(|kind| kind.names(before, last)) {
        writeln!(out, "{name}")?;
    }
    writeln!(out, "{}", if proposals.files { FILES } else { NOTHING_ELSE })?;
    Ok(Answer::Yes)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Proposals {
    /// The words, with their descriptions.
    words: Vec<(String, String)>,
    names: Option<Names>,
    files: bool,
}

/// Names that only the cluster knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Pods,
    Services,
}

fn propose(root: &Command, before: &[String], last: &str) -> Proposals {
    let place = Place::after(root, before);
    let fits = |words: Vec<(String, String)>| {
        let words = words.into_iter().filter(|(word, _)| word.starts_with(last)).collect();
        Proposals { words, ..Proposals::default() }
    };
    if let Some(flag) = place.value_of {
        return Proposals { files: is_path(flag), ..fits(values(flag, "")) };
    }
    if let Some((name, _)) = last.split_once('=') {
        let flag = find(place.command, name).filter(|flag| takes_value(flag));
        return fits(flag.map(|flag| values(flag, &format!("{name}="))).unwrap_or_default());
    }
    if last.starts_with('-') {
        return fits(flags(place.command));
    }
    if place.command.has_subcommands() {
        return fits(commands(place.command));
    }
    let names = match (place.command.get_name(), place.arguments) {
        ("explain", 0) | ("trace", 1) => Some(Names::Services),
        ("trace", 0) => Some(Names::Pods),
        _ => None,
    };
    Proposals { names, ..Proposals::default() }
}

/// The position of the last word.
struct Place<'a> {
    command: &'a Command,
    /// The flag whose value it is.
    value_of: Option<&'a Arg>,
    /// How many words before it are neither flags nor commands.
    arguments: usize,
}

impl<'a> Place<'a> {
    fn after(root: &'a Command, words: &[String]) -> Place<'a> {
        let mut place = Place { command: root, value_of: None, arguments: 0 };
        for word in words {
            if place.value_of.take().is_some() {
                continue;
            }
            if word.starts_with('-') {
                place.value_of = find(place.command, word).filter(|flag| takes_value(flag));
            } else if let Some(command) = place.command.find_subcommand(word) {
                place.command = command;
            } else {
                place.arguments += 1;
            }
        }
        place
    }
}

/// The flag that is written like `word`: `--output`, `-o`.
fn find<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|flag| {
        let long = word.strip_prefix("--").is_some_and(|name| flag.get_long() == Some(name));
        let short = flag.get_short().is_some_and(|short| word == format!("-{short}"));
        long || short
    })
}

fn takes_value(flag: &Arg) -> bool {
    flag.get_action().takes_values()
}

fn is_path(flag: &Arg) -> bool {
    matches!(flag.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath)
}

fn values(flag: &Arg, prefix: &str) -> Vec<(String, String)> {
    let values = flag.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
    let described = |value: &clap::builder::PossibleValue| {
        (
            format!("{prefix}{}", value.get_name()),
            value.get_help().map(ToString::to_string).unwrap_or_default(),
        )
    };
    values.map(|value| described(&value)).collect()
}

fn flags(command: &Command) -> Vec<(String, String)> {
    let named = command.get_arguments().filter(|flag| !flag.is_hide_set());
    let described = |flag: &Arg| Some((format!("--{}", flag.get_long()?), first_line(flag.get_help())));
    named.filter_map(described).collect()
}

fn commands(command: &Command) -> Vec<(String, String)> {
    let named = command.get_subcommands().filter(|command| !command.is_hide_set());
    named.map(|command| (command.get_name().to_owned(), first_line(command.get_about()))).collect()
}

fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).and_then(|text| text.lines().next().map(str::to_owned)).unwrap_or_default()
}

impl Names {
    /// Empty if the cluster cannot be queried: a completion has no place for errors.
    fn names(self, before: &[String], last: &str) -> Vec<String> {
        let (prefix, namespace) = match last.split_once('/') {
            Some((namespace, _)) => (format!("{namespace}/"), Some(namespace)),
            None => (String::new(), None),
        };
        let Some(reach) = reach(before, namespace) else { return Vec::new() };
        let found = match self {
            Names::Pods => reach.pod_names(),
            Names::Services => reach.service_names(),
        };
        // Only plain names: others may contain control characters for the terminal.
        let plain = found.unwrap_or_default().into_iter().filter(|name| is_name(name));
        plain.map(|name| format!("{prefix}{name}")).filter(|name| name.starts_with(last)).collect()
    }
}

/// The flags on the command line so far, with the namespace of the name that is being completed.
fn reach(before: &[String], namespace: Option<&str>) -> Option<Reach> {
    let words = std::iter::once("kubectl-ferroxy").chain(before.iter().map(String::as_str));
    let matches = command_line().ignore_errors(true).try_get_matches_from(words).ok()?;
    let matches = matches.subcommand().map_or(&matches, |(_, matches)| matches);
    let reach = Reach::from_arg_matches(matches).ok()?;
    Some(reach.for_completion(namespace, SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(words: &[&str]) -> (Vec<String>, Option<Names>, bool) {
        let mut root = command_line();
        root.build();
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let (last, before) = words.split_last().unwrap();
        let Proposals { words, names, files } = propose(&root, before, last);
        (words.into_iter().map(|(word, _)| word).collect(), names, files)
    }

    #[test]
    fn a_word_is_completed_by_where_it_stands() {
        let words = |of: &[&str]| proposed(of).0;
        assert_eq!(words(&["st"]), ["status"]);
        assert_eq!(words(&["-o", "json", "t"]), ["trace", "top"]);
        assert_eq!(words(&["top", "--agents-"]), ["--agents-namespace", "--agents-port"]);
        assert_eq!(words(&["status", "-o", ""]), ["text", "json", "yaml"]);
        assert_eq!(words(&["--output=y"]), ["--output=yaml"]);
        assert_eq!(words(&["--no-such-flag=y"]), Vec::<String>::new());
        assert_eq!(proposed(&["--kubeconfig", ""]), (vec![], None, true));
        assert_eq!(proposed(&["--context", ""]), (vec![], None, false));
    }

    #[test]
    fn names_are_asked_for_where_a_command_takes_them() {
        let names = |of: &[&str]| proposed(of).1;
        assert_eq!(names(&["explain", ""]), Some(Names::Services));
        assert_eq!(names(&["explain", "web", ""]), None);
        assert_eq!(names(&["trace", "-n", "shop", "cl"]), Some(Names::Pods));
        assert_eq!(names(&["trace", "client", "w"]), Some(Names::Services));
        assert_eq!(names(&["status", ""]), None);
    }
}
