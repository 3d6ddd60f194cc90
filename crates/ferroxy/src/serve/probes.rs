//! Probes of endpoints for people: the metrics, and the failing endpoints in `/statusz`. The agent writes, the servers read.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ferroxy_core::ServiceName;
use ferroxy_core::probe::{Down, Target};
use ferroxy_probe::Figures;
use serde_json::{Value, json};

use super::exposition::{Exposition, Kind};

/// Endpoints that are down beyond this number are counted, not listed.
pub const MOST_LISTED: usize = 1_000;

#[derive(Debug, Default)]
pub struct Probes {
    now: Mutex<Now>,
    figures: OnceLock<Ask>,
}

#[derive(Debug, Default)]
struct Now {
    /// Services that ask for probes.
    services: BTreeMap<ServiceName, Standing>,
    /// Verdicts so far.
    turned_down: u64,
    turned_up: u64,
}

/// The state of the probed endpoints of one Service.
#[derive(Debug, Default)]
pub struct Standing {
    pub endpoints: usize,
    /// Ports, in each family, where verdicts are ignored because too many fail.
    pub ignored: usize,
    pub down: Vec<Failing>,
}

#[derive(Debug)]
pub struct Failing {
    pub target: Target,
    /// The name of the pod; empty if unknown.
    pub pod: String,
    pub down: Down,
}

/// Reads the figures of the prober.
struct Ask(Box<dyn Fn() -> Figures + Send + Sync>);

impl Probes {
    /// Sets the source of the figures. The first call counts.
    pub fn ask(&self, figures: impl Fn() -> Figures + Send + Sync + 'static) {
        let _ = self.figures.set(Ask(Box::new(figures)));
    }

    /// `None`: the Service has no probes.
    pub fn replace(&self, name: &ServiceName, standing: Option<Standing>) {
        let mut now = self.now();
        match standing {
            Some(standing) => drop(now.services.insert(name.clone(), standing)),
            None => drop(now.services.remove(name)),
        }
    }

    /// A verdict changed.
    pub fn turned(&self, is_down: bool) {
        let mut now = self.now();
        match is_down {
            true => now.turned_down += 1,
            false => now.turned_up += 1,
        }
    }

    pub fn write(&self, page: &mut Exposition) {
        let figures = self.figures.get().map(|ask| (ask.0)()).unwrap_or_default();
        let now = self.now();
        let name = "ferroxy_probed_endpoints";
        page.begin(Kind::Gauge, name, "Probed endpoints, by verdict.");
        page.sample(name, &[("verdict", "down")], now.down());
        page.sample(name, &[("verdict", "up")], now.endpoints() - now.down());
        let help = "Service ports where probes are ignored because more than half of the endpoints fail.";
        page.single(Kind::Gauge, "ferroxy_probe_ignored_ports", help, now.ignored());
        let name = "ferroxy_probe_verdicts_total";
        page.begin(Kind::Counter, name, "Changes of verdicts of probed endpoints: to down, and to up.");
        page.sample(name, &[("verdict", "down")], now.turned_down);
        page.sample(name, &[("verdict", "up")], now.turned_up);
        let name = "ferroxy_probes_total";
        page.begin(Kind::Counter, name, "Probes sent, by result.");
        let results = [("failed", figures.failed), ("passed", figures.passed), ("unknown", figures.unknown)];
        results.iter().for_each(|(result, count)| page.sample(name, &[("result", result)], count));
        let help = "Probes that started more than a second late, because this node limits its probes.";
        page.single(Kind::Counter, "ferroxy_probes_late_total", help, figures.late);
        let help = "Results that did not count, because this node was suspended or too busy.";
        page.single(Kind::Counter, "ferroxy_probes_uncounted_total", help, figures.uncounted);
        let help = "Endpoints that are not probed, because they exceed the limit of a node or a namespace.";
        page.single(Kind::Gauge, "ferroxy_probes_left_out", help, figures.left_out);
    }

    /// For `/statusz`.
    pub fn text(&self) -> String {
        let now = self.now();
        let mut text = format!("Probed endpoints: {} ({} down)\n", now.endpoints(), now.down());
        for (service, Failing { target, pod, down }) in now.listed() {
            let pod = if pod.is_empty() { String::new() } else { format!(" ({pod})") };
            text.push_str(&format!(
                "  {service} {target}{pod}: {} since {}\n",
                down.fault,
                rfc3339(down.since)
            ));
        }
        text
    }

    /// The same as JSON. `ferroxy explain` reads it.
    pub fn value(&self) -> Value {
        let now = self.now();
        let failing = |(service, it): (&ServiceName, &Failing)| {
            json!({
                "service": service.to_string(),
                "target": it.target.to_string(),
                "pod": it.pod,
                "since": it.down.since,
                "fault": it.down.fault.to_string(),
            })
        };
        json!({
            "endpoints": now.endpoints(),
            "downCount": now.down(),
            "ignoredPorts": now.ignored(),
            "down": now.listed().map(failing).collect::<Vec<_>>(),
        })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // A panic while writing leaves numbers, not broken references: they can still be read.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    fn endpoints(&self) -> usize {
        self.services.values().map(|it| it.endpoints).sum()
    }

    fn down(&self) -> usize {
        self.services.values().map(|it| it.down.len()).sum()
    }

    fn ignored(&self) -> usize {
        self.services.values().map(|it| it.ignored).sum()
    }

    fn listed(&self) -> impl Iterator<Item = (&ServiceName, &Failing)> {
        let all = self.services.iter().flat_map(|(name, it)| it.down.iter().map(move |down| (name, down)));
        all.take(MOST_LISTED)
    }
}

/// Seconds since 1970, for people.
pub fn rfc3339(seconds: i64) -> String {
    // Fails for years that no clock shows.
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::probe::Fault;

    use super::*;

    fn failing() -> Failing {
        let down = Down { since: 951_782_400, fault: Fault::Status(503) };
        Failing { target: Target::parse("10.0.0.1:80/tcp").unwrap(), pod: "web-1".into(), down }
    }

    fn page(probes: &Probes) -> String {
        let mut page = Exposition::default();
        probes.write(&mut page);
        page.finish()
    }

    #[test]
    fn what_is_probed_and_the_results_are_counted() {
        let probes = Probes::default();
        assert!(page(&probes).contains("ferroxy_probed_endpoints{verdict=\"up\"} 0\n"));
        let (web, api) = (ServiceName::new("default", "web"), ServiceName::new("default", "api"));
        probes.replace(&web, Some(Standing { endpoints: 3, ignored: 0, down: vec![failing()] }));
        probes.replace(&api, Some(Standing { endpoints: 1, ignored: 1, down: vec![failing()] }));
        probes.turned(true);
        probes.ask(|| Figures {
            passed: 7,
            failed: 5,
            unknown: 1,
            late: 2,
            uncounted: 3,
            ..Figures::default()
        });
        let text = page(&probes);
        for line in [
            "ferroxy_probed_endpoints{verdict=\"down\"} 2",
            "ferroxy_probed_endpoints{verdict=\"up\"} 2",
            "ferroxy_probe_ignored_ports 1",
            "ferroxy_probe_verdicts_total{verdict=\"down\"} 1",
            "ferroxy_probe_verdicts_total{verdict=\"up\"} 0",
            "ferroxy_probes_total{result=\"failed\"} 5",
            "ferroxy_probes_total{result=\"passed\"} 7",
            "ferroxy_probes_total{result=\"unknown\"} 1",
            "ferroxy_probes_late_total 2",
            "ferroxy_probes_uncounted_total 3",
            "ferroxy_probes_left_out 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
        probes.replace(&api, None);
        assert!(page(&probes).contains("ferroxy_probe_ignored_ports 0\n"));
    }

    #[test]
    fn people_and_programs_see_who_is_down() {
        let probes = Probes::default();
        assert_eq!(probes.text(), "Probed endpoints: 0 (0 down)\n");
        let web = ServiceName::new("default", "web");
        probes.replace(&web, Some(Standing { endpoints: 3, ignored: 0, down: vec![failing()] }));
        let line = "  default/web 10.0.0.1:80/tcp (web-1): HTTP status 503 since 2000-02-29T00:00:00Z";
        assert_eq!(probes.text().lines().last(), Some(line));
        let expected = json!({
            "service": "default/web", "target": "10.0.0.1:80/tcp", "pod": "web-1",
            "since": 951_782_400, "fault": "HTTP status 503",
        });
        assert_eq!(probes.value()["down"], json!([expected]));
    }

    #[test]
    fn a_list_has_an_end() {
        let probes = Probes::default();
        let down = (0..MOST_LISTED + 5).map(|_| failing()).collect();
        probes.replace(
            &ServiceName::new("default", "web"),
            Some(Standing { endpoints: 2_000, ignored: 0, down }),
        );
        let value = probes.value();
        assert_eq!(
            (value["down"].as_array().unwrap().len(), &value["downCount"]),
            (MOST_LISTED, &json!(1_005))
        );
    }
}
