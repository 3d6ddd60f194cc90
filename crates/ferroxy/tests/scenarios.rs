//! Ring 0: scenario files. Each is a cluster that changes step by step, with what must come of every step: the Intent, the
//! operations sent to the kernel, and where packets go.
//!
//! A scenario is `tests/scenarios/NAME.yaml`: manifests of one step after the other, parted by lines `# step: words`, with
//! `# packet: FROM -> TO:PORT/PROTOCOL` lines at the top. `NAME.expected` beside it is what came of it when somebody last
//! looked; `UPDATE_SCENARIOS=1 cargo test --test scenarios` writes it anew, to be read before it is committed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the functions that tests share are tests too")]

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferroxy_core::policy::DetectLocal;
use ferroxy_core::{
    Endpoint, Facts, Family, Intent, Origin, Packet, Policy, Protocol, ServiceIntent, Verdict, oracle,
    resolve,
};
use ferroxy_nftables::ledger::{Change, Ledger};
use ferroxy_nftables::{Plan, State, interpret};
use ferroxy_source::manifest::read_str;

#[test]
fn every_scenario_comes_out_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut scenarios: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "yaml"))
        .collect();
    scenarios.sort();
    assert!(scenarios.len() >= 5, "only {} scenarios in {}", scenarios.len(), folder.display());
    for scenario in scenarios {
        let found = play(&fs::read_to_string(&scenario).unwrap());
        let file = scenario.with_extension("expected");
        if std::env::var_os("UPDATE_SCENARIOS").is_some() {
            fs::write(&file, &found).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        assert!(found == expected, "{} came out otherwise:\n{found}", scenario.display());
    }
}

/// Plays a scenario, and writes down what came of each step.
fn play(text: &str) -> String {
    let mut steps = text.split("# step: ");
    let packets: Vec<Packet> = steps
        .next()
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("# packet: "))
        .map(packet)
        .collect();
    let mut came = String::new();
    let mut ledger = Ledger::new(&Family::ALL, resolve::node(&facts("")).0);
    let mut kernel = carried_out(State::default(), &ledger.plan_program());
    let mut before = Intent::default();
    for step in steps {
        let (words, manifests) = step.split_once('\n').unwrap();
        let (intent, diagnostics) = resolve::all(&facts(manifests));
        let node = ledger.plan_node(&intent.node);
        kernel = carried_out(kernel, &node);
        ledger.settle_node(intent.node.clone());
        let (plan, settlement) = ledger.plan(&changes(&before, &intent));
        kernel = carried_out(kernel, &plan);
        ledger.settle(settlement);

        writeln!(came, "=== {words}").unwrap();
        intent.services.values().for_each(|service| describe(&mut came, service));
        diagnostics.iter().for_each(|diagnostic| writeln!(came, "! {diagnostic}").unwrap());
        for op in node.ops().chain(plan.ops()) {
            op.to_string().lines().for_each(|line| writeln!(came, "  {line}").unwrap());
        }
        for packet in &packets {
            let verdict = interpret(&kernel, packet);
            assert_eq!(verdict, oracle(&intent, packet), "{words}: {packet:?}");
            let to = SocketAddr::new(packet.destination, packet.port);
            writeln!(came, "> {} -> {to}/{}: {}", packet.source, packet.protocol, spell(&verdict)).unwrap();
        }
        before = intent;
    }
    came
}

fn facts(manifests: &str) -> Facts {
    let pods = ["10.244.0.0/16", "fd00:10:244::/56"].map(|text| text.parse().unwrap());
    let policy = Policy {
        node_name: "ka".into(),
        detect_local: DetectLocal::ClusterCidr(pods.into()),
        ..Policy::default()
    };
    let mut facts = Facts::new(policy);
    let node = "{kind: Node, apiVersion: v1, metadata: {name: ka}, status: {addresses: \
                [{type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: 'fd00:172:18::2'}]}}";
    for text in [node, manifests] {
        let (objects, diagnostics) = read_str("scenario.yaml", text);
        assert_eq!(diagnostics, [], "the scenario can be read");
        objects.into_iter().for_each(|object| drop(facts.apply(object.into())));
    }
    facts
}

fn changes(before: &Intent, after: &Intent) -> Vec<Change> {
    let names: std::collections::BTreeSet<_> = before.services.keys().chain(after.services.keys()).collect();
    let differs = |name: &&_| before.services.get(*name) != after.services.get(*name);
    names.into_iter().filter(differs).map(|name| (name.clone(), after.services.get(name).cloned())).collect()
}

fn carried_out(mut state: State, plan: &Plan) -> State {
    for op in plan.ops() {
        state.apply(op).unwrap_or_else(|refused| panic!("{op}: {refused}"));
    }
    state
}

/// `10.244.1.5 -> 10.96.0.80:80/tcp`
fn packet(text: &str) -> Packet {
    let (source, to) = text.split_once(" -> ").unwrap();
    let (to, protocol) = to.rsplit_once('/').unwrap();
    let (source, to): (std::net::IpAddr, SocketAddr) = (source.parse().unwrap(), to.parse().unwrap());
    let own = ["172.18.0.2", "fd00:172:18::2"].map(|text| text.parse::<std::net::IpAddr>().unwrap());
    let origin = match own.contains(&source) {
        true => Origin::Host,
        false => Origin::Interface("eth0".into()),
    };
    Packet {
        source,
        origin,
        destination: to.ip(),
        port: to.port(),
        protocol: Protocol::parse(protocol).unwrap(),
        to_this_host: own.contains(&to.ip()),
    }
}

fn describe(came: &mut String, service: &Arc<ServiceIntent>) {
    for port in &service.ports {
        let pool = |pool: &[Endpoint]| {
            let each = pool.iter().map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port).to_string());
            each.collect::<Vec<_>>().join(" ")
        };
        let affinity = port.affinity.map(|seconds| format!(" affinity {seconds} s")).unwrap_or_default();
        writeln!(
            came,
            "{} {} {}: cluster [{}] local [{}]{affinity}",
            service.name.port(&port.name),
            port.protocol,
            port.family,
            pool(&port.cluster),
            pool(&port.local),
        )
        .unwrap();
        for frontend in &port.frontends {
            let address = frontend.address.map_or("node".into(), |address| address.to_string());
            let sources = match &frontend.allowed_sources {
                None => String::new(),
                Some(ranges) => format!(" from {ranges:?}"),
            };
            writeln!(
                came,
                "  {} {address} {} {:?}{sources}",
                frontend.kind.words(),
                frontend.port,
                frontend.route
            )
            .unwrap();
        }
    }
}

fn spell(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Endpoints(endpoints) => {
            let each = endpoints.iter().map(|(endpoint, masqueraded)| match masqueraded {
                true => format!("{endpoint} (masqueraded)"),
                false => endpoint.to_string(),
            });
            each.collect::<Vec<_>>().join(", ")
        }
        other => format!("{other:?}").to_lowercase(),
    }
}
