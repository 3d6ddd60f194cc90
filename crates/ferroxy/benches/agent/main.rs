//! `make bench-agent`: a whole proxy, ours and if wanted another, measured from outside against an API server at scale.
//!
//! The benchmark only uses kube-proxy's flags and signals, and observes the effects on the kernel and on packets. The
//! binaries run one after the other, each on its own node in a cluster of namespaces; the API server and its objects are
//! the same for both. `measure/` documents how each figure is measured.
//!
//! All processes end with the benchmark. An interrupted run leaves a few small files in the folder of the figures, which
//! the next run removes.

mod api;
mod command_line;
mod figures;
mod files;
mod kernel;
mod measure;
mod options;
mod picture;
mod proxy;
mod quantile;
mod report;
mod size;
mod stage;

use std::error::Error;
use std::fs;
use std::process::ExitCode;

use ferroxy_lab::Capability;

pub use figures::Figure;
#[allow(unused_imports, reason = "for the test of this harness")]
pub use kernel::Listener;
pub use options::Options;

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[allow(dead_code, reason = "the test of this harness calls what is below")]
fn main() -> ExitCode {
    match Options::from_command_line().and_then(|options| bench(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures, prints, and writes `figures.json` and `figures.svg` into the folder of the options.
pub fn bench(options: &Options) -> Result<()> {
    for need in [Capability::Bridges, Capability::NfTables] {
        need.probe().map_err(|error| format!("this machine lacks {need}: {error}"))?;
    }
    fs::create_dir_all(&options.folder).map_err(|e| format!("{}: {e}", options.folder.display()))?;
    let results = measure::all(options)?;
    let json = report::json(&results)?;
    fs::write(options.folder.join("figures.json"), &json)?;
    fs::write(options.folder.join("figures.svg"), picture::svg(&results))?;
    match options.output {
        command_line::Output::Text => print!("{}", report::text(&results)),
        command_line::Output::Json => println!("{json}"),
    }
    eprintln!("bench-agent: figures.json and figures.svg are in {}", options.folder.display());
    Ok(())
}

/// Prints a step that takes longer than a moment.
fn progress(what: &str) {
    eprintln!("bench-agent: {what}");
}
