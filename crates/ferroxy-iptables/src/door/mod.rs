//! The ways to the rules of one family in the kernel: directly, or through the host's tools. Both read the same State and apply
//! the same Plan; which one is used is chosen in `choose.rs`.

mod choose;
mod legacy;
mod listing;
mod nft;

use std::ops::ControlFlow;

use ferroxy_core::Family;

use self::legacy::Legacy;
use self::nft::NfTables;
use crate::plan::Plan;
use crate::state::State;
use crate::text::Reader;
use crate::tool::{Attendant, Error, Limits, Receipt, Tools, Variant, restore_attended, save};
use crate::watch::Owns;
use crate::xt::Sets;

/// Access to the rules of one family.
#[derive(Debug)]
pub struct Door {
    pub family: Family,
    pub variant: Variant,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// `iptables-save` and `iptables-restore`.
    Tool(Tools),
    /// The nft variant, over netlink.
    NfTables(Box<NfTables>),
    /// The legacy variant, through socket options.
    Legacy(Legacy),
}

impl Door {
    pub fn tool(tools: Tools) -> Door {
        Door { family: tools.family, variant: tools.variant, way: Way::Tool(tools) }
    }

    /// The nft variant without any tool.
    pub fn nf_tables(family: Family) -> Result<Door, Error> {
        let way = Way::NfTables(Box::new(NfTables::open(family)?));
        Ok(Door { family, variant: Variant::NfTables, way })
    }

    /// The legacy variant without any tool.
    pub fn legacy(family: Family) -> Result<Door, Error> {
        Ok(Door { family, variant: Variant::Legacy, way: Way::Legacy(Legacy::open(family)?) })
    }

    /// Whether rules are written without the host's tools.
    pub fn is_builtin(&self) -> bool {
        !matches!(self.way, Way::Tool(_))
    }

    /// Sets the ipsets that rules may refer to. Call this before reading or writing rules with `-m set`; the tools look up sets
    /// themselves.
    pub fn know(&mut self, sets: &Sets) {
        match &mut self.way {
            Way::Tool(_) => {}
            Way::NfTables(kernel) => kernel.sets = sets.clone(),
            Way::Legacy(kernel) => kernel.sets = sets.clone(),
        }
    }

    /// A cheap check that the rules can be read.
    pub fn probe(&mut self, limits: &Limits) -> Result<(), Error> {
        match &mut self.way {
            Way::Tool(tools) => save(tools, Some("mangle"), limits, &mut |_| ControlFlow::Continue(())),
            Way::NfTables(kernel) => kernel.probe(),
            Way::Legacy(kernel) => kernel.probe(),
        }
    }

    /// Our chains and jumps in all existing tables. Creates no table.
    pub fn observe(&mut self, owns: Owns, limits: &Limits) -> Result<State, Error> {
        match &mut self.way {
            Way::Tool(tools) => {
                let mut reader = Reader::of(self.family, owns);
                save(tools, None, limits, &mut |line| {
                    reader.line(line);
                    ControlFlow::Continue(())
                })?;
                Ok(reader.finish())
            }
            Way::NfTables(kernel) => kernel.observe(owns),
            Way::Legacy(kernel) => kernel.observe(owns),
        }
    }

    /// Applies this family's part of a Plan. After an error some of it may be in force.
    pub fn apply(
        &mut self,
        plan: &Plan,
        limits: &Limits,
        attendant: &dyn Attendant,
    ) -> Result<Receipt, Error> {
        match &mut self.way {
            Way::Tool(tools) => {
                let input = plan.restore_input(self.family);
                if input.is_empty() {
                    return Ok(Receipt::default());
                }
                restore_attended(tools, &input, limits, attendant)
            }
            Way::NfTables(kernel) => kernel.apply(plan, attendant),
            Way::Legacy(kernel) => kernel.apply(plan, limits, attendant),
        }
    }

    /// Looks for rules of a Kubernetes proxy in the other variant, and logs them.
    pub fn warn_of_leftovers(&self, limits: &Limits) -> Result<(), Error> {
        match &self.way {
            Way::Tool(tools) => tools.leftover(limits).map(drop),
            Way::NfTables(kernel) => kernel.warn_of_leftovers(),
            Way::Legacy(kernel) => kernel.warn_of_leftovers(),
        }
    }
}
