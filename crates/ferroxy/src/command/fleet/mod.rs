//! `kubectl ferroxy`: asks the agents of all nodes, through the API server and with the rights of the caller. One file for each command;
//! `reach.rs` finds the agents and asks them; `complete.rs` completes words in a shell.

mod complete;
mod explain;
mod reach;
mod status;
mod top;
mod trace;

use std::ffi::OsString;

use anyhow::{Context, ensure};
use clap::{CommandFactory, Parser, Subcommand};
use ferroxy_core::ServiceName;

use super::Answer;
use reach::Reach;

/// Queries the Ferroxy agents of all nodes of a cluster, with your own permissions (RBAC).
///
/// Exit codes: 0 success; 1 error, with one line on stderr; 2 the command succeeded and found a problem
/// (a node does not answer or differs from the others, a Service does not work somewhere, a packet reaches no endpoint).
#[derive(Debug, Parser)]
#[command(name = "kubectl-ferroxy", bin_name = "kubectl ferroxy", version)]
pub(super) struct Fleet {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show all nodes in a table: versions, problems, and how far they lag behind the API
    Status(status::Status),
    /// Show where a Service works and where not, and why
    Explain(explain::Explain),
    /// Follow a packet of a pod to a Service, on the node of that pod
    Trace(trace::Trace),
    /// Show the traffic of Services, summed over all nodes
    Top(top::Top),
}

impl Fleet {
    pub(super) fn parse_from_args(args: Vec<OsString>) -> Result<Fleet, clap::Error> {
        Fleet::try_parse_from(args)
    }

    /// Completes the last word of a command line.
    pub(super) fn complete(args: &[OsString]) -> anyhow::Result<Answer> {
        complete::run(args)
    }

    pub(super) fn run(self) -> anyhow::Result<Answer> {
        match self.command {
            Command::Status(command) => command.run(&self.reach),
            Command::Explain(command) => command.run(&self.reach),
            Command::Trace(command) => command.run(&self.reach),
            Command::Top(command) => command.run(&self.reach),
        }
    }
}

/// For manual pages.
pub(super) fn command_line() -> clap::Command {
    Fleet::command().display_name("kubectl-ferroxy")
}

/// `NAMESPACE/NAME`, or a name in this namespace.
fn service_name(text: &str, namespace: &str) -> anyhow::Result<ServiceName> {
    let (namespace, name) = object_name(text, namespace)
        .with_context(|| format!("`{text}` is not a Service: write NAME or NAMESPACE/NAME"))?;
    Ok(ServiceName::new(namespace, name))
}

/// A checked namespace and name: they become part of a URL path.
fn object_name<'a>(text: &'a str, namespace: &'a str) -> anyhow::Result<(&'a str, &'a str)> {
    let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
    for part in [namespace, name] {
        ensure!(is_name(part), "`{part}` is not a name of an object");
    }
    Ok((namespace, name))
}

/// A DNS name: nothing that could lead to another path.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let begins = text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    begins && text.len() <= 253 && text.bytes().all(is_plain) && !text.contains("..")
}

/// `1 node`, `3 nodes`
fn nodes(count: usize) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_no_other_path() {
        assert_eq!(service_name("web", "shop").unwrap().as_str(), "shop/web");
        assert_eq!(service_name("a/web", "shop").unwrap().as_str(), "a/web");
        for wrong in ["", "a/", "../x", "a/..", "a/b/c", "a/b?x", "a/b%2f", "A", "a b"] {
            assert!(service_name(wrong, "shop").is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        command_line().debug_assert();
    }
}
