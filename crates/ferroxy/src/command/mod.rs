//! The command line: which commands there are. One small file for each.

mod cleanup;
mod demo;
mod diff;
mod explain;
mod input;
mod render;
mod run;
mod trace;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::flags::{Flags, normalise, one_line};

/// kube-proxy, rebuilt: makes the Services of a Kubernetes cluster work on this node.
///
/// Exit codes: 0 all is well; 1 it could not be done, and one line says why; 2 it was done and the answer is "no"
/// (`diff` found differences, `trace` reaches no endpoint, `explain` found something wrong).
#[derive(Debug, Parser)]
#[command(name = "ferroxy", disable_version_flag = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    // Without a command it is `run`, as the original is started.
    #[command(flatten)]
    run: run::Run,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Program the kernel, and keep it right until told to stop
    Run(run::Run),
    /// Remove everything of ours from the kernel
    Cleanup(cleanup::Cleanup),
    /// Print the ruleset for manifests; needs no privileges
    Render(render::Render),
    /// Print what `run` would change in this kernel now
    Diff(diff::Diff),
    /// Follow one packet through the ruleset, step by step
    Trace(trace::Trace),
    /// Say what a Service does here, and why it does not work
    Explain(explain::Explain),
    /// Show all of it in network namespaces of its own; leaves nothing behind
    Demo(demo::Demo),
}

/// How a command prints its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Text,
    /// For machines
    Json,
}

/// What came of a command that could be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
}

/// Runs what the command line asks for.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(normalise(args)) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help was asked for: clap's own text, on standard output.
            return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Err(error) => {
            eprintln!("ferroxy: {}; `ferroxy --help` lists what there is", one_line(&error));
            return ExitCode::FAILURE;
        }
    };
    let result = match cli.command {
        None => cli.run.run(),
        Some(Command::Run(command)) => command.run(),
        Some(Command::Cleanup(command)) => command.run(),
        Some(Command::Render(command)) => command.run(),
        Some(Command::Diff(command)) => command.run(),
        Some(Command::Trace(command)) => command.run(),
        Some(Command::Explain(command)) => command.run(),
        Some(Command::Demo(command)) => command.run(),
    };
    match result {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(2),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if is_not_permitted(&error) => {
            eprintln!("ferroxy: {error:#}; run it as root, or with CAP_NET_ADMIN");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("ferroxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whoever read our output has enough of it (`ferroxy render | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The kernel let us not even ask.
fn is_not_permitted(error: &anyhow::Error) -> bool {
    let asked = error.downcast_ref::<ferroxy_netlink::error::Error>();
    let applied =
        error.downcast_ref::<ferroxy_nftables::apply::ApplyError>().and_then(|it| it.other.as_ref());
    asked.or(applied).is_some_and(|error| error.errno == rustix::io::Errno::PERM)
}

/// `--version`, as the original prints it.
fn version(flags: &Flags) -> Option<String> {
    match flags.version.as_deref()? {
        "false" => None,
        "raw" => Some(format!("ferroxy {} (compatible with kube-proxy v1.37)", env!("CARGO_PKG_VERSION"))),
        _ => Some(format!("ferroxy {}", env!("CARGO_PKG_VERSION"))),
    }
}
