//! What the tests that play the conformance corpus share: a case's configuration, and the judgement of what was seen.

use std::collections::BTreeSet;
use std::ffi::OsString;

use ferroxy_lab::Seen;
use ferroxy_lab::conformance::{Case, Mismatch, Mode, RecordedProbe};

/// Whether one of the Service's endpoints must answer every time: whichever it is.
pub fn has_affinity(case: &Case) -> bool {
    case.name == "clusterip-affinity"
}

pub fn judge(case: &Case, mode: Mode, recorded: &RecordedProbe, seen: &Seen) -> Result<(), Mismatch> {
    if has_affinity(case) {
        let pods = BTreeSet::from(["a1", "a2", "b1", "b2"].map(str::to_owned));
        recorded.compare_with_affinity(mode, &pods, seen)
    } else {
        recorded.compare(mode, seen)
    }
}

/// A command, with the arguments of `run`.
pub fn command(word: &str, arguments: &[OsString]) -> Vec<OsString> {
    std::iter::once(word.into()).chain(arguments.iter().cloned()).collect()
}
