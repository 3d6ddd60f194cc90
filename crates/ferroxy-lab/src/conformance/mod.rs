//! The recorded traffic of the corpus in `conformance/`, and how to compare it with what was seen. This file reads
//! `traffic.json` only; with the feature `corpus` the objects and the configuration beside it are read, too ([`Trial`]).

#[cfg(feature = "corpus")]
mod place;
#[cfg(feature = "corpus")]
mod policy;
#[cfg(feature = "corpus")]
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{LabError, Result};
use crate::probe::{Answer, Probe, Protocol, Seen};

#[cfg(feature = "corpus")]
pub use place::HOST_ADDRESSES;
#[cfg(feature = "corpus")]
pub use trial::{Trial, play};

/// One folder of `conformance/cases`.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    pub folder: PathBuf,
    pub probes: Vec<RecordedProbe>,
    /// The answers to an HTTP GET on health check node ports.
    pub health_checks: BTreeMap<u16, RecordedHealthCheck>,
}

/// A probe, and the original's answers to it in each recorded mode.
#[derive(Debug, Clone, Deserialize)]
pub struct RecordedProbe {
    pub from: String,
    #[serde(rename = "proto")]
    pub protocol: Protocol,
    #[serde(rename = "dst")]
    pub address: IpAddr,
    pub port: u16,
    seen: BTreeMap<Mode, Seen>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RecordedHealthCheck {
    #[serde(deserialize_with = "number_in_text")]
    pub code: u16,
    /// `Name: value`, sorted.
    pub headers: Vec<String>,
    pub body: String,
}

/// A mode of the original, as the corpus spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Iptables,
    Nftables,
    Ipvs,
    /// Not in the corpus itself: derived from nftables mode ([`userspace_cases`]).
    Userspace,
}

impl Mode {
    /// The recordings for a mode of `--proxy-mode`; `None` for one that was not recorded.
    pub fn named(name: &str) -> Option<Mode> {
        match name {
            "iptables" => Some(Mode::Iptables),
            "nftables" => Some(Mode::Nftables),
            "ipvs" => Some(Mode::Ipvs),
            "userspace" => Some(Mode::Userspace),
            _ => None,
        }
    }
}

/// A probe that Ferroxy answers as the original did not, on purpose.
#[derive(Debug, Deserialize)]
struct Difference {
    case: String,
    #[serde(flatten)]
    probe: Probe,
    seen: BTreeSet<String>,
    #[allow(dead_code, reason = "for who reads the file; it must be there")]
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("{probe}: expected {expected:?}, saw {seen:?}")]
    Answers { probe: String, expected: BTreeSet<String>, seen: BTreeSet<String> },
    #[error("{probe}: affinity wants one endpoint every time, saw {seen:?}")]
    SeveralEndpoints { probe: String, seen: BTreeSet<String> },
    #[error("{probe}: {answers:?} are not among {allowed:?}")]
    NotAllowed { probe: String, answers: BTreeSet<String>, allowed: BTreeSet<String> },
    #[error("{probe}: nothing recorded for {mode:?}")]
    NotRecorded { probe: String, mode: Mode },
}

impl Mismatch {
    /// Whether every answer was right but some did not come: more attempts may show them.
    pub fn is_incomplete(&self) -> bool {
        matches!(self, Mismatch::Answers { expected, seen, .. } if seen.is_subset(expected))
    }
}

/// All cases, by name.
pub fn cases() -> Result<Vec<Case>> {
    let folder = corpus().join("cases");
    let entries = fs::read_dir(&folder).map_err(|e| LabError::file(&folder, e))?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(|e| LabError::file(&folder, e))?;
    names.sort();
    names.iter().map(|name| case(name)).collect()
}

pub fn case(name: &str) -> Result<Case> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Traffic {
        probes: Vec<RecordedProbe>,
        health_check_node_ports: BTreeMap<u16, RecordedHealthCheck>,
    }
    let folder = corpus().join("cases").join(name);
    let path = folder.join("traffic.json");
    let text = fs::read(&path).map_err(|e| LabError::file(&path, e))?;
    let traffic: Traffic = serde_json::from_slice(&text).map_err(|source| LabError::Json { path, source })?;
    let (probes, health_checks) = (traffic.probes, traffic.health_check_node_ports);
    Ok(Case { name: name.to_owned(), folder, probes, health_checks })
}

/// All cases as Ferroxy is to answer them in ipvs mode: as recorded, except for the probes in `ipvs-differences.json`.
/// A probe that was not recorded in that mode is as in iptables mode.
pub fn ipvs_cases() -> Result<Vec<Case>> {
    let mut cases = cases()?;
    for probe in cases.iter_mut().flat_map(|case| &mut case.probes) {
        if let (None, Some(seen)) = (probe.recorded(Mode::Ipvs), probe.recorded(Mode::Iptables)) {
            probe.seen.insert(Mode::Ipvs, seen.clone());
        }
    }
    with_differences(cases, Mode::Ipvs, "ipvs-differences.json")
}

/// All cases as Ferroxy is to answer them in userspace mode: as recorded in nftables mode, but pods see the node's
/// address. The probes in `userspace-differences.json` are exceptions.
pub fn userspace_cases() -> Result<Vec<Case>> {
    let mut cases = cases()?;
    for probe in cases.iter_mut().flat_map(|case| &mut case.probes) {
        if let Some(seen) = probe.recorded(Mode::Nftables) {
            let seen = seen.iter().map(|(answer, count)| (through_the_node(answer), *count));
            let seen: Seen = seen.collect();
            probe.seen.insert(Mode::Userspace, seen);
        }
    }
    with_differences(cases, Mode::Userspace, "userspace-differences.json")
}

/// `b1:80 10.244.1.5` becomes `b1:80 172.18.0.2`: the proxy of node ka connects to the pod.
fn through_the_node(answer: &str) -> String {
    let Some((pod, source)) = answer.split_once(' ') else { return answer.to_owned() };
    let own = match (pod.starts_with('a'), source.contains(':')) {
        (true, false) => "10.244.1.1",
        (true, true) => "fd00:10:244:1::1",
        (false, false) => "172.18.0.2",
        (false, true) => "fd00:172:18::2",
    };
    format!("{pod} {own}")
}

/// Replaces the answers that a file lists. An entry that does not differ is an error.
fn with_differences(mut cases: Vec<Case>, mode: Mode, file: &str) -> Result<Vec<Case>> {
    let path = corpus().join(file);
    let text = fs::read(&path).map_err(|e| LabError::file(&path, e))?;
    let differences: Vec<Difference> =
        serde_json::from_slice(&text).map_err(|source| LabError::Json { path, source })?;
    for difference in differences {
        let case = cases.iter_mut().find(|case| case.name == difference.case);
        let probes = case.into_iter().flat_map(|case| &mut case.probes);
        let probe = probes.into_iter().find(|probe| probe.probe() == difference.probe);
        let answers: Seen = difference.seen.into_iter().map(|answer| (answer, 1)).collect();
        match probe {
            Some(probe) if probe.compare(mode, &answers).is_err() => {
                probe.seen.insert(mode, answers);
            }
            _ => return Err(LabError::NoDifference(format!("{}: {}", difference.case, difference.probe))),
        }
    }
    Ok(cases)
}

/// `conformance/` of the repository this was built from.
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance")
}

impl RecordedProbe {
    pub fn probe(&self) -> Probe {
        Probe { from: self.from.clone(), protocol: self.protocol, address: self.address, port: self.port }
    }

    pub fn recorded(&self, mode: Mode) -> Option<&Seen> {
        self.seen.get(&mode)
    }

    /// Whether the recorded answer is no answer, or one that counts as no answer.
    pub fn expects_silence(&self, mode: Mode) -> bool {
        let silence = Answer::Timeout.to_string();
        self.recorded(mode).is_some_and(|seen| self.answers(seen).contains(&silence))
    }

    /// The set of answers must be the recorded one; how often each came is random.
    pub fn compare(&self, mode: Mode, seen: &Seen) -> std::result::Result<(), Mismatch> {
        let expected = self.answers(self.recorded_in(mode)?);
        let seen = self.answers(seen);
        if expected == seen {
            return Ok(());
        }
        Err(Mismatch::Answers { probe: self.probe().to_string(), expected, seen })
    }

    /// With session affinity the recording shows the endpoint that the original happened to pick: it must be one of those that
    /// may be picked. `allowed` are the answers of all of them.
    pub fn compare_choice(
        &self,
        mode: Mode,
        allowed: &BTreeSet<String>,
    ) -> std::result::Result<(), Mismatch> {
        self.are_allowed(self.answers(self.recorded_in(mode)?), allowed)
    }

    /// With session affinity every answer must be the same, and come from an endpoint that may be picked.
    pub fn compare_sticky(
        &self,
        allowed: &BTreeSet<String>,
        seen: &Seen,
    ) -> std::result::Result<(), Mismatch> {
        let answers = self.answers(seen);
        if answers.len() != 1 {
            return Err(Mismatch::SeveralEndpoints { probe: self.probe().to_string(), seen: answers });
        }
        self.are_allowed(answers, allowed)
    }

    fn are_allowed(
        &self,
        answers: BTreeSet<String>,
        allowed: &BTreeSet<String>,
    ) -> std::result::Result<(), Mismatch> {
        if answers.is_subset(allowed) {
            return Ok(());
        }
        Err(Mismatch::NotAllowed { probe: self.probe().to_string(), answers, allowed: allowed.clone() })
    }

    fn recorded_in(&self, mode: Mode) -> std::result::Result<&Seen, Mismatch> {
        self.recorded(mode).ok_or_else(|| Mismatch::NotRecorded { probe: self.probe().to_string(), mode })
    }

    /// For `ext`, refused and timeout are the same: the node's default route points back at the sender there,
    /// and the kernel then sends no ICMP for what it rejects while forwarding.
    fn answers(&self, seen: &Seen) -> BTreeSet<String> {
        let (refused, timeout) = (Answer::Refused.to_string(), Answer::Timeout.to_string());
        seen.keys()
            .map(
                |answer| {
                    if self.from == "ext" && *answer == refused { timeout.clone() } else { answer.clone() }
                },
            )
            .collect()
    }
}

/// The recording has the status code as text.
fn number_in_text<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<u16, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(from: &str, answers: &[&str]) -> RecordedProbe {
        RecordedProbe {
            from: from.to_owned(),
            protocol: Protocol::Tcp,
            address: "10.96.0.80".parse().unwrap(),
            port: 80,
            seen: BTreeMap::from([(Mode::Nftables, seen(answers))]),
        }
    }

    fn seen(answers: &[&str]) -> Seen {
        answers.iter().map(|answer| ((*answer).to_owned(), 3)).collect()
    }

    #[test]
    fn the_whole_corpus_reads() {
        let cases = cases().unwrap();
        assert!(cases.len() >= 36, "{} cases", cases.len());
        let probes: usize = cases.iter().map(|case| case.probes.len()).sum();
        assert!(probes >= 153, "{probes} probes");
        for case in &cases {
            for probe in &case.probes {
                let recorded =
                    probe.recorded(Mode::Nftables).expect("every probe was recorded in nftables mode");
                probe.compare(Mode::Nftables, recorded).unwrap();
            }
        }
        let health = &case("lb-local").unwrap().health_checks[&32000];
        assert_eq!(health.code, 200);
        assert!(health.headers.contains(&"X-Load-Balancing-Endpoint-Weight: 1".to_owned()));
    }

    #[test]
    fn what_differs_in_ipvs_mode_is_expected_there() {
        let answers = |cases: &[Case], name: &str, probe: &str| -> Vec<String> {
            let case = cases.iter().find(|case| case.name == name).unwrap();
            let probe = case.probes.iter().find(|it| it.probe().to_string() == probe).unwrap();
            probe.recorded(Mode::Ipvs).into_iter().flat_map(Seen::keys).cloned().collect()
        };
        let (recorded, expected) = (cases().unwrap(), ipvs_cases().unwrap());
        let differs = "ka -> tcp 203.0.113.10:80";
        assert_eq!(answers(&recorded, "lb-local-none", differs), ["timeout"]);
        assert_eq!(answers(&expected, "lb-local-none", differs), ["b1:80 172.18.0.2"]);
        let not_recorded = "a1 -> tcp 10.96.0.80:80";
        assert!(answers(&recorded, "large-cluster", not_recorded).is_empty());
        assert!(!answers(&expected, "large-cluster", not_recorded).is_empty());
    }

    #[test]
    fn the_set_of_answers_decides_not_their_number() {
        let probe = recorded("a1", &["a1:80 10.244.1.1", "b1:80 10.244.1.5"]);
        let more = Seen::from([("a1:80 10.244.1.1".to_owned(), 1), ("b1:80 10.244.1.5".to_owned(), 23)]);
        probe.compare(Mode::Nftables, &more).unwrap();
        let judge = |answers: &[&str]| probe.compare(Mode::Nftables, &seen(answers)).unwrap_err();
        assert!(judge(&["a1:80 10.244.1.1"]).is_incomplete());
        assert!(!judge(&["a1:80 10.244.1.1", "b1:80 10.244.1.5", "timeout"]).is_incomplete());
        assert!(matches!(probe.compare(Mode::Ipvs, &more), Err(Mismatch::NotRecorded { .. })));
    }

    #[test]
    fn refused_is_timeout_for_the_outside_client_only() {
        recorded("ext", &["refused"]).compare(Mode::Nftables, &seen(&["timeout"])).unwrap();
        recorded("ext", &["timeout"]).compare(Mode::Nftables, &seen(&["refused"])).unwrap();
        recorded("ext", &["timeout"]).compare(Mode::Nftables, &seen(&["unreachable"])).unwrap_err();
        recorded("a1", &["refused"]).compare(Mode::Nftables, &seen(&["timeout"])).unwrap_err();
    }

    #[test]
    fn affinity_is_one_allowed_endpoint_every_time() {
        let probe = recorded("a1", &["a2:80 10.244.1.5"]);
        let allowed = BTreeSet::from(["a2:80 10.244.1.5".to_owned(), "b1:80 172.18.0.2".to_owned()]);
        let judge = |answers: &[&str]| probe.compare_sticky(&allowed, &seen(answers));
        probe.compare_choice(Mode::Nftables, &allowed).unwrap();
        judge(&["b1:80 172.18.0.2"]).unwrap();
        for wrong in ["b2:80 10.244.1.5", "b1:8080 172.18.0.2", "b1:80 10.244.1.5", "timeout"] {
            assert!(matches!(judge(&[wrong]), Err(Mismatch::NotAllowed { .. })), "{wrong}");
        }
        let two = judge(&["a2:80 10.244.1.5", "b1:80 172.18.0.2"]);
        assert!(matches!(two, Err(Mismatch::SeveralEndpoints { .. })));
        assert!(matches!(judge(&[]), Err(Mismatch::SeveralEndpoints { .. })));
        let other = BTreeSet::from(["b1:80 172.18.0.2".to_owned()]);
        assert!(matches!(probe.compare_choice(Mode::Nftables, &other), Err(Mismatch::NotAllowed { .. })));
    }
}
