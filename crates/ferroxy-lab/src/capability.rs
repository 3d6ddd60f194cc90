//! Capabilities of this kernel and this user, detected by trying them, and how a test reports a missing one.

use std::fmt;
use std::io::{self, Write};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferroxy_bpf::kernel::{Attach, Cgroup, Link, Program};
use ferroxy_bpf::{Assembler, Register};
use ferroxy_netlink::socket::{self, Request, Socket};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, ipproto};

use crate::cgroup::{BpfFilesystem, Cgroups};
use crate::error::{LabError, Result};
use crate::namespace::Namespace;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Everything here needs these: as root, or inside a user namespace.
    NetworkNamespaces,
    Bridges,
    /// Bridged packets pass netfilter: needed if a pod reaches a pod on its own node through a Service.
    BridgeNetfilter,
    NfTables,
    /// The `nft` command, which lists back what we wrote.
    NftTool,
    Sctp,
    /// BPF programs at cgroups, and a bpffs for them: real root only.
    SocketPrograms,
}

impl Capability {
    pub const ALL: [Capability; 7] = [
        Capability::NetworkNamespaces,
        Capability::Bridges,
        Capability::BridgeNetfilter,
        Capability::NfTables,
        Capability::NftTool,
        Capability::Sctp,
        Capability::SocketPrograms,
    ];

    /// Tries it in a new namespace. The error names what is missing.
    pub fn probe(self) -> Result<()> {
        let namespace = Namespace::new("capability")?;
        match self {
            Capability::NetworkNamespaces => Ok(()),
            Capability::Bridges => Ok(namespace.connection()?.create_bridge("probe")?),
            Capability::BridgeNetfilter => find_bridge_netfilter(&namespace),
            Capability::NfTables => namespace.run(ask_nftables_generation)?,
            Capability::NftTool => find_nft(),
            Capability::Sctp => namespace.run(open_sctp_socket)?,
            Capability::SocketPrograms => attach_a_program(),
        }
    }
}

/// One line for each capability: its name, and whether it is available or why not.
pub fn report() -> String {
    let lines = Capability::ALL.map(|capability| match capability.probe() {
        Ok(()) => format!("{capability}: yes\n"),
        Err(error) => format!("{capability}: no ({error})\n"),
    });
    lines.concat()
}

/// For the first line of a test: true if all of these are available. Otherwise the test must return; this prints a message
/// and counts it, or fails if `CI` is set.
#[must_use = "a test that lacks what it needs must return"]
pub fn require(needs: &[Capability]) -> bool {
    let missing = needs.iter().find_map(|need| need.probe().err().map(|error| format!("no {need}: {error}")));
    missing.inspect(|missing| skip(missing)).is_none()
}

/// For a test that returns because something else is missing: prints a message and counts it, or fails if `CI` is set.
#[allow(clippy::panic, reason = "the way a test fails")]
pub fn skip(missing: &str) {
    if std::env::var_os("CI").is_some() {
        panic!("CI must run every test, and this one cannot: {missing}");
    }
    tell_skipped(missing);
}

/// Prints that the calling test is skipped, the reason, and the number of skipped tests.
pub(crate) fn tell_skipped(missing: &str) {
    static SKIPPED: AtomicUsize = AtomicUsize::new(0);
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("SKIPPED: {test} (number {count} in this process): {missing}\n");
    // Not eprintln!, whose output the test harness captures if a test passes.
    let written = io::stderr().write_all(line.as_bytes());
    assert!(written.is_ok(), "cannot print that a test is skipped");
}

fn find_bridge_netfilter(namespace: &Namespace) -> Result<()> {
    match namespace.has_sysctl("net/bridge/bridge-nf-call-iptables")? {
        true => Ok(()),
        false => Err(LabError::system("find net.bridge settings (modprobe br_netfilter)", Errno::NOENT)),
    }
}

/// The cheapest request to nf_tables.
fn ask_nftables_generation() -> Result<()> {
    const NFT_MSG_GETGEN: u16 = 16;
    let kind = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8 | NFT_MSG_GETGEN;
    let request = Request { operation: "ask nf_tables", object: "generation", kind, flags: 0 };
    // nfgenmsg: family, version, resource.
    Ok(Socket::open(socket::Protocol::Netfilter)?.request(request, |encoder| encoder.put_raw(&[0; 4]))?)
}

fn find_nft() -> Result<()> {
    let output = Command::new("nft").arg("--version").output();
    output.map(drop).map_err(|e| LabError::system("run nft --version", e))
}

fn open_sctp_socket() -> Result<()> {
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::SCTP))
        .map(drop)
        .map_err(|e| LabError::system("open an SCTP socket", e))
}

fn attach_a_program() -> Result<()> {
    let failed = |error: ferroxy_bpf::kernel::Error| LabError::system(error.to_string(), error.errno);
    let (cgroups, _pins) = (Cgroups::new()?, BpfFilesystem::mount()?);
    let mut program = Assembler::new();
    program.set(Register::R0, 1).exit();
    let code = program.finish().map_err(|error| LabError::system(error.to_string(), Errno::INVAL))?;
    let program = Program::load("probe", Attach::Connect4, &code, &[]).map_err(failed)?;
    let cgroup = Cgroup::open(&cgroups.create("probe")?).map_err(failed)?;
    Link::create("probe", &program, &cgroup, Attach::Connect4).map(drop).map_err(failed)
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::NetworkNamespaces => "network namespaces",
            Capability::Bridges => "bridges",
            Capability::BridgeNetfilter => "netfilter on bridges (br_netfilter)",
            Capability::NfTables => "nf_tables",
            Capability::NftTool => "the nft command",
            Capability::Sctp => "SCTP",
            Capability::SocketPrograms => "BPF programs at cgroups",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_a_verdict_for_everything() {
        let report = report();
        for capability in Capability::ALL {
            let line = report.lines().find(|line| line.starts_with(&capability.to_string()));
            let line = line.unwrap_or_else(|| panic!("no line for {capability} in:\n{report}"));
            let verdict = if capability.probe().is_ok() { ": yes" } else { ": no (" };
            assert!(line.contains(verdict), "{line}");
        }
    }
}
