//! Sends a packet through a State as the kernel does: table by table, rule by rule, by the text of the rules.
//!
//! The result is therefore what the rules say, not what they were meant to say. `ferroxy trace` and many tests use it. It
//! knows the matches and targets of our rules; a rule with any other match or target has no effect.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Origin, Packet, Verdict};
use ferroxy_dataplane::{Step, Trace};
use ipnet::IpNet;

use crate::matching::{Target, came_in_on, mark_and_mask, target_if};
use crate::state::{Rules, State, Table, TableName};

/// What happens to the first packet of a connection.
pub fn interpret(state: &State, packet: &Packet) -> Verdict {
    trace(state, packet).verdict
}

/// Like [`interpret`], with the rules that had an effect on the way to the first of the possible endpoints.
pub fn trace(state: &State, packet: &Packet) -> Trace {
    let family = Family::of(packet.destination);
    if Family::of(packet.source) != family {
        return Trace { verdict: Verdict::Pass, steps: Vec::new() };
    }
    let mut first = Run::new(state, packet, 0).through();
    Step::remove_idle_jumps(&mut first.steps);
    let mut endpoints = BTreeMap::new();
    // Each outcome of the random choice is a run of its own.
    let mut choice = 0;
    loop {
        let run = if choice == 0 { first.clone() } else { Run::new(state, packet, choice).through() };
        match (run.end, run.translated) {
            (Some(End::Drop), _) => return Trace { verdict: Verdict::Drop, steps: first.steps },
            (Some(End::Reject), _) => return Trace { verdict: Verdict::Reject, steps: first.steps },
            (_, Some(to)) => drop(endpoints.insert(to, run.masqueraded)),
            _ => {}
        }
        // No random match was chosen: this was the last outcome.
        if run.throws <= choice {
            break;
        }
        choice += 1;
    }
    let verdict = if endpoints.is_empty() { Verdict::Pass } else { Verdict::Endpoints(endpoints) };
    Trace { verdict, steps: first.steps }
}

/// A final verdict of a filter rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Drop,
    Reject,
}

/// Where evaluation continues after a rule or chain.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Flow {
    /// On to the next rule; at the end of a chain, back to where it was called.
    Next,
    /// Back to where this chain was called.
    Return,
    /// Leaves the table; the packet goes on.
    Accept,
    End(End),
}

#[derive(Clone)]
struct Run<'a> {
    state: &'a State,
    packet: &'a Packet,
    family: Family,
    /// The index of the random match that holds in this run, and the number of random matches evaluated so far.
    choice: usize,
    throws: usize,
    /// The conditions of the current rule record the client (`-m recent --set`).
    records_client: bool,
    /// The packet as it is now.
    destination: IpAddr,
    port: u16,
    mark: u32,
    translated: Option<SocketAddr>,
    masqueraded: bool,
    end: Option<End>,
    steps: Vec<Step>,
}

impl<'a> Run<'a> {
    fn new(state: &'a State, packet: &'a Packet, choice: usize) -> Run<'a> {
        Run {
            state,
            packet,
            family: Family::of(packet.destination),
            choice,
            throws: 0,
            records_client: false,
            destination: packet.destination,
            port: packet.port,
            mark: 0,
            translated: None,
            masqueraded: false,
            end: None,
            steps: Vec::new(),
        }
    }

    fn through(mut self) -> Run<'a> {
        use TableName::{Filter, Nat};
        match self.packet.origin {
            Origin::Host => {
                self.hook(Nat, "OUTPUT");
                self.hook(Filter, "OUTPUT");
                self.hook(Nat, "POSTROUTING");
            }
            Origin::Interface(_) => self.hook(Nat, "PREROUTING"),
        }
        let stays_here = self.packet.to_this_host && self.translated.is_none();
        if stays_here {
            self.hook(Filter, "INPUT");
        } else if self.packet.origin != Origin::Host {
            self.hook(Filter, "FORWARD");
            self.hook(Nat, "POSTROUTING");
        }
        self
    }

    fn hook(&mut self, table: TableName, builtin: &str) {
        let Some(table) = self.state.table(self.family, table) else { return };
        if self.end.is_none()
            && let Some(jumps) = table.jumps.get(builtin)
            && let Flow::End(end) = self.chain(table, builtin, jumps, 0)
        {
            self.end = Some(end);
        }
    }

    fn chain(&mut self, table: &'a Table, name: &str, rules: &Rules, depth: u8) -> Flow {
        // The kernel refuses loops when a rule is added. The limit is for States that never were in a kernel.
        const DEEPEST: u8 = 16;
        if depth > DEEPEST {
            return Flow::End(End::Drop);
        }
        for rule in rules.iter() {
            self.records_client = false;
            let Some(target) = target_if(rule, |option, words| self.holds(option, words)) else { continue };
            let flow = match table.chains.get_key_value(target.name) {
                Some((next, rules)) => {
                    self.note(name, rule, format!("jump {next}"));
                    match self.chain(table, next, rules, depth + 1) {
                        Flow::Return => Flow::Next,
                        flow => flow,
                    }
                }
                None => self.act(name, rule, target),
            };
            if flow != Flow::Next {
                return flow;
            }
        }
        Flow::Next
    }

    /// Whether one condition holds; `None` for an option that our rules do not use.
    fn holds(&mut self, option: &str, words: &mut dyn Iterator<Item = &str>) -> Option<bool> {
        // Options without a value, then those with one.
        match option {
            "--rsource" | "--reap" => return Some(true),
            // Of `-m recent`: it always matches, and records the client.
            "--set" => {
                self.records_client = true;
                return Some(true);
            }
            // Affinity is runtime data of the kernel, not part of a State: no client is recorded.
            "--rcheck" => return Some(false),
            _ => {}
        }
        let value = words.next()?;
        Some(match option {
            "-m" | "--comment" | "--nfacct-name" | "--seconds" | "--name" | "--mask" | "--mode" => true,
            "-s" => range(value)?.contains(&self.packet.source),
            "-d" => range(value)?.contains(&self.destination),
            "-i" => came_in_on(self.packet, value),
            "-p" => self.packet.protocol.lowercase() == value,
            "--dport" => value.parse() == Ok(self.port),
            "--src-type" => value == "LOCAL" && self.packet.origin == Origin::Host,
            "--dst-type" => value == "LOCAL" && self.packet.to_this_host && self.translated.is_none(),
            "--ctstate" => value.split(',').any(|state| match state {
                "NEW" => true,
                "DNAT" => self.translated.is_some(),
                _ => false,
            }),
            "--mark" => {
                let (mark, mask) = mark_and_mask(value)?;
                self.mark & mask == mark
            }
            "--probability" => {
                let is_chosen = self.throws == self.choice;
                self.throws += 1;
                is_chosen
            }
            _ => return None,
        })
    }

    fn act(&mut self, chain: &str, rule: &str, target: Target<'_>) -> Flow {
        let (flow, effect) = match (target.name, target.option, target.value) {
            ("ACCEPT", ..) => (Flow::Accept, "accepted".into()),
            ("DROP", ..) => (Flow::End(End::Drop), "dropped".into()),
            ("REJECT", ..) => (Flow::End(End::Reject), "rejected".into()),
            ("RETURN", ..) => (Flow::Return, "return".into()),
            ("MARK", Some("--set-xmark"), Some(value)) => {
                let Some((mark, mask)) = mark_and_mask(value) else { return Flow::Next };
                self.mark = (self.mark & !mask) ^ mark;
                (Flow::Next, format!("mark is {:#x}", self.mark))
            }
            ("MASQUERADE", ..) => {
                self.masqueraded = true;
                (Flow::Accept, "masqueraded".into())
            }
            ("DNAT", Some("--to-destination"), Some(value)) => {
                let Ok(to) = value.parse::<SocketAddr>() else { return Flow::Next };
                (self.destination, self.port) = (to.ip(), to.port());
                self.translated = Some(to);
                (Flow::Accept, format!("to {to}"))
            }
            _ => return Flow::Next,
        };
        self.note(chain, rule, effect);
        flow
    }

    fn note(&mut self, chain: &str, rule: &str, effect: String) {
        let is_sticky = self.records_client;
        self.steps.push(Step { place: chain.into(), rule: rule.into(), effect, is_sticky });
    }
}

/// An address without a length is a range of one.
fn range(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse().ok().map(|address: IpAddr| address.into()))
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Protocol;

    use super::*;
    use crate::text::parse;

    fn sticky_steps(rules: &str) -> Vec<bool> {
        let jump = "-A PREROUTING -j KUBE-SERVICES";
        let state = parse(Family::V4, &format!("*nat\n:KUBE-SERVICES - [0:0]\n{jump}\n{rules}\nCOMMIT\n"));
        let packet = Packet {
            source: [192, 0, 2, 1].into(),
            origin: Origin::Interface("eth0".into()),
            destination: [10, 96, 0, 80].into(),
            port: 80,
            protocol: Protocol::Tcp,
            to_this_host: false,
        };
        trace(&state, &packet).steps.iter().map(|step| step.is_sticky).collect()
    }

    #[test]
    fn a_step_is_sticky_where_the_rule_records_the_client() {
        let recent = "-A KUBE-SERVICES -p tcp -m recent --set --name X --mask 255.255.255.255 --rsource";
        assert_eq!(sticky_steps(&format!("{recent} -j DNAT --to-destination 10.0.0.1:80")), [false, true]);
        // Words of a comment are not conditions, and conditions after a failed one are not evaluated.
        let comment = "-m comment --comment \"-m recent --set\"";
        assert_eq!(sticky_steps(&format!("-A KUBE-SERVICES {comment} -j DROP")), [false, false]);
        let other = "-A KUBE-SERVICES -p udp -m recent --set -j ACCEPT\n-A KUBE-SERVICES -j DROP";
        assert_eq!(sticky_steps(other), [false, false]);
    }
}
