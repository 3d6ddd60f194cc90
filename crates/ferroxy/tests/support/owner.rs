//! A table that belongs to a process: the kernel lets no other process change or delete it while that process runs.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use ferroxy_lab::Namespace;

use super::{DEADLINE, nft, wait_until};

/// Removed by the kernel when this is dropped.
#[derive(Debug)]
pub struct OwnedTable {
    nft: Child,
}

impl OwnedTable {
    /// The table of Ferroxy: the first sync fails for as long as the owner lives.
    pub fn of_ferroxy(node: &Namespace) -> OwnedTable {
        OwnedTable::create(node, "ip ferroxy", "flags owner;")
    }

    /// A table that is recognised as kube-proxy's.
    pub fn of_kube_proxy(node: &Namespace) -> OwnedTable {
        OwnedTable::create(node, "ip kube-proxy", "flags owner; comment \"rules for kube-proxy\";")
    }

    fn create(node: &Namespace, table: &str, contents: &str) -> OwnedTable {
        let mut command = Command::new("nft");
        command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null());
        let mut nft_owner = node.run(|| command.spawn()).unwrap().unwrap();
        let order = format!("add table {table} {{ {contents} }}\n");
        nft_owner.stdin.as_mut().unwrap().write_all(order.as_bytes()).unwrap();
        wait_until("the table is there", DEADLINE, || nft(node, &["list", "tables"]).contains(table));
        OwnedTable { nft: nft_owner }
    }
}

impl Drop for OwnedTable {
    fn drop(&mut self) {
        self.nft.kill().unwrap();
        self.nft.wait().unwrap();
    }
}
