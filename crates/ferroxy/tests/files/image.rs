//! The image's recipe, without a container tool: its build flags and the file capability work for a user who is not root.
//! `make image-check` builds and runs Ferroxy itself in this way, which takes minutes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ferroxy_lab::Namespace;
use tempfile::TempDir;

use crate::support::repository::{documents, output, path, skip, text, tool};
use crate::support::{self, Agent, Done, FERROXY, run_arguments};

#[test]
fn there_is_nothing_but_the_binary_and_the_user_of_the_pod() {
    let recipe = text("deploy/Containerfile");
    let (_, image) = recipe.rsplit_once("\nFROM ").unwrap();
    let steps: Vec<&str> = image.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let daemon_set = documents(&text("deploy/kubernetes/daemonset.yaml")).remove(0);
    let context = &daemon_set["spec"]["template"]["spec"]["securityContext"];
    let user = format!("USER {}:{}", context["runAsUser"], context["runAsGroup"]);
    let expected = [
        "scratch",
        "COPY --from=build /image/ /",
        "ENV PATH=/usr/local/bin",
        &user,
        "ENTRYPOINT [\"/usr/local/bin/ferroxy\"]",
    ];
    assert_eq!(steps, expected);
}

/// The chart appends the name of the stage to the tag where `iptables.program` is `tool`.
#[test]
fn the_variant_with_tools_has_them_and_the_same_binary() {
    let recipe = text("deploy/Containerfile");
    let (_, stage) = recipe.split_once("\nFROM ${TOOLS_BASE:-scratch} AS iptables\n").unwrap();
    let (stage, _) = stage.split_once("\nFROM ").unwrap();
    let steps: Vec<&str> = stage.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let [.., install, _, _] = steps[..] else { panic!("{steps:?}") };
    assert!(install.contains(" --no-install-recommends iptables "), "{steps:?}");
    assert_eq!(
        steps[steps.len() - 2..],
        ["COPY --from=build /image/ /", "ENTRYPOINT [\"/usr/local/bin/ferroxy\"]"]
    );
    assert!(text("deploy/helm/ferroxy/templates/_parts.tpl").contains("-iptables{{ end }}"));
}

/// A tag is not enough, because it can be moved to another image.
#[test]
fn the_base_must_be_named_by_its_digest() {
    let recipe = text("deploy/Containerfile");
    let bases: Vec<&str> = recipe.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert_eq!(bases, ["${BASE} AS build", "${TOOLS_BASE:-scratch} AS iptables", "scratch"]);
    let arguments: Vec<&str> = recipe.lines().filter(|line| line.starts_with("ARG")).collect();
    assert_eq!(arguments, ["ARG BASE", "ARG TOOLS_BASE", "ARG BASE", "ARG TOOLS_BASE"], "without a default");
    // The first step of each stage, as a shell runs it.
    let joined = recipe.replace("\\\n", "");
    let checks: Vec<&str> = joined.lines().filter_map(|line| line.strip_prefix("RUN echo ")).collect();
    assert_eq!(checks.len(), 2);
    let digest = "0123456789abcdef".repeat(4);
    for (base, accepted) in [
        (format!("rust@sha256:{digest}"), true),
        (format!("example.com/rust:1.95@sha256:{digest}"), true),
        ("rust:1.95-slim-bookworm".to_owned(), false),
        (format!("rust@sha256:{}", &digest[1..]), false),
        (String::new(), false),
    ] {
        for check in &checks {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("echo {check}")]).env("BASE", &base).env("TOOLS_BASE", &base);
            let done = shell.output().unwrap();
            assert_eq!(done.status.success(), accepted, "{base}: {done:?}");
        }
    }
}

/// `make image-check` looks into the binary itself.
#[test]
fn the_image_has_no_feature_that_is_for_people() {
    assert!(text("deploy/image-root").contains(" scripts/static "));
    let features = output(Command::new(path("scripts/static")).arg("--features"), "");
    assert_eq!(features, "--no-default-features --features api,top\n");
    let metadata = output(Command::new(env!("CARGO")).args(["metadata", "--no-deps", "--offline"]), "");
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let features = &packages.iter().find(|package| package["name"] == "ferroxy").unwrap()["features"];
    assert_eq!(features["default"], serde_json::json!(["api", "demo", "profiling", "top"]));
    assert_eq!(features["api"], serde_json::json!(["ferroxy-source/kube"]));
    assert_eq!(features["demo"], serde_json::json!(["dep:ferroxy-lab", "dep:ferroxy-netlink", "dep:rustix"]));
}

/// With a small program, which runs and looks up names where there is no library.
#[test]
fn the_build_flags_make_a_program_that_needs_no_library() {
    if !can_be_another_user() {
        return;
    }
    let script = text("scripts/static");
    let (_, flags) = script.split_once("\nflags=(").unwrap();
    let (flags, _) = flags.split_once(')').unwrap();
    let root = open_directory();
    let source = "fn main() {
        let found = std::net::ToSocketAddrs::to_socket_addrs(&(\"api.example.com\", 6443));
        print!(\"{:?}\", found.unwrap().next());
    }";
    let mut rustc = Command::new("rustc");
    rustc.args(flags.split(' ')).arg("-").arg("-o").arg(root.path().join("program"));
    output(&mut rustc, source);
    fs::create_dir(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/hosts"), "10.1.2.3 api.example.com\n").unwrap();

    let chroot = format!("--chroot={}", root.path().display());
    let mut program = as_the_container(&[&chroot], Path::new("/program"), &[]);
    assert_eq!(output(&mut program, ""), "Some(10.1.2.3:6443)");
}

/// As `docs/security.md` says, a user who is not root gets the capability from the file, unless no_new_privs was set.
#[test]
fn the_capability_of_the_file_is_enough_to_program_the_kernel() {
    let Some(node) = support::lonely_node() else { return };
    if !can_be_another_user() {
        return;
    }
    let recipe = text("deploy/image-root");
    let capability = recipe.lines().find_map(|line| line.strip_prefix("setcap ")?.split(' ').next()).unwrap();
    let directory = open_directory();
    let ferroxy = directory.path().join("ferroxy");
    fs::copy(FERROXY, &ferroxy).unwrap();
    output(Command::new("setcap").arg(capability).arg(&ferroxy), "");

    let done = init_only(&node, &ferroxy, &[]);
    assert_eq!(done.code, 0, "{done:?}");
    let done = init_only(&node, &ferroxy, &["--no-new-privs"]);
    assert!(done.code == 1 && done.stderr.contains("CAP_NET_ADMIN"), "{done:?}");
}

/// An agent that is not root must not warn about settings that only root can read.
#[test]
fn an_agent_that_is_not_root_finds_nothing_to_warn_of() {
    let Some(node) = support::lonely_node() else { return };
    if !can_be_another_user() {
        return;
    }
    let directory = open_directory();
    let ferroxy = directory.path().join("ferroxy");
    fs::copy(FERROXY, &ferroxy).unwrap();
    output(Command::new("setcap").arg("cap_net_admin+ep").arg(&ferroxy), "");
    let (manifests, config) = (directory.path().join("manifests"), directory.path().join("config.yaml"));
    fs::create_dir(&manifests).unwrap();
    // Every host allows more connections: the agent must read the setting, but need not change it.
    let text = support::configuration().replace("maxPerCore: 0", "maxPerCore: 1");
    assert!(text.contains("maxPerCore: 1"), "{text}");
    fs::write(&config, text).unwrap();
    let agent =
        Agent::spawn_as(&node, as_the_container(&[], &ferroxy, &["run"]), run_arguments(&manifests, &config));
    agent.wait_for("in sync");
    // The agent may also warn that there is no Node, which manifests do not need.
    assert_eq!(agent.warned("connection tracking") + agent.warned("cannot"), 0, "{}", agent.log());
    agent.terminate();
}

fn init_only(node: &Namespace, ferroxy: &Path, options: &[&str]) -> Done {
    let arguments = ["run", "--init-only", "--proxy-mode=nftables", "--hostname-override=ka"];
    let mut command = as_the_container(options, ferroxy, &arguments);
    Done::of(node.run(|| command.output()).unwrap().unwrap())
}

/// As in the pod's container: user 65532, and only CAP_NET_ADMIN in the bounding set.
fn as_the_container(options: &[&str], program: &Path, arguments: &[&str]) -> Command {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let within_reach = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap().trim();
    let decoded = output(Command::new("capsh").arg(format!("--decode={within_reach}")), "");
    let (_, all) = decoded.trim().split_once('=').unwrap();
    let others: Vec<&str> = all.split(',').filter(|it| *it != "cap_net_admin").collect();
    let mut command = Command::new("capsh");
    command.args(options).arg(format!("--drop={}", others.join(",")));
    command.args(["--gid=65532", "--groups=65532", "--uid=65532"]);
    command.arg(format!("--shell={}", program.display())).arg("--").args(arguments);
    command
}

/// False in a user namespace with only one user, for example (prints a message; fails in CI).
fn can_be_another_user() -> bool {
    let users = fs::read_to_string("/proc/self/uid_map").unwrap();
    let number = users.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap();
    if !rustix::process::geteuid().is_root() || number <= 65532 {
        skip("needs root: this user cannot become another");
        return false;
    }
    tool("capsh").is_some()
}

/// A directory that other users may enter.
fn open_directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}
