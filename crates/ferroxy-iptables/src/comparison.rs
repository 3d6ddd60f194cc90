//! Compares the rules of some Services before and after a change. The ledger adds the positions in shared chains.

use std::collections::BTreeMap;

use ferroxy_core::{Family, ServiceName};

use crate::plan::Op;
use crate::program::Dispatch;
use crate::render::Fragment;
use crate::state::Rules;

/// The differences, in the order of the Services' names.
#[derive(Debug, Default)]
pub(crate) struct Comparison<'a> {
    /// Operations on the chains that one Service owns.
    pub(crate) chains: BTreeMap<Family, Vec<Op>>,
    pub(crate) dispatch: BTreeMap<(Family, Dispatch), Vec<Edit<'a>>>,
}

/// The change of one Service's rules in a shared chain.
#[derive(Debug)]
pub(crate) struct Edit<'a> {
    pub(crate) service: &'a ServiceName,
    /// How many of the Service's rules stay above those that change.
    pub(crate) place: usize,
    pub(crate) removed: Vec<Box<str>>,
    pub(crate) added: Vec<Box<str>>,
}

impl<'a> Comparison<'a> {
    pub(crate) fn add(&mut self, service: &'a ServiceName, before: Fragment, after: Fragment) {
        for (place, rules) in &before.dispatch {
            let new = after.dispatch.get(place);
            self.edit(*place, service, rules, new.unwrap_or(&Rules::new()));
        }
        for (place, rules) in &after.dispatch {
            if !before.dispatch.contains_key(place) {
                self.edit(*place, service, &Rules::new(), rules);
            }
        }
        for (family, chain) in before.chains.keys().filter(|place| !after.chains.contains_key(place)) {
            self.chains.entry(*family).or_default().push(Op::Remove { chain: chain.clone() });
        }
        for (place, rules) in after.chains {
            if before.chains.get(&place) != Some(&rules) {
                let (family, chain) = place;
                self.chains.entry(family).or_default().push(Op::Write { chain, rules });
            }
        }
    }

    /// Rules that are equal at the top and at the bottom stay.
    fn edit(&mut self, place: (Family, Dispatch), service: &'a ServiceName, before: &Rules, after: &Rules) {
        if before == after {
            return;
        }
        let (before, after): (Vec<&str>, Vec<&str>) = (before.iter().collect(), after.iter().collect());
        let above = before.iter().zip(&after).take_while(|(old, new)| old == new).count();
        let (removed, added) = (&before[above..], &after[above..]);
        let below = removed.iter().rev().zip(added.iter().rev()).take_while(|(old, new)| old == new).count();
        let boxed = |rules: &[&str]| rules[..rules.len() - below].iter().map(|rule| (*rule).into()).collect();
        let edit = Edit { service, place: above, removed: boxed(removed), added: boxed(added) };
        self.dispatch.entry(place).or_default().push(edit);
    }
}
