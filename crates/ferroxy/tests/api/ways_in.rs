//! The ways to start the agent as the original is started, and the read-only commands, all with an API server.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use ferroxy_lab::Protocol;
use ferroxy_lab::api::{Access, Fault, Kind, Login, Verb};

use crate::support::repository::skip;
use crate::support::{Agent, Done, FERROXY, Setting, Stage, ferroxy, pod_from};

fn ask(stage: &Stage, words: &[&str]) -> Done {
    ferroxy(stage.ka(), &stage.command(words))
}

#[test]
fn the_commands_that_look() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let different = ask(&stage, &["diff"]);
    assert_eq!(different.code, 2, "{different:?}");
    let agent = stage.start();
    let same = ask(&stage, &["diff"]);
    assert_eq!((same.code, same.stdout.as_str()), (0, "the kernel has exactly this\n"), "{same:?}");

    let explained = ask(&stage, &["explain", "default/other"]);
    assert_eq!(explained.code, 0, "{explained:?}");
    assert!(explained.stdout.contains("10.96.0.81"), "{explained:?}");
    let traced = ask(&stage, &["trace", "10.244.1.5", "10.96.0.81:80/tcp"]);
    assert!(traced.stdout.contains("10.244.1.6"), "{traced:?}");
    let rendered = ask(&stage, &["render"]);
    assert!(rendered.stdout.contains("10.96.0.81 . tcp . 80"), "{rendered:?}");

    agent.terminate();
}

#[test]
fn the_commands_that_look_say_which_permission_is_missing() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    // The user may list, but not watch: that is enough for the read-only commands.
    stage.server.fault_on(Verb::Watch, Fault::answer(403)).unwrap();
    stage.server.fault_on(Verb::StreamList, Fault::answer(403)).unwrap();
    let listed = ask(&stage, &["render"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    // ServiceCIDRs are not needed.
    stage.server.fault_on(Kind::ServiceCidr, Fault::answer(403)).unwrap();
    let listed = ask(&stage, &["render"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    stage.server.fault_on(Kind::EndpointSlice, Fault::answer(403)).unwrap();
    let looks: [&[&str]; 4] =
        [&["render"], &["diff"], &["explain", "other"], &["trace", "10.244.1.5", "10.96.0.81:80"]];
    for words in looks {
        let forbidden = ask(&stage, words);
        assert_eq!((forbidden.code, forbidden.stdout.as_str()), (1, ""), "{forbidden:?}");
        // The message does not say "within 30 seconds": the command does not wait, because no answer would come.
        let expected = "missing permission at http://127.0.0.1:6443: list endpointslices.discovery.k8s.io (403): \
                        forbidden: User \"system:anonymous\" cannot do this";
        assert!(forbidden.stderr.contains(expected), "{forbidden:?}");
    }
}

#[test]
fn the_commands_that_look_say_that_their_credentials_are_refused() {
    let setting = Setting { access: Access::Token, login: Login::TokenFile, ..Setting::default() };
    let Some(stage) = Stage::new(setting) else { return };
    std::fs::write(stage.folder().join("token"), "of-another-user").unwrap();
    let refused = ask(&stage, &["diff"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{refused:?}");
    let expected = "http://127.0.0.1:6443 does not accept the credentials";
    assert!(refused.stderr.contains(expected) && refused.stderr.contains("(401)"), "{refused:?}");
}

/// As the DaemonSet of the original starts kube-proxy: under that name, with two flags.
#[test]
fn as_kube_proxy() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let mut command = Command::new(FERROXY);
    command.arg0("/usr/local/bin/kube-proxy");
    let config = format!("--config={}", stage.config().display());
    let agent = Agent::spawn_as(stage.ka(), command, [config.as_str(), "--hostname-override=ka"]);
    agent.wait_for("in sync");
    stage.move_other();
    stage.wait_for_other();
    agent.terminate();
}

/// `--master` and `--kubeconfig` instead of a configuration file.
#[test]
fn by_flags_alone() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let url = stage.server.url();
    let flags = [
        "--master",
        &url,
        "--hostname-override",
        "ka",
        "--proxy-mode",
        "nftables",
        "--cluster-cidr",
        "10.244.0.0/16",
    ];
    let agent = Agent::start_with(stage.ka(), flags);
    assert_eq!(pod_from(&stage.network, "a1", Protocol::Tcp, "10.96.0.81:80"), "a2");
    agent.terminate();
    let kubeconfig = stage.write_kubeconfig();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let flags = ["--kubeconfig", kubeconfig, "--hostname-override", "ka", "--proxy-mode", "nftables"];
    Agent::start_with(stage.ka(), flags).terminate();
}

/// The service account is where pods find it, in a mount namespace of the agent's own.
#[test]
fn in_a_pod() {
    if let Err(reason) = private_mounts() {
        return skip(&reason);
    }
    let setting = Setting { tls: true, access: Access::Token, login: Login::TokenFile, ..Setting::default() };
    let Some(stage) = Stage::new(setting) else { return };
    let account = stage.folder().join("account");
    std::fs::create_dir(&account).unwrap();
    stage.server.service_account(&account).unwrap();
    // The configuration names no kubeconfig.
    std::fs::write(stage.config(), crate::support::configuration()).unwrap();

    let agent = Agent::spawn_as(stage.ka(), in_pod(&account), stage.arguments());
    agent.wait_for("in sync");
    // The kubelet renews the token and the authority, and the agent picks them up.
    stage.server.renew_credentials().unwrap();
    stage.server.renew_authority().unwrap();
    stage.server.service_account(&account).unwrap();
    stage.server.revoke_old_credentials();
    stage.server.cut();
    stage.move_other();
    stage.wait_for_other();
    agent.terminate();
}

/// Runs the agent with this folder as the pod's service account.
fn in_pod(account: &Path) -> Command {
    let script = "set -e
        mount -t tmpfs tmpfs /run
        mkdir -p /run/secrets/kubernetes.io/serviceaccount
        mount --bind \"$1\" /run/secrets/kubernetes.io/serviceaccount
        program=$2; shift 2
        exec \"$program\" run \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(account).arg(FERROXY);
    command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", "6443");
    command
}

fn private_mounts() -> Result<(), String> {
    let script = "mount -t tmpfs tmpfs /run && test \"$(readlink -f /var/run)\" = /run";
    let tried = Command::new("unshare").args(["--mount", "sh", "-c", script]).output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            Err(format!("no mounts of its own: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Err(format!("no mounts of its own: unshare: {error}")),
    }
}
