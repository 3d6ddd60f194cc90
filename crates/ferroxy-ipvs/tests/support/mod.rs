//! Shared by the tests: a model of the kernel that refuses the same operations as the kernel, and plain Services.

#![allow(dead_code, reason = "not every test file uses all of it")]

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use ferroxy_core::testing::service_over;
use ferroxy_core::{Intent, Protocol, ServiceIntent, ServiceName};
use ferroxy_dataplane::Change;
use ferroxy_iptables::Op as RuleOp;
use ferroxy_iptables::state::{Rules, Table};
use ferroxy_ipvs::set::SetName;
use ferroxy_ipvs::state::{SetState, VirtualServer};
use ferroxy_ipvs::{Op, Plan, State};

/// A model of the kernel: its State, and the operations that it refuses.
#[derive(Debug, Default)]
pub struct Kernel {
    pub state: State,
}

impl Kernel {
    pub fn carry_out(&mut self, plan: &Plan) -> Result<(), String> {
        plan.ops().iter().try_for_each(|op| self.obey(op).map_err(|error| format!("{op}: {error}")))
    }

    /// The State without draining endpoints.
    pub fn settled(&self) -> State {
        let mut state = self.state.clone();
        for server in state.servers.values_mut() {
            server.endpoints.retain(|_, weight| *weight > 0);
        }
        state
    }

    fn obey(&mut self, op: &Op) -> Result<(), &'static str> {
        let State { servers, device, sets, guarded, .. } = &mut self.state;
        let done = match op {
            Op::CreateSet(name) => sets.insert(*name, SetState::default()).is_none(),
            Op::ReplaceSet(name, members) => {
                let members = SetState { members: members.clone(), ..SetState::default() };
                sets.insert(*name, members).is_some()
            }
            Op::CreateDevice => device.replace(BTreeSet::new()).is_none(),
            Op::WriteRules(plan) | Op::RemoveRules(plan) => return self.write(plan),
            Op::AddMember(name, member) => sets.get_mut(name).ok_or("no set")?.members.insert(*member),
            Op::RemoveMember(name, member) => sets.get_mut(name).ok_or("no set")?.members.remove(member),
            Op::Guard(address) => guarded.insert(*address),
            Op::Unguard(address) => guarded.remove(address),
            Op::AddServer(address, treatment) => {
                let server = VirtualServer { treatment: treatment.clone(), endpoints: Default::default() };
                servers.insert(*address, server).is_none()
            }
            Op::ChangeServer(address, treatment) => {
                servers.get_mut(address).ok_or("no server")?.treatment = treatment.clone();
                true
            }
            Op::RemoveServer(address) => servers.remove(address).is_some(),
            Op::AddEndpoint(address, endpoint) => {
                let endpoints = &mut servers.get_mut(address).ok_or("no server")?.endpoints;
                endpoints.insert(*endpoint, 1).is_none_or(|weight| weight == 0)
            }
            Op::Revive(address, endpoint) => {
                servers.get_mut(address).ok_or("no server")?.endpoints.insert(*endpoint, 1).is_some()
            }
            Op::Drain(address, endpoint) => {
                servers.get_mut(address).ok_or("no server")?.endpoints.insert(*endpoint, 0).is_some()
            }
            Op::RemoveEndpoint(address, endpoint) => {
                servers.get_mut(address).ok_or("no server")?.endpoints.remove(endpoint).is_some()
            }
            Op::AddAddress(ip) => {
                // The host itself would answer.
                if !servers.keys().any(|address| address.ip == *ip) {
                    return Err("no server there");
                }
                device.as_mut().ok_or("no device")?.insert(*ip)
            }
            Op::RemoveAddress(ip) => device.as_mut().ok_or("no device")?.remove(ip),
            Op::RemoveDevice => device.take().is_some(),
            Op::DestroySet(name) => return self.destroy(*name),
        };
        if done { Ok(()) } else { Err("it is there already, or not there") }
    }

    fn destroy(&mut self, name: SetName) -> Result<(), &'static str> {
        if self.mentions(&name.to_string()) {
            return Err("in use");
        }
        self.state.sets.remove(&name).map(|_| ()).ok_or("no set")
    }

    fn mentions(&self, set: &str) -> bool {
        let tables = self.state.rules.tables.values();
        tables
            .flat_map(|table| table.chains.values())
            .any(|rules| rules.iter().any(|rule| rule.split(' ').any(|word| word == set)))
    }

    fn write(&mut self, plan: &ferroxy_iptables::Plan) -> Result<(), &'static str> {
        let mut before = std::mem::take(&mut self.state.rules);
        for (family, name, op) in plan.ops() {
            let table = before.tables.entry((family, name)).or_default();
            match op {
                RuleOp::Write { chain, rules } => {
                    let mut sets = rules
                        .iter()
                        .flat_map(|rule| rule.split(' ').skip_while(|it| *it != "--match-set").nth(1));
                    if !sets
                        .all(|set| SetName::parse(set).is_some_and(|it| self.state.sets.contains_key(&it)))
                    {
                        return Err("a rule refers to a set that is not there");
                    }
                    if &**chain == ferroxy_ipvs::program::OUT_FILTER {
                        self.state.guarded.retain(|guard| guard.family() != family);
                    }
                    table.chains.insert(chain.clone(), rules.clone());
                }
                RuleOp::Remove { chain } => {
                    if &**chain == ferroxy_ipvs::program::OUT_FILTER {
                        self.state.guarded.retain(|guard| guard.family() != family);
                    }
                    drop(table.chains.remove(chain).ok_or("no chain")?);
                }
                RuleOp::Insert { chain, place, rule } => edit(table, chain, |rules| {
                    rules.insert(place - 1, rule.to_string());
                }),
                RuleOp::Append { chain, rule } => edit(table, chain, |rules| rules.push(rule.to_string())),
                RuleOp::Delete { chain, rule } => {
                    edit(table, chain, |rules| rules.retain(|it| *it != **rule))
                }
            }
            table.jumps.retain(|_, rules| !rules.is_empty());
            if table.is_empty() {
                before.tables.remove(&(family, name));
            }
        }
        self.state.rules = before;
        Ok(())
    }
}

fn edit(table: &mut Table, chain: &str, how: impl FnOnce(&mut Vec<String>)) {
    let rules = match table.chains.get_mut(chain) {
        Some(rules) => rules,
        None => table.jumps.entry(chain.into()).or_default(),
    };
    let mut list: Vec<String> = rules.iter().map(str::to_owned).collect();
    how(&mut list);
    *rules = list.iter().map(String::as_str).collect::<Rules>();
}

/// The changes between two Intents, as the agent would pass them.
pub fn changes(before: &Intent, after: &Intent) -> Vec<Change> {
    let names: BTreeSet<_> = before.services.keys().chain(after.services.keys()).cloned().collect();
    let differs = |name: &_| before.services.get(name) != after.services.get(name);
    names.into_iter().filter(differs).map(|name| (name.clone(), after.services.get(&name).cloned())).collect()
}

/// A plain Service whose endpoint 0, if it has it, is on this node.
pub fn service(number: u16, protocol: Protocol, endpoints: Range<u16>) -> (ServiceName, Arc<ServiceIntent>) {
    let has_local = endpoints.contains(&0);
    let (name, mut service) = service_over(protocol, number, endpoints);
    if has_local {
        Arc::make_mut(&mut service).ports[0].cluster[0].is_local = true;
    }
    (name, service)
}
