//! Credentials: the exec plugin that prints them gets no privileges, and the agent warns once if it does not verify the
//! server's certificate.

use std::fs;

use ferroxy_lab::api::{Access, Login};

use crate::support::{Agent, DEADLINE, Iptables, Setting, Stage, configuration, wait_until};

/// In iptables mode, because there the agent passes privileges to the iptables tools.
#[test]
fn an_exec_plugin_has_no_privileges() {
    let setting = Setting { access: Access::Token, login: Login::Exec, ..Setting::default() };
    let Some(stage) = Stage::new(setting) else { return };
    stage.write_config(&configuration().replace("mode: nftables", "mode: iptables"));
    let seen = stage.folder().join("capabilities");
    let kubeconfig = stage.folder().join("kubeconfig");
    let text = fs::read_to_string(&kubeconfig).unwrap();
    let curious =
        text.replace("echo run", &format!("grep ^Cap /proc/self/status >> '{}'; echo run", seen.display()));
    assert_ne!(curious, text);
    fs::write(&kubeconfig, curious).unwrap();

    let tools = Iptables::nft();
    let agent = Agent::start_using(stage.ka(), &tools, stage.arguments());
    let seen = fs::read_to_string(seen).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let values: Vec<&str> =
            seen.lines().filter_map(|line| line.strip_prefix(set)?.strip_prefix(":\t")).collect();
        assert!(!values.is_empty() && values.iter().all(|value| *value == "0000000000000000"), "{seen}");
    }
    // The tools still have their privileges.
    stage.move_other();
    stage.wait_for_other();
    agent.terminate();
}

#[test]
fn a_certificate_that_is_not_verified_is_warned_of_once() {
    let setting = Setting { tls: true, access: Access::Token, login: Login::TokenFile, ..Setting::default() };
    let Some(stage) = Stage::new(setting) else { return };
    let kubeconfig = stage.folder().join("kubeconfig");
    let text = fs::read_to_string(&kubeconfig).unwrap();
    let authority = format!("certificate-authority: {}", stage.folder().join("ca.crt").display());
    let careless = text.replace(&authority, "insecure-skip-tls-verify: true");
    assert_ne!(careless, text);
    fs::write(&kubeconfig, careless).unwrap();

    let agent = stage.start();
    // New connections are not verified either, and must not repeat the warning.
    let requests = stage.server.requests().len();
    stage.server.cut();
    stage.move_other();
    stage.wait_for_other();
    wait_until("there are new connections", DEADLINE, || stage.server.requests().len() > requests);
    let log = agent.terminate();
    assert_eq!(
        log.matches("insecure-skip-tls-verify: the certificate of https://127.0.0.1:6443").count(),
        1,
        "{log}"
    );
    assert!(!log.to_lowercase().contains("bypass"), "{log}");
}
