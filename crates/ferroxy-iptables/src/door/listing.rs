//! Reads rules of the nft variant from the kernel: our part of all tables as a State, or all rules of one chain with their
//! handles. Writes nothing.

use std::hash::{DefaultHasher, Hash, Hasher};

use ferroxy_netlink::codec::Malformed;
use ferroxy_netlink::nftables::{CompatRule, Connection};

use super::nft::nft_family;
use crate::program::is_builtin;
use crate::rule::target;
use crate::state::{Rules, State, Table, TableName};
use crate::tool::Error;
use crate::watch::Owns;
use crate::xt::expression::{Found, read};
use crate::xt::{Terms, unknown};

/// How often everything is read at most, if other programs commit changes meanwhile. After that the last reading is used: a
/// later verification finds what it missed.
const ATTEMPTS: usize = 3;

/// Identifies a rule in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed {
    /// `None` until the kernel has returned it.
    pub handle: Option<u64>,
    /// The tag of the message that added the rule; 0 if the rule was listed.
    pub tag: u32,
    /// The hash of the rule's text.
    pub digest: u64,
}

impl Listed {
    pub(super) fn digest_of(rule: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        rule.hash(&mut hasher);
        hasher.finish()
    }
}

/// All rules of a chain, in order. Empty if the chain does not exist.
pub(super) fn list_chain(
    connection: &mut Connection,
    terms: Terms<'_>,
    table: TableName,
    chain: &str,
) -> Result<Vec<Listed>, Error> {
    let mut rules = Vec::new();
    connection.compat_rules(nft_family(terms.family), table.as_str(), chain, &mut |rule| {
        let digest = Listed::digest_of(&text(terms, rule)?);
        rules.push(Listed { handle: Some(rule.handle), tag: 0, digest });
        Ok(())
    })?;
    Ok(rules)
}

/// Our chains and jumps in all tables of a family.
pub(super) fn observe(connection: &mut Connection, terms: Terms<'_>, owns: Owns) -> Result<State, Error> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let before = connection.generation()?;
        let state = observe_once(connection, terms, owns)?;
        if attempt == ATTEMPTS || connection.generation()? == before {
            return Ok(state);
        }
    }
}

fn observe_once(connection: &mut Connection, terms: Terms<'_>, owns: Owns) -> Result<State, Error> {
    let family = terms.family;
    let mut chains: Vec<(TableName, Box<str>)> = Vec::new();
    connection.all_chains(nft_family(family), &mut |table, chain, is_base| {
        if let Some(table) = TableName::parse(table)
            && ((is_base && is_builtin(chain)) || owns(table, chain))
        {
            chains.push((table, chain.into()));
        }
    })?;
    let mut state = State::default();
    for (table, chain) in chains {
        let is_ours = owns(table, &chain);
        let mut rules = Rules::new();
        connection.compat_rules(nft_family(family), table.as_str(), &chain, &mut |rule| {
            let text = text(terms, rule)?;
            if is_ours || target(&text).is_some_and(|target| owns(table, target)) {
                rules.push(format_args!("{text}"));
            }
            Ok(())
        })?;
        rules.shrink();
        let place: &mut Table = state.tables.entry((family, table)).or_default();
        if is_ours {
            place.chains.insert(chain, rules);
        } else if !rules.is_empty() {
            place.jumps.insert(chain, rules);
        }
    }
    state.tables.retain(|_, table| !table.is_empty());
    Ok(state)
}

/// The rule as `iptables-save` prints it.
fn text(terms: Terms<'_>, rule: &CompatRule<'_>) -> Result<String, Malformed> {
    Ok(match read(terms, rule.expressions())? {
        Found::Known(spec) => spec.display(terms.family).to_string(),
        Found::Unknown(target) => unknown(rule.handle, target),
    })
}
