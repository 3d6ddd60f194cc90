//! What the kernel has of ours, read back into a State. Reads our tables and no others.

use std::net::IpAddr;

use ferroxy_core::Family;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{self as nl, Connection};

use crate::TABLE;
use crate::chain::{ChainId, Treatment};
use crate::element::{Element, Key, SetId, Value, address_from};
use crate::program;
use crate::rule::{Rule, kernel_family};
use crate::state::{Chain, State, Table};

/// Our tables, as they are.
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
        // Elements of a set that is not as we declare it say nothing: the table will be replaced.
        let as_declared = |id: &SetId| !id.is_runtime() && program::declaration(*id, family) == set;
        let readable = SetId::parse(&set.name).filter(as_declared);
        if let Some(id) = readable {
            connection.elements(kernel, TABLE, &set.name, &mut |element| {
                if let Some(element) = decode(id, family, element) {
                    table.insert(element);
                }
            })?;
        }
        table.sets.insert(set.name.clone(), set);
    }
    Ok(table)
}

fn decode(set: SetId, family: Family, element: nl::Element) -> Option<Element> {
    let key = Key::from_bytes(&element.key)?;
    let value = match (element.data, element.key_end) {
        (nl::Data::None, None) => Value::Member,
        (nl::Data::None, Some(end)) => last_address(&end, family).map_or(Value::Foreign, Value::UpTo),
        (nl::Data::Verdict(nl::Verdict::Goto(chain)), _) => {
            ChainId::parse(&chain).map_or(Value::Foreign, Value::Goto)
        }
        (nl::Data::Verdict(_), _) => Value::Foreign,
        (nl::Data::Value(bytes), _) => match set {
            SetId::Frontends(_) | SetId::LocalFrontends(_) => treatment(&bytes),
            _ => endpoint(&bytes),
        }
        .unwrap_or(Value::Foreign),
    };
    Some(Element { set, key, value, comment: element.comment.map(Into::into) })
}

fn treatment(bytes: &[u8]) -> Option<Value> {
    Treatment::from_code(u32::from_ne_bytes(bytes.try_into().ok()?)).map(Value::Treatment)
}

fn endpoint(bytes: &[u8]) -> Option<Value> {
    let (address, port) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    Some(Value::Endpoint(address_from(address)?, u16::from_be_bytes([port[0], port[1]])))
}

fn last_address(key: &[u8], family: Family) -> Option<IpAddr> {
    let width = match family {
        Family::V4 => 4,
        Family::V6 => 16,
    };
    address_from(key.get(key.len().checked_sub(width)?..)?)
}
