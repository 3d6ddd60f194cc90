//! Ring 0: the results of a scenario without a kernel. Intent, Diagnostics, and the verdict of every mode's ruleset.

use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use ferroxy::modes::MODES;
use ferroxy_core::{Endpoint, Intent, Packet, ServiceIntent, Verdict, oracle, resolve};
use ferroxy_dataplane::{Lifetime, Rendering, Settings};

use super::file::{Scenario, facts};

/// Compares with the file beside the scenario.
pub fn check(scenario: &Scenario) {
    let found = play(scenario);
    let file = scenario.path.with_extension("expected");
    if std::env::var_os("UPDATE_SCENARIOS").is_some() {
        fs::write(&file, &found).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{} came out differently:\n{found}", scenario.name());
}

fn play(scenario: &Scenario) -> String {
    let (mut facts, mut text) = (facts(scenario), String::new());
    for step in &scenario.steps {
        step.events().into_iter().for_each(|event| drop(facts.apply(event)));
        let (intent, diagnostics) = resolve::all(&facts);
        writeln!(text, "=== {}", step.words).unwrap();
        intent.services.values().for_each(|service| describe(&mut text, service));
        diagnostics.iter().for_each(|diagnostic| writeln!(text, "! {diagnostic}").unwrap());
        let own: Vec<IpAddr> = resolve::known_addresses(&facts).into_iter().collect();
        for packet in &scenario.packets {
            let to_this_host = own.contains(&packet.destination);
            verdicts(&mut text, &intent, &Packet { to_this_host, ..packet.clone() }, &own);
        }
    }
    text
}

/// The oracle's verdict, and that of every mode that differs from it.
fn verdicts(text: &mut String, intent: &Intent, packet: &Packet, host_addresses: &[IpAddr]) {
    let expected = oracle(intent, packet);
    let to = SocketAddr::new(packet.destination, packet.port);
    writeln!(text, "> {} -> {to}/{}: {}", packet.source, packet.protocol, spell(&expected)).unwrap();
    let settings = Settings::default();
    for mode in MODES.iter() {
        let rendering = Rendering { intent, settings: &settings, host_addresses };
        let ruleset = (mode.render)(&rendering);
        let mut packet = packet.clone();
        if ruleset.makes_local(packet.destination) {
            packet.to_this_host = true;
        }
        let verdict = ruleset.trace(&packet).verdict;
        let is_as_expected = match mode.lifetime {
            Lifetime::OutlivesProcess => verdict == expected,
            // A proxy connects to endpoints itself: they see this node.
            Lifetime::EndsWithProcess => masqueraded(&verdict) == masqueraded(&expected),
        };
        if !is_as_expected {
            writeln!(text, "    in {} mode: {}", mode.name, spell(&verdict)).unwrap();
        }
    }
}

fn masqueraded(verdict: &Verdict) -> Verdict {
    match verdict {
        Verdict::Endpoints(all) => Verdict::Endpoints(all.keys().map(|it| (*it, true)).collect()),
        other => other.clone(),
    }
}

fn describe(text: &mut String, service: &ServiceIntent) {
    for port in &service.ports {
        let pool = |pool: &[Endpoint]| {
            let each = pool.iter().map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port).to_string());
            each.collect::<Vec<_>>().join(" ")
        };
        let affinity = port.affinity.map(|seconds| format!(" affinity {seconds} s")).unwrap_or_default();
        let name = service.name.port(&port.name);
        let (cluster, local) = (pool(&port.cluster), pool(&port.local));
        writeln!(
            text,
            "{name} {} {}: cluster [{cluster}] local [{local}]{affinity}",
            port.protocol, port.family
        )
        .unwrap();
        for frontend in &port.frontends {
            let address = frontend.address.map_or("node".into(), |address| address.to_string());
            let sources = frontend.allowed_sources.as_ref().map(|ranges| format!(" from {ranges:?}"));
            let (kind, route) = (frontend.kind.words(), frontend.route);
            writeln!(text, "  {kind} {address} {} {route:?}{}", frontend.port, sources.unwrap_or_default())
                .unwrap();
        }
    }
    for (key, value) in &service.annotations {
        writeln!(text, "  annotation {key}: {value}").unwrap();
    }
    if let Some(check) = &service.health_check {
        writeln!(text, "  health check on port {}: {} local endpoints", check.port, check.local_endpoints)
            .unwrap();
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
