//! A second agent in one network namespace: it waits for the first, whatever their users and PID namespaces, and no other
//! process can make it wait.

use std::os::fd::OwnedFd;
use std::process::Command;

use ferroxy_lab::Namespace;
use ferroxy_platform::Claim;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, unshare_unsafe};

use crate::support::{self, Agent, Cluster, FERROXY, ferroxy, run_arguments, web_service};

const ANOTHER: &str = "another Ferroxy agent runs in this network namespace";
/// The name that an agent takes first.
const FIRST_NAME: u32 = 0x4000_0000;

/// An agent that is the first process of a PID namespace of its own, like one in a container.
fn spawn_contained(node: &Namespace, cluster: &Cluster) -> Agent {
    let mut command = Command::new(FERROXY);
    command.arg("run");
    Agent::spawn_prepared(node, command, run_arguments(&cluster.manifests(), &cluster.config()), || {
        // SAFETY: concerns only the children of this thread, and no descriptor.
        unsafe { unshare_unsafe(UnshareFlags::NEWPID) }.unwrap();
    })
}

/// A name taken by a process without any privilege; it does not join the group.
fn squat(node: &Namespace, name: u32) -> OwnedFd {
    node.run(|| {
        give_up_capabilities();
        let socket = netfilter_socket();
        rustix::net::bind(&socket, &SocketAddrNetlink::new(name, 0)).unwrap();
        socket
    })
    .unwrap()
}

fn netfilter_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER)).unwrap()
}

/// Drops the capabilities of this thread, which was created for one call.
fn give_up_capabilities() {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
}

#[test]
fn agents_in_different_pid_namespaces_work_one_after_the_other() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&web_service());
    let first = spawn_contained(&node, &cluster);
    first.wait_for("in sync");
    let second = spawn_contained(&node, &cluster);
    second.wait_for(ANOTHER);
    let outside = Agent::spawn(&node, run_arguments(&cluster.manifests(), &cluster.config()));
    outside.wait_for(ANOTHER);
    let cleanup = ferroxy(&node, &["cleanup"]);
    assert_eq!(cleanup.code, 1, "{cleanup:?}");
    assert!(cleanup.stderr.contains("stop it first"), "{cleanup:?}");
    // A waiting agent ends as soon as it gets SIGTERM.
    let log = outside.terminate();
    assert!(log.contains("while waiting: nothing was changed"), "{log}");
    assert_eq!(second.said("in sync"), 0, "{}", second.log());

    let log = first.terminate();
    assert!(!log.contains("drift"), "{log}");
    second.wait_for("nothing to send");
    let log = second.terminate();
    assert!(!log.contains("drift"), "{log}");
    assert_eq!(ferroxy(&node, &["cleanup"]).code, 0);
}

#[test]
fn a_process_without_privileges_neither_stops_an_agent_nor_hides_it() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&web_service());
    let _squatter = squat(&node, FIRST_NAME);
    let first = Agent::start(&node, &cluster);
    assert_eq!(first.said(ANOTHER), 0, "{}", first.log());
    let second = spawn_contained(&node, &cluster);
    second.wait_for(ANOTHER);
    first.terminate();
    second.wait_for("in sync");
}

#[test]
fn only_who_may_program_the_network_can_take_the_claim() {
    let Some(node) = support::lonely_node() else { return };
    let refused = node.run(|| {
        give_up_capabilities();
        Claim::take().unwrap_err()
    });
    assert_eq!(refused.unwrap().to_string(), "not permitted without CAP_NET_ADMIN");
    let held = node.run(|| Claim::take().unwrap()).unwrap();
    assert!(held.is_some());
    assert!(node.run(|| Claim::take().unwrap()).unwrap().is_none(), "taken twice");
    let elsewhere = Namespace::new("kb").unwrap();
    assert!(elsewhere.run(|| Claim::take().unwrap()).unwrap().is_some(), "each network has its own");
    drop(held);
    assert!(node.run(|| Claim::take().unwrap()).unwrap().is_some(), "not free after a drop");
}
