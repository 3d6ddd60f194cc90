//! Notifications about changes to nf_tables, decoded: which kind of object changed in which table, but not how. Reads no socket.

use std::collections::VecDeque;

use crate::codec::{Malformed, Message, Messages};

use super::decode::{read_chain_name, read_family, read_generation, read_table_name};
use super::types::Family;
use super::wire::message;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Changed {
        /// `None` for families this crate does not write.
        family: Option<Family>,
        table: String,
        /// `table`, `chain`, `rule`, `set`, `element`, `object` or `flowtable`.
        what: &'static str,
        /// Of a chain or rule.
        chain: Option<String>,
        removed: bool,
        /// The socket that made the change: compare with `Connection::port_id`.
        port_id: u32,
    },
    /// A commit is complete.
    Generation { id: u32, port_id: u32 },
    /// The receive queue overflowed: anything may have changed.
    Lost,
}

/// Equal notices in a row are kept once.
pub(super) fn read_notices(bytes: &[u8], pending: &mut VecDeque<Notice>) -> Result<(), Malformed> {
    for message in Messages::new(bytes) {
        if let Some(notice) = read_notice(&message?)?
            && pending.back() != Some(&notice)
        {
            pending.push_back(notice);
        }
    }
    Ok(())
}

fn read_notice(message: &Message<'_>) -> Result<Option<Notice>, Malformed> {
    let port_id = message.port_id;
    let (what, removed) = match message.kind {
        message::NEWTABLE => ("table", false),
        message::DELTABLE => ("table", true),
        message::NEWCHAIN => ("chain", false),
        message::DELCHAIN => ("chain", true),
        message::NEWRULE => ("rule", false),
        message::DELRULE => ("rule", true),
        message::NEWSET => ("set", false),
        message::DELSET => ("set", true),
        message::NEWSETELEM => ("element", false),
        message::DELSETELEM => ("element", true),
        message::NEWOBJ => ("object", false),
        message::DELOBJ => ("object", true),
        message::NEWFLOWTABLE => ("flowtable", false),
        message::DELFLOWTABLE => ("flowtable", true),
        message::NEWGEN => return Ok(Some(Notice::Generation { id: read_generation(message)?, port_id })),
        _ => return Ok(None),
    };
    let (family, table) = (read_family(message)?, read_table_name(message)?.to_owned());
    let chain = read_chain_name(message, what)?;
    Ok(Some(Notice::Changed { family, table, what, chain, removed, port_id }))
}
