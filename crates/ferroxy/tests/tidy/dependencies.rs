//! Rules: our crates depend on each other in one direction, as ARCHITECTURE.md draws it; `anyhow` is for the binary; the
//! contract of dataplanes names none of them.

use crate::cargo::{Kind, Manifest};
use crate::finding::Finding;
use crate::rust::Code;

/// A crate of ours, and the crates of ours that it may use.
type Row = (&'static str, &'static [&'static str]);

/// From the bottom to the top: only rows further down may use a crate.
const MAY_USE: &[Row] = &[
    ("ferroxy-bpf", &[]),
    ("ferroxy-core", &[]),
    ("ferroxy-hcn", &[]),
    ("ferroxy-hcn-fake", &["ferroxy-hcn"]),
    ("ferroxy-netlink", &[]),
    ("ferroxy-proxy", &[]),
    ("ferroxy-platform", &["ferroxy-netlink"]),
    ("ferroxy-source", &["ferroxy-core", "ferroxy-platform"]),
    (
        "ferroxy-lab",
        &["ferroxy-bpf", "ferroxy-core", "ferroxy-netlink", "ferroxy-platform", "ferroxy-source"],
    ),
    ("ferroxy-dataplane", &["ferroxy-core", "ferroxy-platform"]),
    ("ferroxy-pools", &["ferroxy-core", "ferroxy-dataplane", "ferroxy-proxy"]),
    ("ferroxy-probe", &["ferroxy-core"]),
    ("ferroxy-netfilter", &["ferroxy-core", "ferroxy-dataplane", "ferroxy-netlink", "ferroxy-platform"]),
    ("ferroxy-nftables", NETFILTER_AND_PROXY),
    ("ferroxy-iptables", NETFILTER),
    ("ferroxy-ipvs", NETFILTER_AND_IPTABLES),
    ("ferroxy-kernelspace", &["ferroxy-core", "ferroxy-dataplane", "ferroxy-hcn", "ferroxy-platform"]),
    ("ferroxy-sockets", &["ferroxy-bpf", "ferroxy-core", "ferroxy-dataplane"]),
    ("ferroxy-userspace", RULES_AND_PROXY),
    (
        "ferroxy-winuserspace",
        &[
            "ferroxy-core",
            "ferroxy-dataplane",
            "ferroxy-iptables",
            "ferroxy-platform",
            "ferroxy-pools",
            "ferroxy-proxy",
        ],
    ),
    ("ferroxy", ALL),
];

const NETFILTER: &[&str] =
    &["ferroxy-core", "ferroxy-dataplane", "ferroxy-netfilter", "ferroxy-netlink", "ferroxy-platform"];
const NETFILTER_AND_PROXY: &[&str] = &[
    "ferroxy-core",
    "ferroxy-dataplane",
    "ferroxy-netfilter",
    "ferroxy-netlink",
    "ferroxy-platform",
    "ferroxy-proxy",
];
const NETFILTER_AND_IPTABLES: &[&str] = &[
    "ferroxy-core",
    "ferroxy-dataplane",
    "ferroxy-iptables",
    "ferroxy-netfilter",
    "ferroxy-netlink",
    "ferroxy-platform",
];
const RULES_AND_PROXY: &[&str] = &[
    "ferroxy-core",
    "ferroxy-dataplane",
    "ferroxy-iptables",
    "ferroxy-netfilter",
    "ferroxy-netlink",
    "ferroxy-nftables",
    "ferroxy-platform",
    "ferroxy-pools",
    "ferroxy-proxy",
];
const ALL: &[&str] = &[
    "ferroxy-bpf",
    "ferroxy-core",
    "ferroxy-dataplane",
    "ferroxy-hcn",
    "ferroxy-iptables",
    "ferroxy-ipvs",
    "ferroxy-kernelspace",
    "ferroxy-lab",
    "ferroxy-netfilter",
    "ferroxy-netlink",
    "ferroxy-nftables",
    "ferroxy-platform",
    "ferroxy-probe",
    "ferroxy-sockets",
    "ferroxy-source",
    "ferroxy-userspace",
    "ferroxy-winuserspace",
];

/// Crates that tests of any crate may use in addition: tests stand above the table.
const TESTS_MAY_USE: &[&str] = &["ferroxy-core", "ferroxy-lab", "ferroxy-source"];

/// Words of one dataplane, which the code of the contract and of the Intent must not have.
const DATAPLANES_OWN: &[&str] = &[
    "nftables",
    "iptables",
    "ipvs",
    "userspace",
    "kernelspace",
    "netfilter",
    "netlink",
    "conntrack",
    "transaction",
    "table",
    "bpf",
    "hns",
    "nft",
    "ipset",
    "xtables",
    "sysctl",
    "cgroup",
    "masquerade_mark",
    "localhost_node_ports",
    "scheduler",
    "known_endpoints",
    "systemd",
    "anyhow",
];

pub fn direction(crates: &[Manifest]) -> Vec<Finding> {
    check(crates, MAY_USE)
}

pub fn anyhow(crates: &[Manifest]) -> Vec<Finding> {
    let others = crates.iter().filter(|it| it.name != "ferroxy");
    let uses = others.flat_map(|it| it.dependencies.iter().map(move |dependency| (it, dependency)));
    uses.filter(|(_, dependency)| dependency.name == "anyhow")
        .map(|(it, dependency)| {
            let text = "anyhow is for the binary only; give this crate an error type (thiserror)";
            Finding::new(&it.path, dependency.line, &it.name, text)
        })
        .collect()
}

/// Judges the code of `ferroxy-dataplane` and of the Intent, texts included; comments may name examples.
pub fn contract(path: &str, text: &str) -> Vec<Finding> {
    if !path.starts_with("crates/ferroxy-dataplane/src/") && path != "crates/ferroxy-core/src/intent.rs" {
        return vec![];
    }
    let code = Code::with_literals(text);
    let lines = code.lines().map(|(line, code)| (line, code.to_lowercase()));
    let has = lines.flat_map(|(line, code)| {
        let words = DATAPLANES_OWN.iter().filter(move |word| code.contains(**word));
        words.map(move |word| (line, *word))
    });
    has.map(|(line, word)| {
        let text = format!("{word:?} is one dataplane's word; the contract must not know it");
        Finding::new(path, line, word, text)
    })
    .collect()
}

fn check(crates: &[Manifest], table: &[Row]) -> Vec<Finding> {
    let mut found = Vec::new();
    for manifest in crates {
        let Some((name, may_use)) = table.iter().find(|(name, _)| *name == manifest.name) else {
            let text = format!(
                "{} is not in the table of crates; add it to tests/tidy/dependencies.rs",
                manifest.name
            );
            found.push(Finding::new(&manifest.path, 1, "", text));
            continue;
        };
        for dependency in manifest.dependencies.iter().filter(|it| it.name.starts_with("ferroxy")) {
            let other = dependency.name.as_str();
            let is_test = dependency.kind == Kind::Development;
            let is_fine =
                may_use.contains(&other) || is_test && (TESTS_MAY_USE.contains(&other) || other == *name);
            if !is_fine {
                let text =
                    format!("{name} must not use {other}: dependencies point downwards (ARCHITECTURE.md)");
                found.push(Finding::new(&manifest.path, dependency.line, other, text));
            }
        }
    }
    let is_there = |name: &str| crates.iter().any(|it| it.name == name);
    for (name, _) in table.iter().filter(|(name, _)| !is_there(name)) {
        let text = format!("the table of crates lists {name}, which does not exist; remove it there");
        found.push(Finding::new("crates/ferroxy/tests/tidy/dependencies.rs", 1, name, text));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Row] = &[("ferroxy-core", &[]), ("ferroxy", &["ferroxy-core"])];

    fn manifest(name: &str, rest: &str) -> Manifest {
        let text = format!("[package]\nname = \"{name}\"\n{rest}");
        Manifest::of(&format!("crates/{name}/Cargo.toml"), &text)
    }

    #[test]
    fn a_dependency_upwards_is_found() {
        let core = manifest("ferroxy-core", "[dependencies]\nferroxy.workspace = true\n");
        let binary = manifest("ferroxy", "[dependencies]\nferroxy-core.workspace = true\n");
        let found = check(&[core, binary], TABLE);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].file.as_str(), found[0].line), ("crates/ferroxy-core/Cargo.toml", 4));
    }

    #[test]
    fn a_crate_that_is_missing_here_or_there_is_found() {
        let found = check(&[manifest("ferroxy-core", ""), manifest("ferroxy-new", "")], TABLE);
        let files: Vec<&str> = found.iter().map(|it| it.file.as_str()).collect();
        assert_eq!(files, ["crates/ferroxy-new/Cargo.toml", "crates/ferroxy/tests/tidy/dependencies.rs"]);
    }

    #[test]
    fn the_table_itself_points_downwards() {
        for (index, (name, may_use)) in MAY_USE.iter().enumerate() {
            let is_below = |other: &str| MAY_USE[..index].iter().any(|(below, _)| *below == other);
            assert!(may_use.iter().all(|other| is_below(other)), "{name}");
        }
    }

    #[test]
    fn anyhow_in_a_library_is_found() {
        let core = manifest("ferroxy-core", "[dev-dependencies]\nanyhow.workspace = true\n");
        let binary = manifest("ferroxy", "[dependencies]\nanyhow.workspace = true\n");
        let found = anyhow(&[core, binary]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].item, "ferroxy-core");
    }

    #[test]
    fn a_dataplanes_word_in_the_contract_is_found() {
        let text = "// ipvs, say\nstruct IpvsOptions;\n";
        let found = contract("crates/ferroxy-dataplane/src/lib.rs", text);
        assert_eq!(found.iter().map(|it| it.line).collect::<Vec<_>>(), [2]);
        assert_eq!(contract("crates/ferroxy-nftables/src/lib.rs", text), []);
    }
}
