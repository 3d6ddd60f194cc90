//! Carries out a Plan: encodes it into transactions and sends them.
//!
//! A Plan is one transaction wherever the socket can carry it. Where it cannot (in user namespaces the send buffer is
//! small) it is cut; a Plan's order makes every cut safe.

use std::ops::AddAssign;

use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{self as nl, Batch, CommitError, Connection, ElementRef};
use thiserror::Error as ThisError;

use crate::TABLE;
use crate::element::Element;
use crate::plan::{Action, Op, Plan};
use crate::predecessor;
use crate::rule::kernel_family;
use crate::text::TABLE_COMMENT;

/// What it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Receipt {
    pub transactions: usize,
    pub messages: usize,
    pub bytes: usize,
}

impl AddAssign for Receipt {
    fn add_assign(&mut self, other: Receipt) {
        self.transactions += other.transactions;
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// The kernel did not take it. Nothing of the failing transaction is in force.
#[derive(Debug, ThisError)]
#[error("{}", self.words())]
pub struct ApplyError {
    /// The operations the kernel named, with its words.
    pub refused: Vec<(Op, Error)>,
    /// Trouble that belongs to no operation.
    pub other: Option<Error>,
}

impl ApplyError {
    fn words(&self) -> String {
        let first = self.refused.first().map(|(_, error)| error).or(self.other.as_ref());
        let more = match self.refused.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        first.map_or_else(|| "the kernel refused the change".into(), |error| format!("{error}{more}"))
    }
}

/// Sends a Plan to the kernel.
pub fn apply(connection: &mut Connection, plan: &Plan) -> Result<Receipt, ApplyError> {
    let mut receipt = Receipt::default();
    for ops in [&plan.chains, &plan.changes, &plan.tidy] {
        receipt += commit(connection, ops)?;
    }
    Ok(receipt)
}

/// Sends these operations: in one transaction, if it can be.
pub fn commit(connection: &mut Connection, ops: &[Op]) -> Result<Receipt, ApplyError> {
    let mut receipt = Receipt::default();
    for part in ops.chunks(ops_per_transaction(connection)) {
        let sent = connection.commit(&encode(part, TABLE)).map_err(|error| explain(part, error))?;
        receipt += Receipt { transactions: 1, messages: sent.messages, bytes: sent.bytes };
    }
    Ok(receipt)
}

/// Asks the kernel whether it would take a Plan for a table of this name; changes nothing.
pub fn check(connection: &mut Connection, plan: &Plan, table: &str) -> Result<(), ApplyError> {
    connection.check(&encode(&plan.changes, table)).map_err(|error| explain(&plan.changes, error))
}

/// No operation is larger than a rule with a long comment; elements are far smaller.
fn ops_per_transaction(connection: &Connection) -> usize {
    const LARGEST_OP_BYTES: usize = 512;
    (connection.max_batch_bytes() / LARGEST_OP_BYTES).max(1)
}

fn explain(ops: &[Op], error: CommitError) -> ApplyError {
    let mut refused = Vec::new();
    let mut other = error.cause;
    for failure in error.failures {
        match failure.tag.and_then(|tag| ops.get(tag as usize)) {
            Some(op) => refused.push((op.clone(), failure.error)),
            None => other = Some(failure.error),
        }
    }
    ApplyError { refused, other }
}

/// One transaction. Within it order matters only to the kernel's bookkeeping: objects, removals, additions.
/// Operations are tagged with their place in `ops`. Pure.
pub fn encode(ops: &[Op], table: &str) -> Batch {
    let mut batch = Batch::new();
    let tagged = || (0u32..).zip(ops);
    for (tag, op) in tagged() {
        encode_object(&mut batch, tag, op, table);
    }
    for (tag, op) in tagged() {
        if let Action::Remove(old) | Action::Replace { old, .. } = &op.action {
            encode_element(&mut batch, tag, op, table, old, Batch::delete_element);
        }
    }
    for (tag, op) in tagged() {
        if let Action::Add(new) | Action::Replace { new, .. } = &op.action {
            encode_element(&mut batch, tag, op, table, new, Batch::add_element);
        }
    }
    // A chain or set can go when nothing refers to it: after all else.
    for (tag, op) in tagged() {
        let family = kernel_family(op.family);
        match &op.action {
            Action::RemoveChain(name) => batch.delete_chain(tag, family, table, name),
            Action::RemoveSet(name) => batch.delete_set(tag, family, table, name),
            Action::RemovePredecessor => batch.delete_table(tag, family, predecessor::TABLE),
            _ => {}
        }
    }
    batch
}

fn encode_object(batch: &mut Batch, tag: u32, op: &Op, table: &str) {
    let family = kernel_family(op.family);
    match &op.action {
        Action::AddTable => {
            let description = nl::Table { name: table.into(), comment: Some(TABLE_COMMENT.into()) };
            batch.add_table(tag, family, &description);
        }
        Action::RemoveTable => batch.delete_table(tag, family, table),
        Action::AddSet(set) => batch.add_set(tag, family, table, set),
        Action::AddChain { name, hook } => {
            let chain = nl::Chain { name: name.clone(), hook: *hook, comment: None };
            batch.add_chain(tag, family, table, &chain);
        }
        Action::FlushChain(name) => batch.flush_chain(tag, family, table, name),
        Action::AddRule { chain, rule } => batch.add_rule(tag, family, table, chain, &rule.kernel),
        Action::RemoveChain(_) | Action::RemoveSet(_) | Action::RemovePredecessor => {}
        Action::Add(_) | Action::Remove(_) | Action::Replace { .. } => {}
    }
}

type ElementWriter = fn(&mut Batch, u32, nl::Family, &str, &str, ElementRef<'_>);

fn encode_element(
    batch: &mut Batch,
    tag: u32,
    op: &Op,
    table: &str,
    element: &Element,
    write: ElementWriter,
) {
    let family = kernel_family(op.family);
    element.with_data(|data, key_end| {
        let encoded = ElementRef {
            key: element.key.as_bytes(),
            key_end,
            interval_end: false,
            data,
            comment: element.comment.as_deref(),
        };
        write(batch, tag, family, table, element.set.name(), encoded);
    });
}
