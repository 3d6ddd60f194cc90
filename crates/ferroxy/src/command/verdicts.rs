//! The verdicts of probes, from the agent on this node: no other program knows them.

use std::net::SocketAddr;

use ferroxy_core::event::Verdict;
use ferroxy_core::probe::{Down, Fault, Target};
use ferroxy_core::{Event, Facts, ServiceName};
use serde_json::Value;

use super::agent_page::page;
use super::input::Settings;
use crate::log;

/// Adds the verdicts that the agent on this node knows. If they matter and are not available, returns the reason.
pub(super) fn learn(facts: &mut Facts, settings: &Settings) -> Option<String> {
    facts.probed_services().next().filter(|_| facts.policy().probes)?;
    if let Some(recorded) = &settings.recorded {
        // The verdicts of a bundle were added with its objects.
        let missing = "the bundle does not have the verdicts of probes";
        return (!recorded.has_verdicts).then(|| missing.to_owned());
    }
    match page(settings).and_then(|(page, address)| verdicts(&page, address)) {
        Ok(found) => {
            found.into_iter().for_each(|verdict| drop(facts.apply(Event::Verdict(verdict))));
            None
        }
        Err(reason) => Some(reason),
    }
}

/// Without the verdicts every endpoint counts as up.
pub(super) fn warn_of(unknown: Option<String>) {
    if let Some(reason) = unknown {
        log::print_error(&format!("ferroxy: results of probes are not known: {reason}"));
    }
}

/// The verdicts on a page that is served at `address`: endpoints of all Services that are down.
fn verdicts(page: &Value, address: SocketAddr) -> Result<Vec<Verdict>, String> {
    let down = in_report(&page["probes"]);
    down.ok_or_else(|| format!("the server at {address} is not an agent with probes"))
}

/// The verdicts of a report about probes, as the page and bundles have it; `None` if it is not such a report.
pub(super) fn in_report(probes: &Value) -> Option<Vec<Verdict>> {
    Some(probes["down"].as_array()?.iter().filter_map(verdict).collect())
}

fn verdict(entry: &Value) -> Option<Verdict> {
    let text = |key: &str| entry[key].as_str();
    Some(Verdict {
        service: ServiceName::parse(text("service")?)?,
        target: Target::parse(text("target")?)?,
        life: None,
        down: Some(Down { since: entry["since"].as_i64()?, fault: Fault::parse(text("fault")?)? }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::probes::{Failing, Probes, Standing};

    #[test]
    fn what_the_agent_shows_is_read_back() {
        let probes = Probes::default();
        let service = ServiceName::new("default", "web");
        let target = Target::parse("[fd00::1]:80/tcp").unwrap();
        let down = Down { since: 1_700_000_000, fault: Fault::Status(503) };
        let failing = vec![Failing { target, pod: "web-1".into(), down }];
        probes.replace(&service, Some(Standing { endpoints: 2, ignored: 0, down: failing }));
        let read: Vec<Verdict> =
            probes.value()["down"].as_array().unwrap().iter().filter_map(verdict).collect();
        assert_eq!(read, [Verdict { service, target, life: None, down: Some(down) }]);
    }

    #[test]
    fn another_page_is_no_agent_that_probes() {
        let error = verdicts(&Value::Null, "127.0.0.1:10249".parse().unwrap()).unwrap_err();
        assert_eq!(error, "the server at 127.0.0.1:10249 is not an agent with probes");
    }
}
