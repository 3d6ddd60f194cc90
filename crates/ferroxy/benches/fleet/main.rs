//! `make bench-fleet`: the cost of many agents for one API server, our agents and, if wanted, those of a peer. Each agent
//! is a whole proxy on a node of its own, with its own rules in the kernel; all share this machine's processors with the
//! server.
//!
//! The API server's CPU, memory and bytes are its own and do not depend on what the agents do to their kernels. The delay of
//! a change does: it ends when the kernel of the last agent has the change.

#[path = "../agent/api.rs"]
#[allow(dead_code, reason = "bench-agent uses the rest")]
mod api;
#[path = "../agent/command_line.rs"]
mod command_line;
#[path = "../agent/files.rs"]
mod files;
#[path = "../agent/kernel.rs"]
#[allow(dead_code, reason = "bench-agent uses the rest")]
mod kernel;
mod measure;
mod options;
#[path = "../agent/proxy.rs"]
#[allow(dead_code, reason = "bench-agent uses the rest")]
mod proxy;
#[path = "../agent/quantile.rs"]
mod quantile;
mod report;
#[path = "../agent/size.rs"]
#[allow(dead_code, reason = "bench-agent uses the rest")]
mod size;

use std::error::Error;
use std::process::ExitCode;

use ferroxy_lab::Capability;

pub use options::Options;

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[allow(dead_code, reason = "the test of this harness calls what is below")]
fn main() -> ExitCode {
    match Options::from_command_line().and_then(|options| bench(&options)) {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench-fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures every number of agents and returns the report.
pub fn bench(options: &Options) -> Result<String> {
    for need in [Capability::Bridges, Capability::NfTables] {
        need.probe().map_err(|error| format!("this machine lacks {need}: {error}"))?;
    }
    let fleets = measure::all(options)?;
    match options.output {
        command_line::Output::Text => Ok(report::text(options, &fleets)),
        command_line::Output::Json => report::json(options, &fleets),
    }
}

/// Prints a step that takes longer than a moment.
fn progress(what: &str) {
    eprintln!("bench-fleet: {what}");
}
