//! The conformance network with an API server on it, and an agent that uses that server. Causes no faults by itself.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ferroxy_lab::api::{Access, Kind, Login, Options, Server, Verb};
use ferroxy_lab::{Answer, Namespace, Network, Protocol};
use serde_json::Value;
use tempfile::TempDir;

use super::cluster::{configuration, node, service_cidr};
use super::{Agent, DEADLINE, Service, ask_from, pod_from, pod_of, wait_until, web_service};

/// The kind of API server, and its place in the network.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// In which namespace of the network.
    pub host: &'static str,
    pub address: &'static str,
    pub tls: bool,
    pub access: Access,
    pub login: Login,
}

impl Default for Setting {
    /// A server on the node's loopback, without access control.
    fn default() -> Setting {
        let (tls, access, login) = (false, Access::Open, Login::Nothing);
        Setting { host: "ka", address: "127.0.0.1:6443", tls, access, login }
    }
}

/// The server has nodes ka and kb, the Service ranges, the Service `web`, which does not change, and `other`, whose one
/// endpoint moves from pod to pod.
pub struct Stage {
    pub network: Network,
    pub server: Server,
    folder: TempDir,
    login: Login,
    moves: Cell<usize>,
}

/// The address of `other`.
const OTHER: &str = "10.96.0.81:80";
/// The pods that its endpoint moves to, one after the other.
const HOMES: [&str; 4] = ["a2", "b1", "a1", "b2"];

impl Stage {
    /// None if this machine does not support it (prints a message; fails in CI).
    pub fn new(setting: Setting) -> Option<Stage> {
        let stage = Stage::empty(setting)?;
        for object in [service_cidr(), node("ka", 1), node("kb", 2)] {
            stage.put(&object);
        }
        stage.put_service(&web_service());
        stage.put_service(&stage.other());
        Some(stage)
    }

    /// A stage whose server has no objects.
    pub fn empty(setting: Setting) -> Option<Stage> {
        let network = super::network()?;
        let address: SocketAddr = setting.address.parse().unwrap();
        let options = Options { address, tls: setting.tls, access: setting.access, ..Options::default() };
        let server = network.namespace(setting.host).unwrap().run(|| Server::start(options)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let stage =
            Stage { network, server: server.unwrap(), folder, login: setting.login, moves: Cell::new(0) };
        stage.write_kubeconfig();
        stage.write_config(&configuration());
        Some(stage)
    }

    pub fn ka(&self) -> &Namespace {
        self.network.namespace("ka").unwrap()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn config(&self) -> PathBuf {
        self.folder().join("config.yaml")
    }

    /// Writes a kubeconfig with the current credentials.
    pub fn write_kubeconfig(&self) -> PathBuf {
        self.server.kubeconfig(self.folder(), self.login).unwrap()
    }

    /// A configuration, extended by how to reach the server.
    pub fn with_client(&self, config: &str) -> String {
        let kubeconfig = self.folder().join("kubeconfig");
        format!("{config}\nclientConnection:\n  kubeconfig: {}\n", kubeconfig.display())
    }

    /// Writes the configuration file atomically: to a temporary file, which is then renamed.
    pub fn write_config(&self, config: &str) {
        let beside = self.folder().join("config.new");
        fs::write(&beside, self.with_client(config)).unwrap();
        fs::rename(beside, self.config()).unwrap();
    }

    /// For `run` and for the read-only commands.
    pub fn arguments(&self) -> [OsString; 4] {
        ["--config".into(), self.config().into(), "--hostname-override".into(), "ka".into()]
    }

    /// Words and these arguments: for `diff`, `explain` and so on.
    pub fn command(&self, words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).chain(self.arguments()).collect()
    }

    /// Starts the agent and waits until it is in sync.
    pub fn start(&self) -> Agent {
        Agent::start_with(self.ka(), self.arguments())
    }

    /// Starts the agent and does not wait.
    pub fn spawn(&self) -> Agent {
        Agent::spawn(self.ka(), self.arguments())
    }
}

/// The objects of the cluster.
impl Stage {
    pub fn put(&self, object: &Value) {
        self.server.put(object).unwrap();
    }

    pub fn put_service(&self, service: &Service) {
        service.objects().iter().for_each(|object| self.put(object));
    }

    pub fn remove_service(&self, service: &Service) {
        for object in service.objects().iter().rev() {
            let kind = Kind::from_name(object["kind"].as_str().unwrap()).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap();
            self.server.delete(kind, "default", name).unwrap();
        }
    }

    fn other(&self) -> Service {
        Service::new("other", &["10.96.0.81"]).port(Protocol::Tcp, 80, 80).endpoints(&[self.home()])
    }

    fn home(&self) -> &'static str {
        HOMES[self.moves.get() % HOMES.len()]
    }

    /// Moves the one endpoint of `other`.
    pub fn move_other(&self) {
        self.moves.set(self.moves.get() + 1);
        self.put(&self.other().objects()[1]);
    }

    /// Checks that packets to `other` still arrive where its endpoint was before the last move.
    pub fn other_was_left_alone(&self) {
        let before = HOMES[(self.moves.get() + HOMES.len() - 1) % HOMES.len()];
        assert_eq!(pod_from(&self.network, "a1", Protocol::Tcp, OTHER), before);
    }

    /// Whether packets to `other` arrive where its endpoint is now. Panics if a packet is lost.
    pub fn other_has_arrived(&self) -> bool {
        match ask_from(&self.network, "a1", Protocol::Tcp, OTHER) {
            Answer::Reply(line) => pod_of(&line) == self.home(),
            lost => panic!("a request to {OTHER}: {lost}"),
        }
    }

    pub fn wait_for_other(&self) {
        wait_until(&format!("{OTHER} leads to {}", self.home()), DEADLINE, || self.other_has_arrived());
    }
}

/// The requests that the server has received.
impl Stage {
    pub fn asked(&self, kind: Kind, verb: Verb) -> usize {
        self.server.count(kind, verb)
    }

    /// Lists of Services and of EndpointSlices, of either sort.
    pub fn lists(&self) -> usize {
        let kinds = [Kind::Service, Kind::EndpointSlice];
        let all = kinds.map(|kind| self.asked(kind, Verb::List) + self.asked(kind, Verb::StreamList));
        all.iter().sum()
    }
}
