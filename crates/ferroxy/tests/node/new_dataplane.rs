//! Adding a dataplane takes a crate and a line in the list of modes: here the list has a mode that exists only in tests, and
//! nothing else of the binary knows it. Flags, file, help, render, trace, explain, the agent and cleanup work with it.

use std::ffi::OsString;
use std::fs;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ferroxy::agent::{Agent, Input, Periods, inbox};
use ferroxy::config::Config;
use ferroxy::flags::Flags;
use ferroxy::modes::{MODES, Modes};
use ferroxy::serve::Status;
use ferroxy_core::{Event, Facts, Family, Origin, Packet, Protocol, ServiceName, Verdict, resolve};
use ferroxy_dataplane::testing::{GREETING, Kernel, MEMORY, Memory};
use ferroxy_dataplane::{FailureKind, Lifetime, Mode, Opening, Platform, Rendering, Settings};
use ferroxy_lab::{Capability, Namespace, require};
use ferroxy_source::manifest::read_str;

use crate::support::OwnedTable;

/// The list of the binary, and one more mode.
static LIST: LazyLock<Vec<&Mode>> = LazyLock::new(|| MODES.iter().chain([&MEMORY]).collect());

fn modes() -> Modes {
    Modes(&LIST)
}

const MANIFESTS: &str = "\
{kind: Service, apiVersion: v1, metadata: {name: web}, spec: {clusterIP: 10.96.0.80, clusterIPs: [10.96.0.80], \
ipFamilies: [IPv4], ports: [{port: 80}]}}
---
{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}, \
addressType: IPv4, ports: [{name: '', port: 8080}], endpoints: [{addresses: [10.244.2.5], conditions: {ready: true}}]}
";

fn config(flags: &[&str]) -> Config {
    let flags = Flags::parse(flags.iter().map(OsString::from), modes()).unwrap();
    let (config, warnings) = Config::load(&flags, modes()).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    config
}

fn events() -> Vec<Event> {
    let (objects, diagnostics) = read_str("web.yaml", MANIFESTS);
    assert_eq!(diagnostics, []);
    objects.into_iter().map(Into::into).collect()
}

fn run(arguments: &[&str]) -> ExitCode {
    ferroxy::command::main(
        std::iter::once("ferroxy").chain(arguments.iter().copied()).map(Into::into),
        modes(),
    )
}

#[test]
fn flags_and_file_know_its_settings() {
    let by_flag = config(&["--proxy-mode=memory", "--memory-greeting=hi"]);
    assert_eq!(by_flag.mode, Some(&MEMORY));
    assert_eq!(by_flag.settings(&MEMORY).text(&GREETING), "hi");

    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: memory\n\
                memory: {greeting: from the file, syncPeriod: 7s}\n";
    fs::write(file.path(), text).unwrap();
    let by_file = config(&[&format!("--config={}", file.path().display())]);
    assert_eq!(by_file.settings(&MEMORY).text(&GREETING), "from the file");
    assert_eq!(by_file.periods(&MEMORY).sync, Duration::from_secs(7));
    assert!(by_file.to_yaml().unwrap().contains("greeting: from the file"));
}

#[test]
fn a_ruleset_is_rendered_and_traced() {
    let config = config(&["--proxy-mode=memory", "--memory-greeting=hi"]);
    let mut facts = Facts::new(config.policy(&MEMORY, "ka".into()));
    events().into_iter().for_each(|event| drop(facts.apply(event)));
    let (intent, _) = resolve::all(&facts);
    let settings = config.settings(&MEMORY);
    let ruleset = (MEMORY.render)(&Rendering { intent: &intent, settings: &settings, host_addresses: &[] });
    assert_eq!(ruleset.to_string(), "hi\ndefault/web\n");
    let packet = Packet {
        source: [10, 244, 1, 5].into(),
        origin: Origin::Interface("eth0".into()),
        destination: [10, 96, 0, 80].into(),
        port: 80,
        protocol: Protocol::Tcp,
        to_this_host: false,
    };
    let endpoint = "10.244.2.5:8080".parse().unwrap();
    assert_eq!(ruleset.trace(&packet).verdict, Verdict::Endpoints([(endpoint, false)].into()));
}

#[test]
fn the_agent_programs_it() {
    let kernel = Kernel::default();
    let mut facts = Facts::new(config(&["--proxy-mode=memory"]).policy(&MEMORY, "ka".into()));
    events().into_iter().for_each(|event| drop(facts.apply(event)));
    let status = Arc::new(Status::new(&Family::ALL, Duration::from_secs(30)));
    let mut agent =
        Agent::new(&MEMORY, facts, Box::new(Memory::new(&kernel)), Periods::default(), Arc::clone(&status));
    assert_eq!(agent.start(&inbox().1), None);
    let web = ServiceName::new("default", "web");
    assert!(kernel.intent().services.contains_key(&web));
    let gone = Event::ServiceGone { namespace: "default".into(), name: "web".into() };
    assert_eq!(agent.handle([Input::Events(vec![gone])]), None);
    assert!(kernel.intent().services.is_empty() && status.now().progress.waiting == 0);
}

#[test]
fn commands_take_it() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yaml");
    fs::write(&path, MANIFESTS).unwrap();
    let manifests = format!("--manifests={}", path.display());
    let given = ["--proxy-mode=memory", "--memory-greeting=hi", "--hostname-override=ka", &manifests];
    let with = |command: &[&'static str]| -> Vec<&str> { command.iter().chain(&given).copied().collect() };
    let namespace = Namespace::new("memory").unwrap();
    let in_namespace = |arguments: Vec<&str>| namespace.run(|| run(&arguments)).unwrap();
    assert_eq!(in_namespace(with(&["render"])), ExitCode::SUCCESS);
    assert_eq!(in_namespace(with(&["trace", "10.244.1.5", "default/web:80"])), ExitCode::SUCCESS);
    assert_eq!(in_namespace(with(&["diff"])), ExitCode::from(2), "nothing is in force yet");
    assert_eq!(in_namespace(with(&["explain", "web"])), ExitCode::from(2), "it is not programmed here");
    assert_eq!(in_namespace(with(&["render", "--nftables-greeting=x"])), ExitCode::FAILURE);
    assert_eq!(in_namespace(vec!["cleanup"]), ExitCode::SUCCESS);
    assert!(MEMORY.runs_on(Platform::HERE));
}

/// A mode that has nothing to take over does not hide what another mode could not remove: a table that only its owner may delete.
#[test]
fn cleanup_reports_what_other_modes_could_not_remove() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::NftTool]) {
        return;
    }
    let namespace = Namespace::new("memory").unwrap();
    let owned = OwnedTable::of_kube_proxy(&namespace);
    assert_eq!(namespace.run(|| run(&["cleanup"])).unwrap(), ExitCode::FAILURE);
    drop(owned);
    assert_eq!(namespace.run(|| run(&["cleanup"])).unwrap(), ExitCode::SUCCESS);
}

#[test]
fn help_describes_every_mode() {
    let command = Flags::add_to(clap::Command::new("test"), modes());
    let help = command.get_after_help().unwrap().to_string();
    for mode in modes().iter() {
        let line = help.lines().find(|line| line.trim_start().starts_with(mode.name)).unwrap();
        assert!(line.contains(mode.help) && line.contains(mode.needs), "{line}");
    }
}

/// Some properties are declared by the mode before it is opened, and again by its dataplane.
#[test]
fn a_mode_and_its_dataplane_agree() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    let namespace = Namespace::new("agree").unwrap();
    let opening = Opening { families: &Family::ALL, settings: &Settings::default() };
    for mode in modes().for_platform(Platform::HERE) {
        let opened = namespace.run(|| {
            (mode.open)(&opening)
                .map(|mut dataplane| (dataplane.persists().is_some(), dataplane.counts_traffic().is_some()))
        });
        let outlives = mode.lifetime == Lifetime::OutlivesProcess;
        match opened.unwrap() {
            Ok((persists, counts)) => {
                // A proxy ends with its process, and its rules may stay all the same.
                assert!(persists || !outlives, "{}", mode.name);
                assert_eq!(counts, mode.counts_traffic, "{}", mode.name);
            }
            Err(failure) => assert_eq!(failure.kind, FailureKind::Unsupported, "{}: {failure}", mode.name),
        }
    }
}
