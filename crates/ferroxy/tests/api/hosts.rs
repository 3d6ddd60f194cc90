//! Behaviour that holds with any API server: tested with ours, and with a real control plane if `KUBEBUILDER_ASSETS`
//! names one.

use std::fs;
use std::net::Ipv4Addr;

use ferroxy_lab::api::{ApiHost, Assets, ControlPlane, Kind, Login, Options, Server};
use ferroxy_lab::{Answer, Network, Protocol};
use serde_json::json;

use crate::support::web::{HEALTHZ, code};
use crate::support::{
    Agent, DEADLINE, Service, Traffic, ask_from, configuration, ferroxy, network, node, pod_of, wait_until,
    web_service,
};

#[test]
fn with_the_server_for_tests() {
    let Some(network) = network() else { return };
    let server = network.namespace("ka").unwrap().run(|| Server::start(Options::default())).unwrap();
    play(&network, &server.unwrap());
}

#[test]
fn with_a_real_control_plane() {
    let (Some(assets), Some(network)) = (Assets::require(), network()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let start = || ControlPlane::start(&assets, folder.path(), Ipv4Addr::LOCALHOST);
    let control_plane = network.namespace("ka").unwrap().run(start).unwrap();
    play(&network, &control_plane.unwrap());
}

fn play(network: &Network, host: &dyn ApiHost) {
    let ka = network.namespace("ka").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = host.kubeconfig(folder.path(), Login::TokenFile).unwrap();
    let config = folder.path().join("config.yaml");
    let client = format!("clientConnection:\n  kubeconfig: {}\n", kubeconfig.display());
    fs::write(&config, format!("{}{client}", configuration())).unwrap();
    let arguments = ["--config", config.to_str().unwrap(), "--hostname-override", "ka"];

    for object in [node("ka", 1), node("kb", 2)].iter().chain(&web_service().objects()) {
        host.put(object).unwrap();
    }
    let agent = Agent::start_with(ka, arguments);
    let traffic = Traffic::every_way(network);

    // A Service comes, its endpoint moves, and it goes.
    let other = Service::new("other", &["10.96.0.81"]).port(Protocol::Tcp, 80, 80);
    for pod in ["a1", "b2", "a2"] {
        other.clone().endpoints(&[pod]).objects().iter().for_each(|object| host.put(object).unwrap());
        leads_to(network, "10.96.0.81:80", Some(pod));
    }
    host.delete(Kind::Service, "default", "other").unwrap();
    leads_to(network, "10.96.0.81:80", None);

    // The Node changes while the agent runs.
    let mut tainted = node("ka", 1);
    tainted["spec"]["taints"] = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    host.put(&tainted).unwrap();
    let healthz = || code(ka, HEALTHZ, "/healthz").unwrap();
    wait_until("/healthz says 503", DEADLINE, || healthz() == 503);

    // A restart finds everything as it was.
    drop(agent.kill());
    let agent = Agent::start_with(ka, arguments);
    assert_eq!(agent.said("nothing to send"), 1, "{}", agent.log());
    agent.settle(ka);
    let explained = ferroxy(ka, &[&["explain", "default/web"][..], &arguments].concat());
    assert_eq!(explained.code, 0, "{explained:?}");
    traffic.was_undisturbed();
    agent.terminate();
}

/// Waits until this pod answers at the address, or until no pod does.
fn leads_to(network: &Network, target: &str, pod: Option<&str>) {
    wait_until(&format!("{target} leads to {pod:?}"), DEADLINE, || {
        match ask_from(network, "a1", Protocol::Tcp, target) {
            Answer::Reply(line) => pod == Some(pod_of(&line)),
            _ => pod.is_none(),
        }
    });
}
