//! Reads our tables from the kernel into a State. Reads no other tables.

use ferroxy_core::Family;
use ferroxy_netfilter::tables::kernel_family;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::Connection;

use crate::TABLE;
use crate::decode::decode;
use crate::element::{Element, SetId};
use crate::program::declaration;
use crate::rule::Rule;
use crate::state::{Chain, Entry, State, Table};

/// Our tables as the kernel has them.
pub fn observe(connection: &mut Connection) -> Result<State, Error> {
    let mut state = State::default();
    for family in Family::ALL {
        if connection.table(kernel_family(family), TABLE)?.is_some() {
            state.tables.insert(family, observe_table(connection, family)?);
        }
    }
    Ok(state)
}

fn observe_table(connection: &mut Connection, family: Family) -> Result<Table, Error> {
    let kernel = kernel_family(family);
    let mut table = Table { dormant: connection.is_dormant(kernel, TABLE)?, ..Table::default() };
    for chain in connection.chains(kernel, TABLE)? {
        let seen = Chain { hook: chain.hook, rules: Vec::new(), comment: chain.comment };
        table.chains.insert(chain.name, seen);
    }
    for observed in connection.rules(kernel, TABLE)? {
        if let Some(chain) = table.chains.get_mut(&observed.chain) {
            chain.rules.push(Rule { kernel: observed.rule, text: String::new() });
        }
    }
    for set in connection.sets(kernel, TABLE)? {
        // If a set is not declared as ours, the table is replaced, and its elements do not matter.
        let as_declared = |id: &SetId| !id.is_runtime() && declaration(*id, family) == set;
        let readable = SetId::parse(&set.name).filter(as_declared);
        if let Some(id) = readable {
            let mut found = Vec::new();
            connection.elements(kernel, TABLE, &set.name, &mut |element| {
                if let Some(Element { key, value, comment, .. }) = decode(id, family, element) {
                    found.push((key, Entry { value, comment }));
                }
            })?;
            table.fill(id, found);
        }
        table.sets.insert(set.name.clone(), set);
    }
    Ok(table)
}
