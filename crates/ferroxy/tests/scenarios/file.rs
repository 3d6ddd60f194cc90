//! Reads scenario files. Other files play the scenarios.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use ferroxy::modes::MODES;
use ferroxy_core::event::Verdict;
use ferroxy_core::policy::{DetectLocal, Limits, NodePortAddress};
use ferroxy_core::probe::{Down, Fault, Target};
use ferroxy_core::{Event, Facts, Origin, Packet, Policy, Protocol, ServiceName};
use ferroxy_dataplane::Settings;
use ferroxy_source::manifest::read_str;

pub struct Scenario {
    pub path: PathBuf,
    /// The files of `ferroxy-core/src/resolve/` whose rules decide in this scenario.
    pub rules: Vec<String>,
    pub policy: Policy,
    pub packets: Vec<Packet>,
    pub steps: Vec<Step>,
}

pub struct Step {
    pub words: String,
    text: String,
}

/// All of them, by name.
pub fn scenarios() -> Vec<Scenario> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/cases");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "yaml"));
    paths.sort();
    paths.into_iter().map(Scenario::read).collect()
}

impl Scenario {
    fn read(path: PathBuf) -> Scenario {
        let text = fs::read_to_string(&path).unwrap();
        let mut parts = text.split("# step: ");
        let head = parts.next().unwrap();
        let packets = head.lines().filter_map(|line| line.strip_prefix("# packet: ")).map(packet).collect();
        let step = |part: &str| {
            let (words, text) = part.split_once('\n').unwrap();
            Step { words: words.to_owned(), text: text.to_owned() }
        };
        let rules = head.lines().filter_map(|line| line.strip_prefix("# rule: "));
        let rules = rules.flat_map(|line| line.split(", ")).map(str::to_owned).collect();
        let mut policy = policy();
        head.lines().filter_map(|line| line.strip_prefix("# policy: ")).for_each(|it| set(&mut policy, it));
        Scenario { path, rules, policy, packets, steps: parts.map(step).collect() }
    }

    pub fn name(&self) -> String {
        self.path.file_stem().unwrap().to_string_lossy().into_owned()
    }
}

impl Step {
    /// The events that a source would send.
    pub fn events(&self) -> Vec<Event> {
        let lines = |word: &'static str| self.text.lines().filter_map(move |line| line.strip_prefix(word));
        let hosts = lines("# host: ").map(|it| Event::HostAddresses(addresses(it)));
        let verdicts = lines("# verdict: ").map(verdict);
        lines("# delete: ").map(gone).chain(hosts).chain(read(&self.text)).chain(verdicts).collect()
    }
}

/// The facts before the first step: this node, and nothing else.
pub fn facts(scenario: &Scenario) -> Facts {
    let mut facts = Facts::new(scenario.policy.clone());
    for event in own_node() {
        facts.apply(event);
    }
    facts
}

fn policy() -> Policy {
    let pods = ["10.244.0.0/16", "fd00:10:244::/56"].map(|text| text.parse().unwrap());
    Policy {
        node_name: "ka".into(),
        detect_local: DetectLocal::ClusterCidr(pods.into()),
        node_port_addresses: vec![NodePortAddress::Primary],
        ..Policy::default()
    }
}

/// `nodeCIDR`, `nodePortAddresses CIDR…`, `annotations MODE` (those that this mode reads), or `frontends ALWAYS NAMESPACE NODE`: limits.
fn set(policy: &mut Policy, text: &str) {
    match text.split_once(' ') {
        None if text == "nodeCIDR" => policy.detect_local = DetectLocal::NodeCidr,
        Some(("nodePortAddresses", ranges)) => {
            let range = |text: &str| NodePortAddress::Cidr(text.parse().unwrap());
            policy.node_port_addresses = ranges.split(' ').map(range).collect();
        }
        Some(("frontends", limits)) => {
            let numbers: Vec<usize> = limits.split(' ').map(|number| number.parse().unwrap()).collect();
            let [always, namespace_frontends, node_frontends] = numbers.try_into().unwrap();
            policy.limits = Limits { always, namespace_frontends, node_frontends, ..policy.limits };
        }
        Some(("annotations", mode)) => {
            let mut of_mode = Policy::default();
            (MODES.find(mode).unwrap().shape)(&Settings::default(), &mut of_mode);
            policy.annotations = of_mode.annotations;
        }
        _ => panic!("# policy: {text} is not supported"),
    }
}

pub fn own_node() -> Vec<Event> {
    let mut events = read(
        "{kind: Node, apiVersion: v1, metadata: {name: ka}, status: {addresses: \
         [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: 'fd00:172:18::2'}]}}",
    );
    events.push(Event::HostAddresses(addresses(OWN_ADDRESSES)));
    events
}

/// The addresses of this host before the first step.
const OWN_ADDRESSES: &str = "172.18.0.2 172.18.0.9 fd00:172:18::2";

fn addresses(text: &str) -> Vec<IpAddr> {
    text.split(' ').map(|address| address.parse().unwrap()).collect()
}

fn read(text: &str) -> Vec<Event> {
    let (objects, diagnostics) = read_str("scenario.yaml", text);
    assert_eq!(diagnostics, [], "the scenario can be read");
    objects.into_iter().map(Into::into).collect()
}

/// `web 10.244.1.5:8080/tcp down`, of the namespace `default`.
fn verdict(text: &str) -> Event {
    let [service, target, word] = text.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let down = Down { since: 1_700_000_000, fault: Fault::TimedOut };
    Event::Verdict(Verdict {
        service: ServiceName::new("default", service),
        target: Target::parse(target).unwrap(),
        life: None,
        down: match word {
            "down" => Some(down),
            "up" => None,
            other => panic!("# verdict: {other} is not supported"),
        },
    })
}

/// `Service web`, of the namespace `default`, or `Node ka`.
fn gone(text: &str) -> Event {
    let (kind, name) = text.split_once(' ').unwrap();
    let (namespace, name) = ("default".to_owned(), name.to_owned());
    match kind {
        "Service" => Event::ServiceGone { namespace, name },
        "EndpointSlice" => Event::SliceGone { namespace, name },
        "ServiceCIDR" => Event::ServiceCidrGone { name },
        "Node" => Event::NodeGone { name },
        other => panic!("# delete: {other} is not supported"),
    }
}

/// `10.244.1.5 -> 10.96.0.80:80/tcp`
fn packet(text: &str) -> Packet {
    let (source, to) = text.split_once(" -> ").unwrap();
    let (to, protocol) = to.rsplit_once('/').unwrap();
    let (source, to): (IpAddr, SocketAddr) = (source.parse().unwrap(), to.parse().unwrap());
    let own = addresses(OWN_ADDRESSES);
    let origin = if own.contains(&source) { Origin::Host } else { Origin::Interface("eth0".into()) };
    Packet {
        source,
        origin,
        destination: to.ip(),
        port: to.port(),
        protocol: Protocol::parse(protocol).unwrap(),
        // Depends on the step.
        to_this_host: false,
    }
}
