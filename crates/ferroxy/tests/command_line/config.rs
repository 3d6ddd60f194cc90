//! The configuration from outside: the name `kube-proxy`, files and flags as operators have them, and a file that changes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use ferroxy::config::Config;
use ferroxy::config::reload::{self, Reload};
use ferroxy::flags::Flags;
use ferroxy::modes::MODES;

use crate::support::{DEADLINE, Done, FERROXY};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// The ConfigMap of a cluster made by kubeadm, as it is.
const KUBEADM: &str = "
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: \"\"
  burst: 0
  contentType: \"\"
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: null, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null}
detectLocal: {bridgeInterface: \"\", interfaceNamePrefix: \"\"}
detectLocalMode: \"\"
enableProfiling: false
healthzBindAddress: \"\"
hostnameOverride: \"\"
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: \"\", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}, text: {infoBufferSize: \"0\"}}, verbosity: 0}
metricsBindAddress: \"\"
mode: \"nftables\"
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: \"\"
showHiddenMetricsForVersion: \"\"
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: \"\", rootHnsEndpointName: \"\", sourceVip: \"\"}
";

/// Runs the binary under another name: a link to it.
fn named(name: &str, arguments: &[&str]) -> Done {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join(name);
    std::os::unix::fs::symlink(FERROXY, &link).unwrap();
    Done::of(Command::new(link).args(arguments).output().unwrap())
}

#[test]
fn as_kube_proxy_it_takes_flags_only() {
    for (arguments, words) in
        [(&["run"][..], "'run'"), (&["--v=1", "stray"], "'stray'"), (&["--no-such-flag"], "--no-such-flag")]
    {
        let done = named("kube-proxy", arguments);
        assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{done:?}");
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
        assert!(done.stderr.starts_with("kube-proxy: ") && done.stderr.contains(words), "{done:?}");
    }
    let done = named("kube-proxy", &["--oom-score-adj=5000", "--bind_address=x"]);
    let expected = "kube-proxy: --bind-address: \"x\" is not an IP address\n\
                    kube-proxy: --oom-score-adj: 5000 is not between -1000 and 1000\n";
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (1, "", expected));
    let help = named("kube-proxy", &["--help"]);
    assert_eq!(help.code, 0, "{help:?}");
    assert!(
        help.stdout.contains("kube-proxy [OPTIONS]") && help.stdout.contains("--proxy-mode"),
        "{}",
        help.stdout
    );
    assert!(!help.stdout.contains("explain"), "{}", help.stdout);
}

#[test]
fn the_plugin_without_a_command_lists_them() {
    let help = named("kubectl-ferroxy", &[]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""), "{help:?}");
    assert!(help.stdout.contains("Usage: kubectl ferroxy"), "{}", help.stdout);
    assert!(help.stdout.contains("\n  status "), "{}", help.stdout);
    let wrong = named("kubectl-ferroxy", &["stat"]);
    assert_eq!((wrong.code, wrong.stderr.lines().count()), (1, 1), "{wrong:?}");
}

#[test]
fn each_name_has_its_version() {
    let version = |name: &str, argument: &str| {
        let done = named(name, &[argument]);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        done.stdout
    };
    assert_eq!(version("kube-proxy", "--version"), "Kubernetes v1.37.0\n");
    assert!(version("kube-proxy", "--version=raw").starts_with("version.Info{Major:\"1\", Minor:\"37\""));
    assert_eq!(version("ferroxy", "--version"), format!("ferroxy {}\n", env!("CARGO_PKG_VERSION")));
    assert!(version("ferroxy", "--version=raw").contains("kube-proxy v1.37"));
    assert_eq!(named("kube-proxy", &["--version=soon"]).code, 1);
}

#[test]
fn what_kubeadm_writes_is_taken_without_a_word_and_written_back() {
    let directory = tempfile::tempdir().unwrap();
    let (config, written) = (directory.path().join("config.conf"), directory.path().join("written"));
    fs::write(&config, format!("{HEAD}{KUBEADM}")).unwrap();
    let write = |from: &Path, to: &Path| {
        let arguments = [
            format!("--config={}", from.display()),
            "--hostname-override=Node-A".to_owned(),
            format!("--write-config-to={}", to.display()),
        ];
        let done = named("kube-proxy", &arguments.each_ref().map(String::as_str));
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""));
        fs::read_to_string(to).unwrap()
    };
    let text = write(&config, &written);
    for line in ["mode: nftables", "hostnameOverride: node-a", "oomScoreAdj: -999", "nodePortAddresses: null"]
    {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    assert_eq!(write(&written, &directory.path().join("again")), text);
    let flags = Flags { config: Some(config.display().to_string()), ..Flags::default() };
    assert_eq!(Config::load(&flags, MODES).unwrap().1, Vec::<String>::new());
}

#[test]
fn several_mistakes_are_several_lines() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    fs::write(&config, format!("{HEAD}mode: fast\noomScoreAdj: 5000\n")).unwrap();
    let done = named("ferroxy", &[&format!("--config={}", config.display())]);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""));
    let expected = format!(
        "ferroxy: mode: \"fast\" is not one of {}\nferroxy: oomScoreAdj: 5000 is not between -1000 and 1000\n",
        MODES.sentence("and")
    );
    assert_eq!(done.stderr, expected);
}

/// A configuration file that is watched, and the results of its reloads.
struct Followed {
    path: PathBuf,
    reloads: mpsc::Receiver<Reload>,
    _directory: tempfile::TempDir,
    _follower: reload::Follower,
}

impl Followed {
    fn new(lines: &str, arguments: &[&str]) -> Followed {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        fs::write(&path, format!("{HEAD}{lines}")).unwrap();
        let mut flags = Flags::parse(arguments.iter().map(OsString::from), MODES).unwrap();
        flags.config = Some(path.display().to_string());
        let (config, _) = Config::load(&flags, MODES).unwrap();
        let (sender, reloads) = mpsc::channel();
        let follower =
            reload::spawn(path.clone(), flags, config, move |reload| sender.send(reload).unwrap()).unwrap();
        Followed { path, reloads, _directory: directory, _follower: follower }
    }

    fn write(&self, lines: &str) -> Reload {
        fs::write(&self.path, format!("{HEAD}{lines}")).unwrap();
        self.reloads.recv_timeout(DEADLINE).unwrap()
    }
}

#[test]
fn a_file_that_changes_is_applied_refused_or_waits() {
    let followed = Followed::new("mode: nftables", &["--v=3"]);
    let Reload::Changed { new, live, needs_restart, warnings } = followed
        .write("mode: nftables\nnodePortAddresses: [localhost]\nlogging: {verbosity: 9}\nnonsense: 1")
    else {
        panic!()
    };
    assert_eq!((live, needs_restart), (vec!["nodePortAddresses".to_owned()], vec![]));
    assert_eq!((new.node_port_addresses.len(), new.logging.verbosity), (1, 3));
    assert!(warnings[0].contains("nonsense"), "{warnings:?}");

    let Reload::Refused(reasons) = followed.write("mode: nftables\nnodePortAddresses: [here]") else {
        panic!()
    };
    assert!(reasons[0].starts_with("nodePortAddresses[0]: "), "{reasons:?}");

    let Reload::Changed { new, live, needs_restart, .. } =
        followed.write("mode: iptables\nnodePortAddresses: [localhost]\noomScoreAdj: 7")
    else {
        panic!()
    };
    assert_eq!((live, needs_restart), (vec!["oomScoreAdj".to_owned()], vec!["mode".to_owned()]));
    assert_eq!((new.mode, new.oom_score_adj), (MODES.find("nftables"), 7));
}
