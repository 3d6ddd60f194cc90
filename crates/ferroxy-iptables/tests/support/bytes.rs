//! Reads the kernel's iptables rules byte for byte, and asserts that they are the same whether the tool writes them or we do.
//! Tests of other modes that write such rules use it, too. Needs root.

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::collections::BTreeMap;

use ferroxy_core::Family;
use ferroxy_iptables::door::Door;
use ferroxy_iptables::tool::{Limits, Tools, Variant, Version};
use ferroxy_iptables::watch::Owns;
use ferroxy_iptables::xt::Sets;
use ferroxy_iptables::{State, diff};
use ferroxy_lab::Namespace;
use ferroxy_netlink::nftables::{self, Connection};
use ferroxy_netlink::xtables;

const FAMILIES: [nftables::Family; 2] = [nftables::Family::Ip, nftables::Family::Ip6];

/// Every chain of every table of the nft variant, with whether it is a base chain, and its rules as the kernel lists them.
pub fn nft_chains() -> BTreeMap<String, (bool, Vec<Vec<u8>>)> {
    let mut connection = Connection::open().unwrap();
    let mut found = BTreeMap::new();
    for family in FAMILIES {
        let mut chains = Vec::new();
        let mut each = |table: &str, chain: &str, is_base| {
            chains.push((table.to_owned(), chain.to_owned(), is_base));
        };
        connection.all_chains(family, &mut each).unwrap();
        for (table, chain, is_base) in chains {
            let mut rules = Vec::new();
            let mut each = |rule: &nftables::CompatRule<'_>| {
                rules.push(rule.bytes().to_vec());
                Ok(())
            };
            connection.compat_rules(family, &table, &chain, &mut each).unwrap();
            found.insert(format!("{family:?} {table} {chain}"), (is_base, rules));
        }
    }
    found
}

/// The tables of the legacy variant, without what rules have counted.
pub fn legacy_tables() -> Vec<(String, u64)> {
    let mut digests = Vec::new();
    for family in FAMILIES {
        for table in xtables::tables(family).unwrap() {
            let digest = xtables::Connection::open(family).unwrap().read(&table).unwrap().digest();
            digests.push((format!("{family:?} {table}"), digest));
        }
    }
    digests.sort();
    digests
}

pub fn builtin(family: Family, variant: Variant) -> Door {
    match variant {
        Variant::NfTables => Door::nf_tables(family),
        Variant::Legacy => Door::legacy(family),
    }
    .unwrap()
}

pub fn tool(family: Family, variant: Variant) -> Door {
    Door::tool(Tools::find_variant(family, variant).expect("both variants of iptables are needed"))
}

/// Whether this tool writes the bytes that we write. The nft variant of other versions has another form; all of them are read.
pub fn has_our_form(variant: Variant) -> bool {
    let tools = Tools::find_variant(Family::V4, variant).expect("both variants of iptables are needed");
    variant == Variant::Legacy || tools.version == Version(1, 8, 9)
}

/// The tool and we write the same bytes in both variants; each reads what the other wrote, and removes it.
pub fn assert_writers_agree(what: &str, rules: &State, owns: Owns, prepare: fn() -> Sets) {
    let doors: [fn(Family, Variant) -> Door; 2] = [tool, builtin];
    for variant in [Variant::NfTables, Variant::Legacy] {
        let [theirs, ours] = [0, 1].map(|writer| {
            let write_and_read = || {
                let sets = prepare();
                for family in Family::ALL {
                    apply(&mut doors[writer](family, variant), &sets, &diff(&State::default(), rules));
                }
                let written = (nft_chains(), legacy_tables());
                for family in Family::ALL {
                    for reader in [writer, 1 - writer] {
                        let mut door = doors[reader](family, variant);
                        door.know(&sets);
                        let seen = door.observe(owns, &Limits::default()).unwrap();
                        let wanted = State {
                            tables: rules
                                .tables
                                .iter()
                                .filter(|((of, _), _)| *of == family)
                                .map(|(place, table)| (*place, table.clone()))
                                .collect(),
                        };
                        assert_eq!(seen.to_string(), wanted.to_string(), "{what}: {variant:?}");
                    }
                    let mut door = doors[1 - writer](family, variant);
                    apply(&mut door, &sets, &diff(rules, &State::default()));
                    // Only the chains that we share with the kubelet may be left.
                    let left = door.observe(owns, &Limits::default()).unwrap();
                    assert!(diff(&left, &State::default()).is_empty(), "{what}: {left}");
                }
                written
            };
            Namespace::new("bytes").unwrap().run(write_and_read).unwrap()
        });
        if has_our_form(variant) {
            assert_eq!(ours, theirs, "{what}: {variant:?}");
        }
    }
}

fn apply(door: &mut Door, sets: &Sets, plan: &ferroxy_iptables::Plan) {
    door.know(sets);
    door.apply(plan, &Limits::default(), &()).unwrap();
}
