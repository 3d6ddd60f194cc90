//! A recorded case as a mode must play it: the Intent of its objects, each probe as a packet, and the answers of the
//! pods. One harness for all dataplanes and rings: rules give a verdict, or real packets are sent, and both are judged
//! here.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread;

use ferroxy_core::policy::Policy;
use ferroxy_core::{Event, Facts, Family, Intent, Packet, PortIntent, Verdict, oracle, resolve};
use ferroxy_source::manifest::ManifestSource;

use super::place::{HOST_ADDRESSES, answers, packet};
use super::{Case, Mismatch, Mode, RecordedProbe, case, cases, ipvs_cases, policy, userspace_cases};
use crate::error::{LabError, Result};
use crate::network::Network;
use crate::patience::ANSWER;
use crate::probe::{Effort, Seen};

/// Of 24 attempts each: one of four endpoints stays unseen in 1 of 10^30 probes. (Of 8 each: in 1 of 10^9.)
const ROUNDS: usize = 10;

/// One case in one mode.
#[derive(Debug, Clone)]
pub struct Trial {
    pub case: Case,
    pub mode: Mode,
    pub intent: Intent,
    /// How many real packets a round sends, while pods reply. Fewer where each takes long.
    pub replies: usize,
}

impl Trial {
    /// All cases, with the part of the configuration that matters here.
    pub fn all(mode: Mode) -> Result<Vec<Trial>> {
        Trial::all_with(mode, |case| policy::read(case, mode))
    }

    /// All cases, with a configuration that the caller has read.
    pub fn all_with(mode: Mode, policy: impl Fn(&Case) -> Result<Policy>) -> Result<Vec<Trial>> {
        let cases = match mode {
            Mode::Ipvs => ipvs_cases()?,
            Mode::Userspace => userspace_cases()?,
            Mode::Nftables | Mode::Iptables => cases()?,
        };
        cases.into_iter().map(|case| Trial::new(policy(&case)?, mode, case)).collect()
    }

    /// One case by its name.
    pub fn named(name: &str, mode: Mode) -> Result<Trial> {
        let case = match mode {
            Mode::Nftables | Mode::Iptables => case(name)?,
            Mode::Ipvs | Mode::Userspace => {
                let cases = if mode == Mode::Ipvs { ipvs_cases()? } else { userspace_cases()? };
                let found = cases.into_iter().find(|case| case.name == name);
                found.ok_or_else(|| LabError::unknown("case", name))?
            }
        };
        Trial::new(policy::read(&case, mode)?, mode, case)
    }

    fn new(policy: Policy, mode: Mode, case: Case) -> Result<Trial> {
        let mut facts = Facts::new(policy);
        let own = HOST_ADDRESSES.iter().filter_map(|address| address.parse().ok());
        facts.apply(Event::HostAddresses(own.collect()));
        let wrong = |why: String| LabError::Case { case: case.name.clone(), why };
        let (_, diagnostics) = ManifestSource::open(&case.folder, |event| drop(facts.apply(event)))
            .map_err(|error| wrong(error.to_string()))?;
        if let Some(diagnostic) = diagnostics.first() {
            return Err(wrong(format!("{diagnostic:?}")));
        }
        let replies = Effort::default().replies;
        Ok(Trial { intent: resolve::all(&facts).0, mode, case, replies })
    }

    /// Ring 0: the faults of the rules, as text. Every recorded probe must follow from the rules, and they must agree
    /// with the oracle.
    pub fn faults(&self, rules: impl Fn(&Packet) -> Verdict) -> Vec<String> {
        let faults = self.case.probes.iter().filter_map(|recorded| {
            let packet = self.packet(recorded);
            let verdict = rules(&packet);
            let allowed = self.oracle(&packet);
            if verdict != allowed {
                return Some(format!("{packet:?}: the oracle says {allowed:?}, the rules {verdict:?}"));
            }
            let found = answers(&packet, &verdict);
            let judged = if self.is_sticky(recorded) {
                recorded.compare_choice(self.mode, &found.into_keys().collect())
            } else {
                recorded.compare(self.mode, &found)
            };
            judged.err().map(|mismatch| mismatch.to_string())
        });
        faults.map(|fault| format!("{}: {fault}", self.case.name)).collect()
    }

    /// Real packets: whether these are the answers that one probe must get.
    pub fn judge(&self, recorded: &RecordedProbe, seen: &Seen) -> std::result::Result<(), Mismatch> {
        if !self.is_sticky(recorded) {
            return recorded.compare(self.mode, seen);
        }
        let packet = self.packet(recorded);
        let allowed: BTreeSet<String> = answers(&packet, &self.oracle(&packet)).into_keys().collect();
        recorded.compare_choice(self.mode, &allowed)?;
        recorded.compare_sticky(&allowed, seen)
    }

    /// Sends real packets for one probe until every recorded answer has come. Endpoints are picked at random: among the
    /// thousands of picks of a run, any fixed number of attempts misses an endpoint now and then.
    pub fn ask(&self, recorded: &RecordedProbe, network: &Network) -> Result<Seen> {
        self.ask_and_read(recorded, network, |answer| answer)
    }

    /// As [`Trial::ask`], where some answers differ from the recording by a rule: `read` turns an answer into the
    /// recorded one.
    pub fn ask_and_read(
        &self,
        recorded: &RecordedProbe,
        network: &Network,
        read: impl Fn(String) -> String,
    ) -> Result<Seen> {
        let mut seen = Seen::new();
        for _ in 0..ROUNDS {
            for (answer, number) in recorded.probe().run(network, &self.effort(recorded))? {
                *seen.entry(read(answer)).or_default() += number;
            }
            if !self.judge(recorded, &seen).is_err_and(|mismatch| mismatch.is_incomplete()) {
                break;
            }
        }
        Ok(seen)
    }

    /// How to ask one probe. An answer that must come may take long on a busy machine; where no answer may come,
    /// waiting long is useless.
    fn effort(&self, recorded: &RecordedProbe) -> Effort {
        let usual = Effort { replies: self.replies, ..Effort::default() };
        if recorded.expects_silence(self.mode) { usual } else { Effort { timeout: ANSWER, ..usual } }
    }

    /// Sends real packets, all probes at once. Returns the differences to the recording, as text.
    pub fn differences(&self, network: &Network) -> Result<Vec<String>> {
        self.differences_by(|recorded| self.ask(recorded, network))
    }

    /// As [`Trial::differences`], with the caller's own way to ask.
    pub fn differences_by(&self, ask: impl Fn(&RecordedProbe) -> Result<Seen> + Sync) -> Result<Vec<String>> {
        let probes = &self.case.probes;
        let ask = &ask;
        let asked: Vec<Result<Seen>> = thread::scope(|scope| {
            let running: Vec<_> = probes.iter().map(|recorded| scope.spawn(move || ask(recorded))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect()
        });
        let seen: Vec<Seen> = asked.into_iter().collect::<Result<_>>()?;
        let judged = probes.iter().zip(&seen).filter_map(|(recorded, seen)| self.judge(recorded, seen).err());
        Ok(judged.map(|mismatch| format!("{}: {mismatch}", self.case.name)).collect())
    }

    /// Whether the Service that this probe meets sends a client to the same endpoint every time. Other Services of the case may
    /// not.
    pub fn is_sticky(&self, recorded: &RecordedProbe) -> bool {
        let packet = self.packet(recorded);
        let has_endpoints = matches!(self.oracle(&packet), Verdict::Endpoints(_));
        has_endpoints && self.port(&packet).is_some_and(|port| port.affinity.is_some())
    }

    fn packet(&self, recorded: &RecordedProbe) -> Packet {
        packet(recorded, self.mode == Mode::Ipvs && self.has_address(recorded.address))
    }

    /// Whether a Service has this address. In ipvs mode the node has it, too, on the device `kube-ipvs0`.
    fn has_address(&self, address: IpAddr) -> bool {
        let mut ports = self.intent.services.values().flat_map(|service| &service.ports);
        ports.any(|port| port.frontends.iter().any(|frontend| frontend.address == Some(address)))
    }

    fn oracle(&self, packet: &Packet) -> Verdict {
        match self.mode {
            Mode::Nftables => oracle::oracle(&self.intent, packet),
            Mode::Iptables => oracle::iptables(&self.intent, packet),
            Mode::Ipvs => oracle::ipvs(&self.intent, packet),
            Mode::Userspace => oracle::userspace(&self.intent, packet),
        }
    }

    /// The Service port that the packet is for: by address, else by node port.
    fn port(&self, packet: &Packet) -> Option<&PortIntent> {
        let ports = || {
            let all = self.intent.services.values().flat_map(|service| &service.ports);
            all.filter(|it| it.family == Family::of(packet.destination) && it.protocol == packet.protocol)
        };
        let has = |port: &PortIntent, address| {
            port.frontends.iter().any(|it| it.port == packet.port && it.address == address)
        };
        ports()
            .find(|port| has(port, Some(packet.destination)))
            .or_else(|| ports().find(|port| has(port, None)))
    }
}

/// Plays all trials against rules, which are rendered from each one's Intent. Returns the number of probes, or the
/// faults.
pub fn play<R: Fn(&Packet) -> Verdict>(
    trials: &[Trial],
    render: impl Fn(&Intent) -> R,
) -> std::result::Result<usize, String> {
    let faults: Vec<String> = trials.iter().flat_map(|trial| trial.faults(render(&trial.intent))).collect();
    let probes = trials.iter().map(|trial| trial.case.probes.len()).sum();
    if faults.is_empty() { Ok(probes) } else { Err(faults.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(trial: &Trial, recorded: &RecordedProbe) -> Seen {
        let packet = trial.packet(recorded);
        answers(&packet, &trial.oracle(&packet))
    }

    /// In one cluster some Services have affinity and others have not.
    #[test]
    fn stickiness_belongs_to_the_service_and_not_to_the_case() {
        let mut mixed = Trial::named("clusterip-affinity", Mode::Nftables).unwrap();
        let plain = Trial::named("clusterip-udp", Mode::Nftables).unwrap();
        let sticky_probe = mixed.case.probes.iter().find(|probe| mixed.is_sticky(probe)).unwrap().clone();
        let plain_probe = plain.case.probes.iter().find(|it| allowed(&plain, it).len() > 1).unwrap().clone();
        for (name, service) in plain.intent.services {
            mixed.intent.services.insert(ferroxy_core::ServiceName::new("other", name.name()), service);
        }
        assert!(mixed.is_sticky(&sticky_probe));
        assert!(!mixed.is_sticky(&plain_probe));

        let all = allowed(&mixed, &plain_probe);
        mixed.judge(&plain_probe, &all).unwrap();
        let one: Seen = all.into_iter().take(1).collect();
        mixed.judge(&plain_probe, &one).unwrap_err();

        let all = allowed(&mixed, &sticky_probe);
        assert!(all.len() > 1);
        mixed.judge(&sticky_probe, &all).unwrap_err();
        for one in all {
            mixed.judge(&sticky_probe, &Seen::from([one])).unwrap();
        }
        mixed.judge(&sticky_probe, &Seen::from([("b1:8080 10.9.9.9".to_owned(), 9)])).unwrap_err();
        mixed.judge(&sticky_probe, &Seen::from([("timeout".to_owned(), 2)])).unwrap_err();
    }

    #[test]
    fn the_oracle_plays_every_case_and_nonsense_none() {
        for mode in [Mode::Nftables, Mode::Iptables, Mode::Ipvs, Mode::Userspace] {
            let trials = Trial::all(mode).unwrap();
            for trial in &trials {
                assert_eq!(trial.faults(|packet| trial.oracle(packet)), [""; 0], "{mode:?}");
                let nonsense = trial.faults(|_| Verdict::Endpoints(Default::default()));
                assert!(nonsense.len() * 2 > trial.case.probes.len() || trial.case.probes.is_empty());
            }
        }
    }
}
