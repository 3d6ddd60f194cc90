//! Interprets a State: the path of a packet through hooks, chains and rules, as in the kernel. `expressions.rs` evaluates rules.
//!
//! It evaluates the expressions that are sent to the kernel, so the result is what the rules do and not what they are meant to
//! do. The command `trace` and many tests use it.

mod expressions;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Origin, Packet, Verdict};
use ferroxy_dataplane::{Step, Trace};
use ferroxy_netlink::nftables as nl;
use nl::HookPoint;

use crate::rule::Rule;
use crate::state::{Chain, State, Table};
use expressions::Effect;

/// What happens to the first packet of a connection.
pub fn interpret(state: &State, packet: &Packet) -> Verdict {
    trace(state, packet).verdict
}

/// The same, with the rules that it meets on its way; those for the first of the possible endpoints.
pub fn trace(state: &State, packet: &Packet) -> Trace {
    let family = Family::of(packet.destination);
    let (Some(table), true) = (state.tables.get(&family), Family::of(packet.source) == family) else {
        return Trace { verdict: Verdict::Pass, steps: Vec::new() };
    };
    let mut first = Run::new(table, packet, 0).through();
    Step::remove_idle_jumps(&mut first.steps);
    let mut endpoints = BTreeMap::new();
    // One run for each number that the random pick can give.
    for choice in 0..first.choices {
        let run = if choice == 0 { first.clone() } else { Run::new(table, packet, choice).through() };
        match (run.end, run.translated) {
            (Some(End::Drop), _) => return Trace { verdict: Verdict::Drop, steps: first.steps },
            (Some(End::Reject), _) => return Trace { verdict: Verdict::Reject, steps: first.steps },
            (_, Some(to)) => {
                endpoints.insert(to, run.masqueraded);
            }
            _ => {}
        }
    }
    let verdict = if endpoints.is_empty() { Verdict::Pass } else { Verdict::Endpoints(endpoints) };
    Trace { verdict, steps: first.steps }
}

/// Why a packet goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Drop,
    Reject,
}

/// How a packet continues after a chain.
enum Flow {
    /// With the rule after the jump to this chain.
    Next,
    /// With the next hook.
    Accept,
    End(End),
}

#[derive(Clone)]
struct Run<'a> {
    table: &'a Table,
    packet: &'a Packet,
    /// The number that the random pick gives in this run, and how many it can give.
    choice: u32,
    choices: u32,
    /// The current state of the packet.
    destination: IpAddr,
    port: u16,
    mark: u32,
    priority: u32,
    translated: Option<SocketAddr>,
    masqueraded: bool,
    end: Option<End>,
    registers: [u8; 64],
    steps: Vec<Step>,
}

impl<'a> Run<'a> {
    fn new(table: &'a Table, packet: &'a Packet, choice: u32) -> Run<'a> {
        Run {
            table,
            packet,
            choice,
            choices: 1,
            destination: packet.destination,
            port: packet.port,
            mark: 0,
            priority: 0,
            translated: None,
            masqueraded: false,
            end: None,
            registers: [0; 64],
            steps: Vec::new(),
        }
    }

    fn through(mut self) -> Run<'a> {
        match self.packet.origin {
            Origin::Host => {
                self.hook(HookPoint::Output);
                self.hook(HookPoint::Postrouting);
            }
            Origin::Interface(_) => self.hook(HookPoint::Prerouting),
        }
        let stays_here = self.packet.to_this_host && self.translated.is_none();
        if stays_here {
            self.hook(HookPoint::Input);
        } else if self.packet.origin != Origin::Host {
            self.hook(HookPoint::Forward);
            self.hook(HookPoint::Postrouting);
        }
        self
    }

    fn hook(&mut self, point: HookPoint) {
        let table = self.table;
        let mut chains: Vec<(&String, &Chain, i32)> = table
            .chains
            .iter()
            .filter_map(|(name, chain)| {
                chain.hook.filter(|hook| hook.point == point).map(|hook| (name, chain, hook.priority))
            })
            .collect();
        chains.sort_by_key(|(_, _, priority)| *priority);
        for (name, chain, _) in chains {
            if self.end.is_some() {
                return;
            }
            if let Flow::End(end) = self.chain(name, chain, 0) {
                self.end = Some(end);
            }
        }
    }

    fn chain(&mut self, name: &str, chain: &'a Chain, depth: u8) -> Flow {
        // The kernel refuses loops when a rule is added; this is for States that no kernel has seen.
        const DEEPEST: u8 = 16;
        if depth > DEEPEST {
            return Flow::End(End::Drop);
        }
        for rule in &chain.rules {
            let Some(verdict) = self.rule(name, rule) else { continue };
            match verdict {
                nl::Verdict::Accept => return Flow::Accept,
                nl::Verdict::Drop => return Flow::End(self.end.unwrap_or(End::Drop)),
                nl::Verdict::Return => return Flow::Next,
                nl::Verdict::Goto(next) => {
                    return match self.table.chains.get(&next) {
                        Some(chain) => self.chain(&next, chain, depth + 1),
                        None => Flow::Next,
                    };
                }
                nl::Verdict::Jump(next) => {
                    let Some(chain) = self.table.chains.get(&next) else { continue };
                    match self.chain(&next, chain, depth + 1) {
                        Flow::Next => {}
                        other => return other,
                    }
                }
            }
        }
        Flow::Next
    }

    /// The verdict of a rule; `None` if it does not match or has none.
    fn rule(&mut self, chain: &str, rule: &Rule) -> Option<nl::Verdict> {
        for expr in &rule.kernel.exprs {
            match self.expr(expr) {
                Effect::Break => return None,
                Effect::On => {}
                Effect::Did(effect) => self.note(chain, rule, effect),
                Effect::Verdict(verdict) => {
                    self.note(chain, rule, describe(&verdict, self.end));
                    return Some(verdict);
                }
                Effect::Translated => {
                    let to = self.translated.map(|to| format!("to {to}")).unwrap_or_default();
                    self.note(chain, rule, to);
                    return Some(nl::Verdict::Accept);
                }
            }
        }
        None
    }

    fn note(&mut self, chain: &str, rule: &Rule, effect: String) {
        self.steps.push(Step { place: chain.into(), rule: rule.text.clone(), effect, is_sticky: false });
    }
}

fn describe(verdict: &nl::Verdict, end: Option<End>) -> String {
    match verdict {
        nl::Verdict::Drop if end == Some(End::Reject) => "rejected".into(),
        nl::Verdict::Drop => "dropped".into(),
        nl::Verdict::Accept => "masqueraded".into(),
        nl::Verdict::Return => "return".into(),
        nl::Verdict::Jump(chain) => format!("jump {chain}"),
        nl::Verdict::Goto(chain) => format!("goto {chain}"),
    }
}
