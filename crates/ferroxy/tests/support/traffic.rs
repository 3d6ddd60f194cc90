//! Traffic that must not be disturbed by other changes: short requests all the time, and connections that stay open, to
//! a Service that does not change.

use std::time::Duration;

use ferroxy_core::Family;
use ferroxy_lab::load::LoadPlan;
use ferroxy_lab::pod::ECHO_PORT;
use ferroxy_lab::{ANSWER, Answer, Load, LongConnection, Network, Protocol, ask};

use super::{DEADLINE, Service, wait_until};

/// The Service that does not change.
pub fn web_service() -> Service {
    Service::new("web", &["10.96.0.80", "fd00:10:96::80"])
        .node_port(Protocol::Tcp, 80, 8080, 30080)
        .port(Protocol::Tcp, ECHO_PORT, ECHO_PORT)
        .port(Protocol::Udp, 53, 53)
        .endpoints(&["a1", "a2", "b1", "b2"])
}

/// Ways into `web` under load at once, and connections to it that stay open.
pub struct Traffic {
    loads: Vec<(String, Load)>,
    connections: Vec<(String, LongConnection)>,
    /// Fewer requests than this on one way would show nothing.
    enough: usize,
}

/// The first two are one way in each family.
const LOADS: [(&str, Protocol, &str); 5] = [
    ("a1", Protocol::Tcp, "10.96.0.80:80"),
    ("a2", Protocol::Tcp, "[fd00:10:96::80]:80"),
    ("ka", Protocol::Udp, "10.96.0.80:53"),
    ("ext", Protocol::Tcp, "172.18.0.2:30080"),
    ("ext", Protocol::Udp, "[fd00:10:96::80]:53"),
];

const LONG_CONNECTIONS: [(&str, &str); 3] =
    [("a1", "10.96.0.80:7"), ("ka", "[fd00:10:96::80]:7"), ("ext", "10.96.0.80:7")];

impl Traffic {
    /// Every way into the Service, in both families.
    pub fn every_way(network: &Network) -> Traffic {
        // Paced: the traffic must span the moment of a change, not be fast, and other tests run at the same time.
        Traffic::start(network, &LOADS, &LONG_CONNECTIONS, Duration::from_millis(10), 20, false)
    }

    /// The same for tests that remove endpoints. The agent then deletes the connection-tracking entries of their UDP flows, and an answer
    /// that is in flight at that moment is lost. So the UDP clients repeat their requests.
    pub fn every_way_while_endpoints_leave(network: &Network) -> Traffic {
        Traffic::start(network, &LOADS, &LONG_CONNECTIONS, Duration::from_millis(10), 20, true)
    }

    /// One way of each kind: for many networks at once.
    pub fn light(network: &Network) -> Traffic {
        Traffic::light_of(network, Family::V4)
    }

    /// One way of each kind, in one family.
    pub fn light_of(network: &Network, family: Family) -> Traffic {
        let which = family as usize..=family as usize;
        let pace = Duration::from_millis(25);
        Traffic::start(network, &LOADS[which.clone()], &LONG_CONNECTIONS[which], pace, 5, false)
    }

    /// Whether a request on the first way of a family gets an answer now.
    pub fn is_possible(network: &Network, family: Family) -> bool {
        let (from, protocol, target) = LOADS[family as usize];
        let from = network.namespace(from).unwrap();
        let answer = from.run(|| ask(protocol, target.parse().unwrap(), Duration::from_secs(1)));
        matches!(answer.unwrap().unwrap(), Answer::Reply(_))
    }

    fn start(
        network: &Network,
        loads: &[(&str, Protocol, &str)],
        connections: &[(&str, &str)],
        interval: Duration,
        enough: usize,
        repeats: bool,
    ) -> Traffic {
        let loads = loads.iter().map(|(from, protocol, target)| {
            let plan = LoadPlan::back_to_back(*protocol, target.parse().unwrap());
            let plan = LoadPlan { interval, max_time: Duration::from_secs(7200), repeats, ..plan };
            let load = Load::start(network.namespace(from).unwrap(), plan).unwrap();
            (format!("{from} -> {protocol} {target}"), load)
        });
        let connections = connections.iter().map(|(from, target)| {
            let from_namespace = network.namespace(from).unwrap();
            let connection =
                LongConnection::open(from_namespace, target.parse().unwrap(), interval, ANSWER).unwrap();
            (format!("{from} -> {target}"), connection)
        });
        Traffic { connections: connections.collect(), loads: loads.collect(), enough }
    }

    /// Ends it; nothing may have failed.
    pub fn was_undisturbed(self) {
        // Even if the test was short and the machine is busy, there must be enough traffic to prove something.
        wait_until("there was enough traffic", DEADLINE, || {
            let mut loads = self.loads.iter().map(|(_, load)| load.done());
            let mut connections = self.connections.iter().map(|(_, connection)| connection.done());
            loads.all(|done| done > self.enough) && connections.all(|done| done > self.enough)
        });
        for (name, load) in self.loads {
            let report = load.stop().unwrap();
            let successes = report.successes();
            assert_eq!(report.failures, [], "{name}: of {successes} requests");
            assert!(successes > self.enough, "{name}: only {successes} requests: too few to show anything");
        }
        for (name, connection) in self.connections {
            let report = connection.close().unwrap();
            assert_eq!(report.broken, None, "{name}: after {} echoes", report.echoes);
            let echoes = report.echoes;
            assert!(echoes > self.enough, "{name}: only {echoes} echoes: too few to show anything");
        }
    }
}
