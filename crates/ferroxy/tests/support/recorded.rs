//! Restores the rules that the original left in a kernel, as recorded in the corpus, with the tools that listed them.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use ferroxy_lab::Namespace;

use super::Done;

/// A case's `ipvs.rules`, split by the tool that restores each part.
#[derive(Debug)]
pub struct RecordedIpvs {
    pub ipvsadm: String,
    pub sets: String,
    /// The addresses of the device `kube-ipvs0`.
    pub addresses: Vec<String>,
    pub iptables: String,
    pub ip6tables: String,
}

impl RecordedIpvs {
    pub fn read(case: &Path) -> io::Result<RecordedIpvs> {
        fs::read_to_string(case.join("ipvs.rules")).map(|text| RecordedIpvs::parse(&text))
    }

    pub fn parse(text: &str) -> RecordedIpvs {
        let part = |from: &str, to: &str| {
            let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("no {from:?} in {text}"));
            if to.is_empty() { rest } else { rest.split_once(to).unwrap().0 }.to_owned()
        };
        let device = part("# ip addr show kube-ipvs0\n", "# iptables-save\n");
        RecordedIpvs {
            ipvsadm: part("# ipvsadm -Sn\n", "# ipset save, sorted\n"),
            sets: made_before_filled(&part("# ipset save, sorted\n", "# ip addr show kube-ipvs0\n")),
            // The name and the state come first.
            addresses: device.split_whitespace().skip(2).map(str::to_owned).collect(),
            iptables: part("# iptables-save\n", "# ip6tables-save\n"),
            ip6tables: part("# ip6tables-save\n", ""),
        }
    }
}

/// Moves `create` before `add`: the recording is sorted alphabetically.
fn made_before_filled(sets: &str) -> String {
    let (made, filled): (Vec<&str>, Vec<&str>) = sets.lines().partition(|line| line.starts_with("create"));
    made.into_iter().chain(filled).map(|line| format!("{line}\n")).collect()
}

/// Runs one of the `restore` programs: of iptables in its variants, of ipset, of ipvsadm.
pub fn restore(node: &Namespace, tool: &str, rules: &str) {
    let mut command = match tool {
        "ipset" | "ipvsadm" => Command::new(tool),
        variant => Command::new(format!("{variant}-restore")),
    };
    command.args(match tool {
        "ipset" => &["-exist", "restore"][..],
        "ipvsadm" => &["-R"],
        _ => &["--noflush"],
    });
    if rules.contains(" [0:0]") {
        // Without this option, counters are not restored. With it, every chain must have counters.
        command.arg("--counters");
    }
    command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut child = node.run(|| command.spawn()).unwrap().unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert_eq!(done.code, 0, "{tool} restore: {}", done.stderr);
}
