//! The command line and its commands. One small file for each command.

mod agent_page;
mod bundle;
mod cleanup;
mod completions;
#[cfg(all(feature = "demo", target_os = "linux"))]
mod demo;
mod diff;
mod explain;
#[cfg(feature = "api")]
mod fleet;
mod input;
mod look;
mod man;
mod objects;
mod record;
mod render;
mod run;
mod service;
mod sockets;
mod source;
mod status;
#[cfg(all(feature = "top", target_os = "linux"))]
mod top;
mod trace;
mod verdicts;
mod watch;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use serde_json::Value;

use crate::config::KUBERNETES_VERSION;
use crate::flags::{Flags, ModeFlags, normalise, one_line};
use crate::log;
use crate::modes::Modes;

/// kube-proxy, rebuilt: makes the Services of a Kubernetes cluster work on this node.
///
/// Exit codes: 0 success; 1 error, with one line on stderr; 2 the command succeeded and found a problem
/// (`diff` found differences, `trace` reaches no endpoint, `explain` and `status` found something wrong).
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
    /// Program the kernel and keep it in sync (the default)
    Run(run::Run),
    /// Remove all rules of Ferroxy and kube-proxy from this node
    Cleanup(cleanup::Cleanup),
    /// Print the complete ruleset that `run` would program; needs no privileges
    Render(render::Render),
    /// Print what `run` would change in this kernel now
    Diff(diff::Diff),
    /// Follow one packet through the ruleset, step by step
    Trace(trace::Trace),
    /// Explain how this node handles a Service, and diagnose it
    Explain(explain::Explain),
    /// Show how the agent on this node is doing, on one screen
    Status(status::Status),
    /// Show the Services of this node by traffic, problems first, live
    #[cfg(all(feature = "top", target_os = "linux"))]
    Top(top::Top),
    /// Follow what the agent on this node does, line by line
    Watch(watch::Watch),
    /// Write a support bundle that explain, trace, render and diff can read on another machine
    Record(record::Record),
    /// Print a script that completes commands and flags in a shell
    Completions(completions::Completions),
    /// Print the manual page, or write those of all commands
    Man(man::Manual),
    /// Run a demo cluster in its own network namespaces; leaves nothing behind
    #[cfg(all(feature = "demo", target_os = "linux"))]
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
    /// The same as JSON, in the form of manifests
    Yaml,
}

impl Output {
    /// Writes an answer in this form. The other forms are not created.
    pub fn print(self, text: impl FnOnce() -> String, value: impl FnOnce() -> Value) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        match self {
            Output::Text => out.write_all(text().as_bytes())?,
            Output::Json => writeln!(out, "{:#}", value())?,
            Output::Yaml => out.write_all(serde_saphyr::to_string(&value())?.as_bytes())?,
        }
        Ok(())
    }
}

/// The result of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
}

/// Runs what the command line asks for.
pub fn main(args: impl IntoIterator<Item = OsString>, modes: Modes) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let name = Name::of(args.first());
    // An unfinished command line stays as it is.
    let args = if name == Name::Completion { args } else { normalise(args) };
    let result = match name {
        Name::Completion => Ok(complete_plugin(&args)),
        Name::Ferroxy => Cli::parse_with(args.clone(), modes).map(|cli| cli.run(modes)),
        Name::KubeProxy => as_kube_proxy(args.clone(), modes),
        Name::Plugin => as_plugin(args.clone()),
    };
    let is_said = |reasons: String| service::is_of_agent(&args) && service::report(&args, &reasons);
    let code = match result {
        Ok(Ok(Answer::Yes)) => ExitCode::SUCCESS,
        Ok(Ok(Answer::No)) => ExitCode::from(2),
        Ok(Err(error)) if is_said(format!("{error:#}")) => ExitCode::FAILURE,
        Ok(Err(error)) => failed(name, &error),
        Err(error) if error.use_stderr() && is_said(one_line(&error)) => ExitCode::FAILURE,
        Err(error) => not_understood(name, &error),
    };
    log::flush();
    code
}

/// The name that the program was started by: links called `kube-proxy`, `kubectl-ferroxy` and
/// `kubectl_complete-ferroxy` make it take other command lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Ferroxy,
    KubeProxy,
    /// The plugin of kubectl.
    Plugin,
    /// Started by kubectl to complete a command line of the plugin.
    Completion,
}

impl Name {
    fn of(program: Option<&OsString>) -> Name {
        let name = program.and_then(|path| Path::new(path).file_stem());
        match name.and_then(OsStr::to_str) {
            Some("kube-proxy") => Name::KubeProxy,
            // kubectl writes a dash in a plugin's name as an underscore.
            Some("kubectl-ferroxy" | "kubectl_ferroxy") => Name::Plugin,
            Some("kubectl_complete-ferroxy") => Name::Completion,
            _ => Name::Ferroxy,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Name::Ferroxy => "ferroxy",
            Name::KubeProxy => "kube-proxy",
            Name::Plugin | Name::Completion => "kubectl ferroxy",
        }
    }
}

impl Cli {
    fn parse_with(args: Vec<OsString>, modes: Modes) -> Result<Cli, clap::Error> {
        Cli::from_arg_matches(&command_line(modes).try_get_matches_from(args)?)
    }

    fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        match self.command {
            None => self.run.run(modes),
            Some(Command::Run(command)) => command.run(modes),
            Some(Command::Cleanup(command)) => command.run(modes),
            Some(Command::Render(command)) => command.run(modes),
            Some(Command::Diff(command)) => command.run(modes),
            Some(Command::Trace(command)) => command.run(modes),
            Some(Command::Explain(command)) => command.run(modes),
            Some(Command::Status(command)) => command.run(),
            #[cfg(all(feature = "top", target_os = "linux"))]
            Some(Command::Top(command)) => command.run(),
            Some(Command::Watch(command)) => command.run(),
            Some(Command::Record(command)) => command.run(modes),
            Some(Command::Completions(command)) => command.run(modes),
            Some(Command::Man(command)) => command.run(modes),
            #[cfg(all(feature = "demo", target_os = "linux"))]
            Some(Command::Demo(command)) => command.run(modes),
        }
    }
}

/// All commands. Their flags depend on the modes.
fn command_line(modes: Modes) -> clap::Command {
    ModeFlags::add_to_all(Cli::command(), modes)
}

/// Without subcommands: a word that is not a flag is an error, as in the original.
fn as_kube_proxy(args: Vec<OsString>, modes: Modes) -> Result<anyhow::Result<Answer>, clap::Error> {
    let command = clap::Command::new("kube-proxy").disable_version_flag(true).about(
        "Makes the Services of a Kubernetes cluster work on this node. (This is Ferroxy, as kube-proxy.)",
    );
    let matches = ModeFlags::add_to_all(run::Run::augment_args(command), modes).try_get_matches_from(args)?;
    if let Some(version) = kubernetes_version(&Flags::from_arg_matches(&matches)?) {
        return Ok(print_line(&version));
    }
    run::Run::from_arg_matches(&matches).map(|run| run.run(modes))
}

/// The commands for all nodes.
#[cfg(feature = "api")]
fn as_plugin(args: Vec<OsString>) -> Result<anyhow::Result<Answer>, clap::Error> {
    fleet::Fleet::parse_from_args(args).map(fleet::Fleet::run)
}

#[cfg(feature = "api")]
fn complete_plugin(args: &[OsString]) -> anyhow::Result<Answer> {
    fleet::Fleet::complete(args)
}

/// Without the plugin there is no command to complete.
#[cfg(not(feature = "api"))]
fn complete_plugin(_: &[OsString]) -> anyhow::Result<Answer> {
    Ok(Answer::Yes)
}

#[cfg(not(feature = "api"))]
fn as_plugin(_: Vec<OsString>) -> Result<anyhow::Result<Answer>, clap::Error> {
    Ok(Err(anyhow::anyhow!("this binary is built without the client for the Kubernetes API")))
}

fn not_understood(name: Name, error: &clap::Error) -> ExitCode {
    // If a required subcommand is missing, the help lists all of them, as kubectl's does.
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let printed = write!(io::stdout(), "{}", error.render());
        return if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if !error.use_stderr() {
        // Help was requested: clap's own text, on standard output.
        return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let name = name.as_str();
    log::print_error(&format!("{name}: {}; `{name} --help` lists commands and flags", one_line(error)));
    ExitCode::FAILURE
}

/// Prints the reasons, each on its own line; or logs them in JSON, if the log is in JSON.
fn failed(name: Name, error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let reasons = format!("{error:#}");
    if log::is_json() {
        tracing::error!(error = reasons, "command failed");
    } else {
        reasons.lines().for_each(|reason| log::print_error(&format!("{}: {reason}", name.as_str())));
    }
    ExitCode::FAILURE
}

/// The reader of our output has closed the pipe (`ferroxy render | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// An answer of one line. (Not `println!`, which panics when the reader is gone.)
fn print_line(line: &str) -> anyhow::Result<Answer> {
    writeln!(std::io::stdout(), "{line}")?;
    Ok(Answer::Yes)
}

/// `--version`. (`--version=v…` sets, in the original, the version to report as; it prints nothing.)
fn version(flags: &Flags) -> Option<String> {
    match flags.version.as_deref()? {
        "true" => Some(format!("ferroxy {}", env!("CARGO_PKG_VERSION"))),
        "raw" => Some(format!("ferroxy {} (compatible with kube-proxy v1.37)", env!("CARGO_PKG_VERSION"))),
        _ => None,
    }
}

/// `--version`, as the original prints it: scripts read it.
fn kubernetes_version(flags: &Flags) -> Option<String> {
    let version = KUBERNETES_VERSION;
    match flags.version.as_deref()? {
        "true" => Some(format!("Kubernetes {version}")),
        "raw" => {
            let mut numbers = version.trim_start_matches('v').split('.');
            let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
            let ours = concat!("ferroxy-", env!("CARGO_PKG_VERSION"));
            Some(format!(
                "version.Info{{Major:\"{major}\", Minor:\"{minor}\", GitVersion:\"{version}\", Compiler:\"{ours}\"}}"
            ))
        }
        _ => None,
    }
}
