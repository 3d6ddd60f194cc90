//! Encodes operations into a batch of nf_tables messages. Sends nothing.

use ferroxy_netfilter::tables::{KUBE_PROXY, kernel_family};
use ferroxy_netlink::nftables::{self as nl, Batch, ElementRef};

use crate::element::Element;
use crate::plan::{Action, Op};
use crate::text::TABLE_COMMENT;

/// Encodes one transaction. The kernel needs this order within it: objects, removals, additions. Operations are tagged with their
/// index in `ops`.
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
    // A chain or set can be removed when nothing refers to it: last.
    for (tag, op) in tagged() {
        let family = kernel_family(op.family);
        match &op.action {
            Action::RemoveChain(name) => batch.delete_chain(tag, family, table, name),
            Action::RemoveSet(name) => batch.delete_set(tag, family, table, name),
            Action::RemoveKubeProxyTable => batch.delete_table(tag, family, KUBE_PROXY),
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
        Action::FlushChain(name) | Action::RetireChain(name) => batch.flush_chain(tag, family, table, name),
        Action::AddRule { chain, rule } => batch.add_rule(tag, family, table, chain, &rule.kernel),
        Action::RemoveChain(_) | Action::RemoveSet(_) | Action::RemoveKubeProxyTable => {}
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
