//! Flags as Go's flag parser reads them: the forms of `--flag=value` for each type, and the parsers of values.

use clap::Arg;

use ferroxy_core::duration;

/// Stands for the value of a flag that is true or false.
pub(super) const TRUTH: &str = "BOOL";

/// The syntax of Go's flag parser for each type; the `#[arg(…)]`s of `Flags` use these.
pub(super) trait GoStyle: Sized {
    /// `--flag` or `--flag=value`, never `--flag value`.
    fn optional(self, name: &'static str) -> Self;
    /// `--flag`, `--flag=true`, `--flag=false`
    fn truth(self) -> Self;
    /// May be negative.
    fn number(self, name: &'static str) -> Self;
    fn duration(self) -> Self;
    /// Commas, repetition, or both.
    fn list(self, name: &'static str) -> Self;
}

impl GoStyle for Arg {
    fn optional(self, name: &'static str) -> Arg {
        self.value_name(name).num_args(0..=1).require_equals(true).default_missing_value("true")
    }

    fn truth(self) -> Arg {
        self.optional(TRUTH).value_parser(boolean)
    }

    fn number(self, name: &'static str) -> Arg {
        self.value_name(name).allow_hyphen_values(true)
    }

    fn duration(self) -> Arg {
        self.number("DURATION").value_parser(go_duration)
    }

    fn list(self, name: &'static str) -> Arg {
        self.value_name(name).value_delimiter(',')
    }
}

/// The boolean values of Go's flag parser.
pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// The text of a duration, if it is one.
pub(super) fn go_duration(text: &str) -> Result<String, String> {
    duration::parse(text).map(|_| text.to_owned())
}

/// `true`, `false`, `raw`, or `v1.37.0-ours`: the version to report, which is accepted and has no effect.
pub(super) fn version(text: &str) -> Result<String, String> {
    match text {
        "raw" => Ok(text.to_owned()),
        _ if text.starts_with('v') => Ok(text.to_owned()),
        _ => boolean(text).map(|it| it.to_string()).map_err(|_| "must be true, false or raw".to_owned()),
    }
}

pub(super) fn gate(text: &str) -> Result<(String, bool), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=true or NAME=false")?;
    Ok((name.trim().to_owned(), boolean(value.trim())?))
}
