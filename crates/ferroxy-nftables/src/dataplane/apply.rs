//! Applies a Plan: encodes it into transactions and sends them.
//!
//! A Plan is one transaction if the socket can carry it. If not (the send buffer is small in user namespaces), it is split; the
//! order of a Plan makes every split safe.

use ferroxy_dataplane::{Failure, FailureKind, Receipt};
use ferroxy_netfilter::failure::{self, PERMISSION_HINT};
use ferroxy_netlink::error::{Error, Kind};
use ferroxy_netlink::nftables::{CommitError, Connection};
use thiserror::Error as ThisError;

use crate::TABLE;
use crate::encode::encode;
use crate::plan::{Action, Op, Plan};

/// The kernel refused a transaction, or could not be reached. Nothing of the failing transaction is in force.
#[derive(Debug, ThisError)]
#[error("{}", self.words())]
pub struct ApplyError {
    /// The operations that the kernel named, with its reasons.
    pub refused: Vec<(Op, Error)>,
    /// An error that belongs to no operation.
    pub other: Option<Error>,
}

impl ApplyError {
    pub fn errors(&self) -> impl Iterator<Item = &Error> {
        self.refused.iter().map(|(_, error)| error).chain(&self.other)
    }

    pub fn is_not_permitted(&self) -> bool {
        self.errors().any(failure::is_not_permitted)
    }

    /// The kernel does not have what the ledger says: verify, then try again.
    pub fn suggests_drift(&self) -> bool {
        self.errors().any(failure::suggests_drift)
    }

    /// The kernel refused, as opposed to: it could not be reached.
    pub(super) fn is_refusal(&self) -> bool {
        !self.refused.is_empty() || self.other.as_ref().is_some_and(|error| error.kind == Kind::Refused)
    }

    /// The kernel refused to remove kube-proxy's table.
    pub(super) fn is_about_kube_proxy(&self) -> bool {
        self.refused.iter().any(|(op, _)| op.action == Action::RemoveKubeProxyTable)
    }

    fn words(&self) -> String {
        let first = self.errors().next();
        let more = match self.refused.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        first.map_or_else(|| "the kernel refused the change".into(), |error| format!("{error}{more}"))
    }
}

/// An error before anything was sent.
impl From<Error> for ApplyError {
    fn from(error: Error) -> ApplyError {
        ApplyError { refused: Vec::new(), other: Some(error) }
    }
}

impl From<ApplyError> for Failure {
    fn from(error: ApplyError) -> Failure {
        if error.is_not_permitted() {
            Failure::new(FailureKind::NotPermitted, format!("{error}; {PERMISSION_HINT}"))
        } else if error.suggests_drift() {
            Failure::new(FailureKind::Drift, error)
        } else {
            Failure::other(error)
        }
    }
}

/// Sends a Plan to the kernel.
pub fn apply(connection: &mut Connection, plan: &Plan) -> Result<Receipt, ApplyError> {
    let mut receipt = Receipt::default();
    for ops in [&plan.chains, &plan.changes, &plan.tidy] {
        receipt.add(commit(connection, ops)?);
    }
    Ok(receipt)
}

/// Sends operations in one transaction, if the socket can carry it.
pub fn commit(connection: &mut Connection, ops: &[Op]) -> Result<Receipt, ApplyError> {
    let mut receipt = Receipt::default();
    for part in ops.chunks(ops_per_transaction(connection)) {
        let sent = connection.commit(&encode(part, TABLE)).map_err(|error| explain(part, error))?;
        receipt.add(Receipt { commits: 1, messages: sent.messages, bytes: sent.bytes });
    }
    Ok(receipt)
}

/// Asks the kernel whether it would accept a Plan for a table of this name. Changes nothing.
pub fn check(connection: &mut Connection, plan: &Plan, table: &str) -> Result<(), ApplyError> {
    connection.check(&encode(&plan.changes, table)).map_err(|error| explain(&plan.changes, error))
}

/// The largest operation is a rule with a long comment; elements are far smaller.
pub(super) fn ops_per_transaction(connection: &Connection) -> usize {
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

#[cfg(test)]
mod tests {
    use ferroxy_core::Family;
    use rustix::io::Errno;

    use super::*;

    fn failure(errno: Errno) -> Failure {
        let op = Op { family: Family::V4, action: Action::AddTable };
        let refused = vec![(op, Error::refused("add table", "ip ferroxy", errno))];
        ApplyError { refused, other: None }.into()
    }

    #[test]
    fn failures_say_what_can_be_done_about_them() {
        assert_eq!(failure(Errno::PERM).kind, FailureKind::NotPermitted);
        assert!(failure(Errno::PERM).to_string().contains("CAP_NET_ADMIN"));
        assert!(failure(Errno::EXIST).is_drift() && failure(Errno::NOENT).is_drift());
        let other = failure(Errno::NOMEM);
        assert_eq!(other.kind, FailureKind::Other);
        assert_eq!(other.to_string(), "cannot add table ip ferroxy: Cannot allocate memory");
    }
}
