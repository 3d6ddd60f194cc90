//! A ruleset as a value: wanted (from `render`) or seen (from `observe`), printed by `text.rs`.
//!
//! [`State::apply`] changes it as strictly as the kernel does: it refuses dangling references. Runtime data (affinity entries,
//! counters) is no part of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroxy_core::Family;
use ferroxy_netlink::nftables::{Expr, Hook, Set, Verdict};
use thiserror::Error;

use crate::element::{Element, Key, SetId, Value};
use crate::plan::{Action, Op};
use crate::rule::Rule;

/// Our tables, by family. A family without one has no entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    pub tables: BTreeMap<Family, Table>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    /// The table is switched off (flag dormant): it exists, and the kernel ignores it.
    pub dormant: bool,
    pub sets: BTreeMap<String, Set>,
    pub chains: BTreeMap<String, Chain>,
    pub elements: BTreeMap<SetId, BTreeMap<Key, Entry>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub hook: Option<Hook>,
    pub rules: Vec<Rule>,
    pub comment: Option<String>,
}

impl Chain {
    /// A chain without a hook.
    pub fn plain(rules: Vec<Rule>) -> Chain {
        Chain { hook: None, rules, comment: None }
    }
}

/// What an element holds besides its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub value: Value,
    pub comment: Option<Arc<str>>,
}

impl Entry {
    pub fn is_same(&self, element: &Element) -> bool {
        self.value == element.value && self.comment == element.comment
    }

    pub fn element(&self, set: SetId, key: Key) -> Element {
        Element { set, key, value: self.value, comment: self.comment.clone() }
    }
}

/// Why the kernel would refuse an operation.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Refused {
    #[error("{0} does not exist")]
    Missing(String),
    #[error("{0} exists already")]
    Exists(String),
    #[error("{0} is still in use")]
    InUse(String),
}

impl State {
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Whether packets meet any of it. A table without hooks is what a start leaves that did not get to its end.
    pub fn is_in_force(&self) -> bool {
        let mut chains = self.tables.values().flat_map(|table| table.chains.values());
        chains.any(|chain| chain.hook.is_some())
    }

    /// Does what the kernel would do with one operation, or refuses it as the kernel would.
    pub fn apply(&mut self, op: &Op) -> Result<(), Refused> {
        let family = op.family;
        match &op.action {
            Action::AddTable => {
                self.tables.entry(family).or_default();
                Ok(())
            }
            Action::RemoveTable => {
                self.tables.remove(&family).map(|_| ()).ok_or_else(|| Refused::Missing("table".into()))
            }
            Action::RemoveKubeProxyTable => Ok(()),
            action => {
                let table = self.tables.get_mut(&family).ok_or_else(|| Refused::Missing("table".into()))?;
                table.apply(action)
            }
        }
    }
}

impl Table {
    pub fn insert(&mut self, element: Element) {
        let entry = Entry { value: element.value, comment: element.comment };
        self.elements.entry(element.set).or_default().insert(element.key, entry);
    }

    /// All elements of a set. Together they take less time than one by one.
    pub fn fill(&mut self, set: SetId, elements: Vec<(Key, Entry)>) {
        if !elements.is_empty() {
            self.elements.insert(set, elements.into_iter().collect());
        }
    }

    pub fn get(&self, set: SetId, key: &Key) -> Option<&Entry> {
        self.elements.get(&set)?.get(key)
    }

    /// Removes an element and returns what it holds.
    pub(crate) fn take(&mut self, set: SetId, key: &Key) -> Option<Entry> {
        self.elements.get_mut(&set)?.remove(key)
    }

    /// Every element, set by set.
    pub fn elements(&self) -> impl Iterator<Item = Element> {
        self.elements
            .iter()
            .flat_map(|(set, entries)| entries.iter().map(|(key, entry)| entry.element(*set, *key)))
    }

    fn apply(&mut self, action: &Action) -> Result<(), Refused> {
        match action {
            Action::AddTable | Action::RemoveTable | Action::RemoveKubeProxyTable => Ok(()),
            Action::AddSet(set) => {
                self.sets.entry(set.name.clone()).or_insert_with(|| (**set).clone());
                Ok(())
            }
            Action::RemoveSet(name) => self.remove_set(name),
            Action::AddChain { name, hook } => {
                let chain = Chain { hook: *hook, rules: Vec::new(), comment: None };
                self.chains.entry(name.clone()).or_insert(chain);
                Ok(())
            }
            Action::RemoveChain(name) => self.remove_chain(name),
            Action::FlushChain(name) | Action::RetireChain(name) => {
                self.chain_mut(name)?.rules.clear();
                Ok(())
            }
            Action::AddRule { chain, rule } => {
                if let Some(missing) = self.missing_reference(rule) {
                    return Err(Refused::Missing(missing));
                }
                self.chain_mut(chain)?.rules.push((**rule).clone());
                Ok(())
            }
            Action::Add(element) => self.add_element(element),
            Action::Remove(element) => self.remove_element(element),
            Action::Replace { old, new } => {
                self.remove_element(old)?;
                self.add_element(new)
            }
        }
    }

    fn add_element(&mut self, element: &Element) -> Result<(), Refused> {
        if !self.sets.contains_key(element.set.name()) {
            return Err(Refused::Missing(format!("set {}", element.set.name())));
        }
        if let Value::Goto(chain) = element.value
            && !self.chains.contains_key(&chain.to_string())
        {
            return Err(Refused::Missing(format!("chain {chain}")));
        }
        if self.get(element.set, &element.key).is_some() {
            return Err(Refused::Exists(format!("{element:?}")));
        }
        self.insert(element.clone());
        Ok(())
    }

    fn remove_element(&mut self, element: &Element) -> Result<(), Refused> {
        let missing = || Refused::Missing(format!("{element:?}"));
        let set = self.elements.get_mut(&element.set).ok_or_else(missing)?;
        set.remove(&element.key).ok_or_else(missing)?;
        if set.is_empty() {
            self.elements.remove(&element.set);
        }
        Ok(())
    }

    fn remove_set(&mut self, name: &str) -> Result<(), Refused> {
        if self.rules().any(|rule| references(rule).any(|r| r == Reference::Set(name))) {
            return Err(Refused::InUse(format!("set {name}")));
        }
        if let Some(set) = SetId::parse(name) {
            self.elements.remove(&set);
        }
        self.sets.remove(name).map(|_| ()).ok_or_else(|| Refused::Missing(format!("set {name}")))
    }

    fn remove_chain(&mut self, name: &str) -> Result<(), Refused> {
        let by_rule = self.rules().any(|rule| references(rule).any(|r| r == Reference::Chain(name)));
        let leads_here = |entry: &Entry| matches!(entry.value, Value::Goto(c) if c.to_string() == name);
        if by_rule || self.elements.values().any(|set| set.values().any(leads_here)) {
            return Err(Refused::InUse(format!("chain {name}")));
        }
        self.chains.remove(name).map(|_| ()).ok_or_else(|| Refused::Missing(format!("chain {name}")))
    }

    fn missing_reference(&self, rule: &Rule) -> Option<String> {
        references(rule).find_map(|reference| match reference {
            Reference::Set(name) => (!self.sets.contains_key(name)).then(|| format!("set {name}")),
            Reference::Chain(name) => (!self.chains.contains_key(name)).then(|| format!("chain {name}")),
        })
    }

    fn chain_mut(&mut self, name: &str) -> Result<&mut Chain, Refused> {
        self.chains.get_mut(name).ok_or_else(|| Refused::Missing(format!("chain {name}")))
    }

    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.chains.values().flat_map(|chain| &chain.rules)
    }
}

#[derive(PartialEq, Eq)]
enum Reference<'a> {
    Set(&'a str),
    Chain(&'a str),
}

/// What must exist for a rule to exist.
fn references(rule: &Rule) -> impl Iterator<Item = Reference<'_>> {
    rule.kernel.exprs.iter().filter_map(|expr| match expr {
        Expr::Lookup { set, .. } | Expr::Dynset { set, .. } => Some(Reference::Set(set)),
        Expr::Immediate(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(Reference::Chain(chain)),
        _ => None,
    })
}
