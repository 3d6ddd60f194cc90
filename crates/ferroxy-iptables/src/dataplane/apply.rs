//! Applies a Plan, family by family.
//!
//! A small Plan is one transaction; a large Plan is several, each safe on its own (`door/nft.rs`, `tool/portion.rs`). After a
//! failure, earlier commits are in force: the caller reads the kernel again.

use std::collections::BTreeMap;
use std::time::Duration;

use ferroxy_core::Family;

use crate::door::Door;
use crate::plan::{Op, Plan};
use crate::program::is_builtin;
use crate::state::TableName;
use crate::tool::{self, Attendant, Error, Limits};

/// Statistics about applying a Plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Receipt {
    /// Once for each family, and once more for each time a tool did not get the lock.
    pub runs: u32,
    pub commits: usize,
    pub lines: usize,
    pub bytes: usize,
    /// Time spent waiting for the lock, in runs that did not get it and between them.
    pub waited: Duration,
    /// Time of successful runs.
    pub tool_time: Duration,
}

/// Sends a Plan to the kernel.
pub fn apply(
    doors: &mut [Door],
    limits: &Limits,
    plan: &Plan,
    attendant: &dyn Attendant,
) -> Result<Receipt, Error> {
    let mut receipt = Receipt::default();
    for door in doors {
        receipt.add(&door.apply(plan, limits, attendant)?);
    }
    Ok(receipt)
}

/// How many rules a Plan writes into our chains, by table.
pub fn rules_written(plan: &Plan) -> BTreeMap<(Family, TableName), u64> {
    let mut written = BTreeMap::new();
    for (family, table, op) in plan.ops() {
        let rules = match op {
            Op::Write { rules, .. } => rules.len() as u64,
            Op::Insert { chain, .. } | Op::Append { chain, .. } => u64::from(!is_builtin(chain)),
            Op::Delete { .. } | Op::Remove { .. } => 0,
        };
        *written.entry((family, table)).or_default() += rules;
    }
    written
}

impl Receipt {
    fn add(&mut self, other: &tool::Receipt) {
        self.runs += other.runs;
        self.commits += other.commits;
        self.lines += other.lines;
        self.bytes += other.bytes;
        self.waited += other.waited;
        self.tool_time += other.tool_time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_counted_by_table() {
        let mut plan = Plan::default();
        let chain = || "KUBE-SVC-A".into();
        let written = Op::Write { chain: chain(), rules: ["-j A", "-j B"].into_iter().collect() };
        let added = Op::Append { chain: chain(), rule: "-j C".into() };
        let jump = Op::Insert { chain: "OUTPUT".into(), place: 1, rule: "-j KUBE-SERVICES".into() };
        plan.add(Family::V4, TableName::Nat, [written, added, jump, Op::Remove { chain: chain() }]);
        plan.add(Family::V6, TableName::Filter, [Op::Delete { chain: chain(), rule: "-j D".into() }]);
        let expected =
            [((Family::V4, TableName::Nat), 3), ((Family::V6, TableName::Filter), 0)].into_iter().collect();
        assert_eq!(rules_written(&plan), expected);
    }
}
