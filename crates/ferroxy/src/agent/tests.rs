//! The agent with a dataplane that only writes down what it is asked to do.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};

use ferroxy_core::event::{EndpointSlice, Node, Service, ServicePort, SliceEndpoint, SlicePort};
use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};

use super::*;
use crate::dataplane::{Acknowledged, Change, Changed, Failure, Outcome, Preview, Programmed, Repair};

/// What was asked for, one line each.
type Journal = Arc<Mutex<Vec<String>>>;

#[derive(Debug, Default)]
struct Kernel {
    journal: Journal,
    is_warm: bool,
    /// How many of the next attempts fail.
    failures: usize,
    /// What no repair mends.
    unmended: Option<String>,
    /// How often it must be tidied until nothing is on its way out.
    untidy: usize,
    /// Tidying finds that things are not as they should be.
    drifted: bool,
    node: NodeIntent,
    services: BTreeMap<ServiceName, Arc<ServiceIntent>>,
}

impl Kernel {
    fn did(&self, what: &str, names: impl IntoIterator<Item = ServiceName>) {
        let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
        self.journal.lock().unwrap().push(format!("{what} {}", names.join(" ")));
    }

    fn attempt(&mut self) -> Result<(), Failure> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(Failure { cause: anyhow::anyhow!("no"), drift: false });
        }
        Ok(())
    }
}

impl Acknowledged for Kernel {
    fn node(&self) -> &NodeIntent {
        &self.node
    }

    fn service(&self, name: &ServiceName) -> Option<&Arc<ServiceIntent>> {
        self.services.get(name)
    }

    fn services(&self) -> Box<dyn Iterator<Item = (&ServiceName, &Arc<ServiceIntent>)> + '_> {
        Box::new(self.services.iter())
    }
}

impl Dataplane for Kernel {
    fn probe(&mut self, _: &NodeIntent) -> anyhow::Result<()> {
        Ok(())
    }

    fn watch(&mut self, _: Sender<Input>) -> anyhow::Result<()> {
        Ok(())
    }

    fn is_cold(&mut self) -> Result<bool, Failure> {
        Ok(!self.is_warm)
    }

    fn keep_unknown(&mut self, _: bool) {}

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.did("start", intent.services.keys().cloned());
        self.attempt()?;
        self.is_warm = true;
        self.node = intent.node.clone();
        self.services = intent.services.clone();
        Ok(Outcome::default())
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        self.did("change", changes.iter().map(|(name, _)| name.clone()));
        self.attempt()?;
        for (name, service) in changes {
            match service {
                Some(service) => self.services.insert(name, service),
                None => self.services.remove(&name),
            };
        }
        Ok(Outcome::default())
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        self.did("node", []);
        self.node = node;
        Ok(Outcome::default())
    }

    fn tidy(&mut self) -> Result<Outcome, Failure> {
        self.did("tidy", []);
        if self.drifted {
            return Err(Failure { cause: anyhow::anyhow!("no"), drift: true });
        }
        self.untidy = self.untidy.saturating_sub(1);
        Ok(Outcome::default())
    }

    fn tidies_again(&self) -> Option<Duration> {
        (self.untidy > 0).then_some(Duration::from_secs(5))
    }

    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        Ok(Changed::Nothing)
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        Ok(Repair { operations: 1, unmended: self.unmended.clone(), ..Repair::default() })
    }

    fn acknowledged(&self) -> &dyn Acknowledged {
        self
    }

    fn preview(&mut self, _: &Intent) -> Result<Preview, Failure> {
        Ok(Preview { text: String::new(), operations: Vec::new() })
    }

    fn programmed(&mut self, _: &Intent, _: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        Ok(Programmed::Nothing)
    }

    fn cleanup(&mut self) -> Result<bool, Failure> {
        Ok(false)
    }
}

/// A Service with one port and one endpoint.
fn service(namespace: &str, name: &str, last: u8, port: i64) -> [Event; 2] {
    let address = format!("10.96.0.{last}");
    let ports = vec![ServicePort { port, protocol: "TCP".into(), ..ServicePort::default() }];
    let service = Service {
        namespace: namespace.into(),
        name: name.into(),
        cluster_ip: address.clone(),
        cluster_ips: vec![address],
        ports,
        ..Service::default()
    };
    let slice = EndpointSlice {
        namespace: namespace.into(),
        name: format!("{name}-1"),
        service: Some(name.into()),
        address_type: "IPv4".into(),
        ports: vec![SlicePort { name: Some(String::new()), protocol: "TCP".into(), port: Some(8080) }],
        endpoints: vec![SliceEndpoint {
            addresses: vec![format!("10.244.1.{last}")],
            ..SliceEndpoint::default()
        }],
        ..EndpointSlice::default()
    };
    [Event::Service(service), Event::Slice(slice)]
}

fn own_node() -> Event {
    let addresses = vec![("InternalIP".to_owned(), "172.18.0.2".to_owned())];
    Event::Node(Node { name: "ka".into(), addresses, ..Node::default() })
}

/// The API server, DNS in two ways, and others with names before and after.
fn cluster() -> Vec<Event> {
    let services = [
        service("apps", "aaa", 1, 80),
        service("default", "kubernetes", 2, 443),
        service("kube-system", "kube-dns", 3, 53),
        service("kube-system", "metrics", 4, 443),
        service("apps", "dns", 5, 53),
    ];
    services.into_iter().flatten().chain([own_node()]).collect()
}

fn agent(kernel: Kernel) -> (Agent, Journal) {
    let journal = Arc::clone(&kernel.journal);
    let policy = Policy { node_name: "ka".into(), ..Policy::default() };
    let status = Arc::new(Status::new(&Family::ALL, Duration::from_secs(30)));
    let mut agent =
        Agent::new(Mode::Nftables, Facts::new(policy), Box::new(kernel), Periods::default(), status);
    // What kube-proxy left on the machine that runs the tests is none of our business.
    agent.source_was_whole = false;
    (agent, journal)
}

fn written(journal: &Journal) -> Vec<String> {
    std::mem::take(&mut *journal.lock().unwrap())
}

#[test]
fn on_a_cold_node_the_api_server_and_dns_come_first() {
    let (mut agent, journal) = agent(Kernel::default());
    drop(agent.apply(cluster()));
    assert_eq!(agent.start(&mpsc::channel().1), None);
    assert_eq!(
        written(&journal),
        ["start default/kubernetes kube-system/kube-dns", "change apps/aaa apps/dns kube-system/metrics",]
    );
}

#[test]
fn where_rules_are_in_force_everything_comes_at_once() {
    let (mut agent, journal) = agent(Kernel { is_warm: true, ..Kernel::default() });
    drop(agent.apply(cluster()));
    assert_eq!(agent.start(&mpsc::channel().1), None);
    assert_eq!(
        written(&journal),
        ["start apps/aaa apps/dns default/kubernetes kube-system/kube-dns kube-system/metrics"]
    );
}

#[test]
fn the_first_sync_is_tried_until_it_succeeds() {
    let (mut agent, journal) = agent(Kernel { is_warm: true, failures: 2, ..Kernel::default() });
    drop(agent.apply(service("default", "web", 9, 80).into()));
    assert_eq!(agent.start(&mpsc::channel().1), None);
    assert_eq!(written(&journal), ["start default/web"; 3]);
}

#[test]
fn nothing_is_programmed_before_the_source_has_shown_all_and_the_node_has_an_address() {
    let (mut agent, journal) = agent(Kernel::default());
    let (sender, inputs) = mpsc::channel();
    sender.send(Input::Events(service("default", "web", 9, 80).into())).unwrap();
    sender.send(Input::Listed).unwrap();
    sender.send(Input::Events(vec![own_node()])).unwrap();
    assert_eq!(agent.gather(&inputs), None);
    assert_eq!(written(&journal), Vec::<String>::new());
    assert!(inputs.try_recv().is_err(), "it has heard of its Node");

    // Without an address, or without a list, it goes on waiting until it is told to stop.
    for inputs_before in [vec![own_node()], Vec::new()] {
        let (mut waiting, journal) = self::agent(Kernel::default());
        let (sender, inputs) = mpsc::channel();
        sender.send(Input::Events(inputs_before)).unwrap();
        sender.send(Input::Stop("enough")).unwrap();
        assert_eq!(waiting.gather(&inputs), Some("enough"));
        assert_eq!(written(&journal), Vec::<String>::new());
    }
}

#[test]
fn what_failed_is_tried_again_and_other_settings_resolve_everything_anew() {
    let (mut agent, journal) = agent(Kernel { is_warm: true, ..Kernel::default() });
    drop(agent.apply(cluster()));
    assert_eq!(agent.start(&mpsc::channel().1), None);
    written(&journal);

    let now = Instant::now();
    let gone = Event::ServiceGone { namespace: "apps".into(), name: "dns".into() };
    assert_eq!(agent.take(Input::Events(vec![gone])), None);
    agent.work(now + Duration::from_secs(1));
    assert_eq!(written(&journal), ["change apps/dns"]);

    let policy = Policy { node_name: "ka".into(), masquerade_all: true, ..Policy::default() };
    assert_eq!(agent.take(Input::Settings(Box::new(policy), Periods::default())), None);
    agent.work(now + Duration::from_secs(2));
    assert_eq!(
        written(&journal),
        ["node ", "change apps/aaa default/kubernetes kube-system/kube-dns kube-system/metrics"]
    );
}

#[test]
fn a_repair_that_does_not_help_is_told_of_once_and_waits_for_the_period() {
    let (mut agent, _) = agent(Kernel { unmended: Some("a rule".into()), ..Kernel::default() });
    for _ in 0..3 {
        agent.verify();
        assert_eq!(agent.verify_due, None, "not at once");
    }
    let failures = |agent: &Agent| agent.status.now().counts.full_sync_failures;
    assert_eq!((failures(&agent), agent.drift_repairs), (1, 0));
    agent.dataplane = Box::new(Kernel::default());
    agent.verify();
    assert_eq!((failures(&agent), agent.drift_repairs, &agent.unmended), (1, 1, &None));
}

/// Packets may still need it that were on their way when the change came.
#[test]
fn what_a_change_leaves_unused_is_not_tidied_with_it() {
    let (mut agent, journal) = agent(Kernel { is_warm: true, ..Kernel::default() });
    assert_eq!(agent.start(&mpsc::channel().1), None);
    written(&journal);
    let now = Instant::now();
    let touched = agent.apply(service("apps", "a", 1, 80).into());
    agent.touch(touched, now);
    agent.tidy_due = Some(now);
    agent.work(now);
    assert_eq!(written(&journal), ["tidy ", "change apps/a"]);
}

#[test]
fn drift_that_tidying_finds_is_looked_into_at_once() {
    let (mut agent, _) = agent(Kernel { drifted: true, ..Kernel::default() });
    agent.tidy();
    assert!(agent.verify_due.is_some_and(|due| due <= Instant::now()));
}

#[test]
fn what_is_on_its_way_out_is_looked_at_until_it_is_gone() {
    let (mut agent, journal) = agent(Kernel { untidy: 2, ..Kernel::default() });
    let now = Instant::now();
    agent.plan_to_tidy(now);
    for (second, expected) in [(1, 0), (4, 0), (5, 1), (6, 0), (9, 0), (10, 1), (15, 0), (29, 0)] {
        agent.work(now + Duration::from_secs(second));
        assert_eq!(written(&journal), vec!["tidy "; expected], "after {second} s");
    }
}
