//! The flags that set fields of modes, made from the tables of the modes.

use std::collections::BTreeMap;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use ferroxy_dataplane::{Kind, Mode};
use serde::Serialize;
use serde_json::Value;

use super::DATAPLANE;
use super::go::{GoStyle, boolean, go_duration};
use crate::modes::{MODES, ModeFlag, Modes};

/// The flags of modes that were given, by name. Each has the value that its field would have in a file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ModeFlags {
    given: BTreeMap<String, Value>,
}

impl ModeFlags {
    /// The value of a flag, named without `--`.
    pub fn get(&self, flag: &str) -> Option<&Value> {
        self.given.get(flag)
    }

    /// Does so for a command and its subcommands, where they have `--proxy-mode`.
    pub fn add_to_all(command: Command, modes: Modes) -> Command {
        let has_flags = command.get_arguments().any(|arg| arg.get_id() == "proxy_mode");
        let command = if has_flags { ModeFlags::add_to(command, modes) } else { command };
        command.mut_subcommands(|sub| ModeFlags::add_to_all(sub, modes))
    }

    /// Adds the flags of these modes to a command that has `--proxy-mode`, and adapts the help of those it has already.
    pub(super) fn add_to(mut command: Command, modes: Modes) -> Command {
        let names = modes.sentence("or");
        command = set_help(command, "proxy_mode", &names).after_help(table(modes));
        for flag in modes.flags() {
            let help = help(&flag, modes);
            let known = command.get_arguments().find(|arg| arg.get_long() == Some(flag.flag.name));
            command = match known.map(|arg| arg.get_id().to_string()) {
                Some(id) => set_help(command, &id, &help),
                None => command.arg(arg(&flag).help(help)),
            };
        }
        command
    }
}

impl Args for ModeFlags {
    fn augment_args(command: Command) -> Command {
        ModeFlags::add_to(command, MODES)
    }

    fn augment_args_for_update(command: Command) -> Command {
        ModeFlags::augment_args(command)
    }
}

impl FromArgMatches for ModeFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ModeFlags, clap::Error> {
        // Flags of modes are those whose values are of this type.
        let value = |id: &str| matches.try_get_many::<Given>(id).ok().flatten().map(joined);
        let given = matches.ids().filter_map(|id| Some((id.to_string(), value(id.as_str())?)));
        Ok(ModeFlags { given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given.extend(ModeFlags::from_arg_matches(matches)?.given);
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Given {
    Whole(Value),
    /// One entry of a list.
    Entry(String),
}

/// `--flag=` without a value is an empty list, not a list of one empty text.
fn joined<'a>(given: impl Iterator<Item = &'a Given>) -> Value {
    let mut entries = Vec::new();
    for one in given {
        match one {
            Given::Whole(value) => return value.clone(),
            Given::Entry(text) if text.is_empty() => {}
            Given::Entry(text) => entries.push(text.clone().into()),
        }
    }
    Value::Array(entries)
}

/// Not with `mut_arg`, which moves the flag to the end of the list, and so its heading to the end of `--help`.
fn set_help(command: Command, id: &str, help: &str) -> Command {
    command.mut_args(|arg| if arg.get_id() == id { arg.help(help.to_owned()) } else { arg })
}

/// The modes, a line each.
fn table(modes: Modes) -> String {
    let width = modes.names().into_iter().map(str::len).max().unwrap_or_default();
    let row = |mode: &Mode| format!("\n  {:width$}  {} (needs {})", mode.name, mode.help, mode.needs);
    format!("Modes:{}", modes.iter().map(row).collect::<String>())
}

/// What the flag does, and in which modes, unless it is all of them.
fn help(flag: &ModeFlag, modes: Modes) -> String {
    let readers: Vec<&str> = flag.readers.iter().map(|mode| mode.name).collect();
    let help = flag.flag.help;
    if readers.is_empty() || readers == modes.names() {
        help.to_owned()
    } else {
        format!("{help} ({})", readers.join(", "))
    }
}

fn arg(it: &ModeFlag) -> Arg {
    let flag = it.flag;
    let arg = Arg::new(flag.name).long(flag.name).help_heading(DATAPLANE).action(ArgAction::Set);
    let arg = arg.hide(it.readers.is_empty());
    let text = |text: String| Given::Whole(Value::String(text));
    match it.kind {
        Kind::Truth { .. } => arg.truth().value_parser(boolean.map(|it| Given::Whole(Value::Bool(it)))),
        Kind::Number { least, most, .. } => {
            // As wide as the original's flags, at least: values that are out of range are reported with all other problems.
            let range = least.min(i32::MIN.into())..=most.max(i32::MAX.into());
            let parser = clap::value_parser!(i64).range(range).map(|it| Given::Whole(it.into()));
            arg.number(flag.value_name).value_parser(parser)
        }
        Kind::Text { .. } | Kind::Ports | Kind::Choice { .. } => {
            arg.value_name(flag.value_name).value_parser(StringValueParser::new().map(text))
        }
        Kind::Duration { .. } => arg.duration().value_parser(go_duration.map(text)),
        Kind::Cidrs => arg
            .list(flag.value_name)
            .action(ArgAction::Append)
            .value_parser(StringValueParser::new().map(Given::Entry)),
    }
}
