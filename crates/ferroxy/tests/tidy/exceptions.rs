//! Exceptions to the rules, with their reasons. The list is short on purpose: shorten the file or the function instead.

#[derive(Debug, Clone, Copy)]
pub struct Exception {
    pub rule: &'static str,
    pub file: &'static str,
    /// The function or the word; empty for a whole file.
    pub item: &'static str,
    pub reason: &'static str,
}

pub const EXCEPTIONS: &[Exception] = &[
    Exception {
        rule: "function length",
        file: "crates/ferroxy-netlink/src/nftables/expr/encode.rs",
        item: "encode_data",
        reason: "a table: one arm for each kind of expression, with its attributes",
    },
    Exception {
        rule: "function length",
        file: "crates/ferroxy-netlink/tests/nftables.rs",
        item: "ipv4_rules",
        reason: "a table: each rule we write beside the text that nft prints for it",
    },
    Exception {
        rule: "function length",
        file: "crates/ferroxy-nftables/src/program/sets.rs",
        item: "declaration",
        reason: "a table: one arm for each set and map of the program, with its types",
    },
    Exception {
        rule: "place",
        file: "scripts/vm",
        item: "/root/",
        reason: "inside the emulated machine: where its init mounts the real root before it switches to it",
    },
];
