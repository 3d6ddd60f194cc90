//! The handle of the server for tests: start it, change objects, inject faults, inspect requests. Its thread is in `listen`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::access::{Access, Doors};
use super::fault::{Fault, Faults, Injection, On};
use super::host::read_documents;
use super::kind::Kind;
use super::kubeconfig::{self, Contents, Login};
use super::listen::{self, Command};
use super::lock;
use super::object::{Key, Version};
use super::query::{Request, Verb};
use super::rules;
use super::selector::Selector;
use super::store::{Selection, Store};
use super::watch::{Nudge, Watcher};
use crate::error::{LabError, Result};
use crate::patience::PATIENCE;

#[derive(Debug, Clone)]
pub struct Options {
    /// Port 0 selects a free port.
    pub address: SocketAddr,
    pub tls: bool,
    pub access: Access,
    /// How many changes of each kind are remembered for watches.
    pub history: usize,
    /// The interval of bookmarks. API servers use a minute, which is too long for tests.
    pub bookmark_interval: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            tls: false,
            access: Access::Open,
            history: 10_000,
            bookmark_interval: Duration::from_secs(60),
        }
    }
}

/// Serves on a separate thread until dropped.
pub struct Server {
    shared: Arc<Shared>,
    /// None only while being dropped.
    commands: Option<mpsc::UnboundedSender<Command>>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    /// The kernel's number of the thread.
    thread_id: i32,
}

/// Shared by the handle and the thread.
pub(super) struct Shared {
    pub address: SocketAddr,
    pub bookmark_interval: Duration,
    pub store: Mutex<Store>,
    pub access: Mutex<Doors>,
    pub faults: Faults,
    pub watchers: Mutex<Vec<Watcher>>,
    pub next_watch: AtomicUsize,
    pub requests: Mutex<Vec<Request>>,
    pub connections: Connections,
    /// A new value cuts every connection.
    pub cut: watch::Sender<()>,
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    pub accepted: AtomicUsize,
    pub open: AtomicUsize,
}

impl Server {
    /// Listens when this returns, in the network namespace of the calling thread: `namespace.run(
    ///
    /// Server::start(…))` starts it in another.
    pub fn start(options: Options) -> Result<Server> {
        if options.access == Access::ClientCertificate && !options.tls {
            return Err(LabError::Api("client certificates need TLS".to_owned()));
        }
        let busy = |e| LabError::system(format!("listen on {}", options.address), e);
        let listener = listen::bind(options.address).map_err(busy)?;
        let address = listener.local_addr().map_err(busy)?;
        let shared = Arc::new(Shared {
            address,
            bookmark_interval: options.bookmark_interval,
            store: Mutex::new(Store::new(options.history)),
            access: Mutex::new(Doors::new(options.access, options.tls, address.ip())?),
            faults: Faults::default(),
            watchers: Mutex::default(),
            next_watch: AtomicUsize::default(),
            requests: Mutex::default(),
            connections: Connections::default(),
            cut: watch::Sender::new(()),
        });
        let (commands, to_do) = mpsc::unbounded_channel();
        let (started, thread_id) = std::sync::mpsc::channel();
        let its = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("api-server".to_owned())
            .spawn(move || {
                started
                    .send(rustix::thread::gettid().as_raw_nonzero().get())
                    .map_err(std::io::Error::other)?;
                listen::run(&its, listener, to_do)
            })
            .map_err(|e| LabError::system("start a thread", e))?;
        let thread_id =
            thread_id.recv().map_err(|_| LabError::Api("the API server's thread has ended".to_owned()))?;
        Ok(Server { shared, commands: Some(commands), thread: Some(thread), thread_id })
    }

    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// CPU time that the server's thread has used.
    pub fn cpu(&self) -> Result<Duration> {
        let path = format!("/proc/self/task/{}/schedstat", self.thread_id);
        let text = std::fs::read_to_string(&path).map_err(|e| LabError::system(format!("read {path}"), e))?;
        // Nanoseconds on a processor, nanoseconds waiting for one, turns.
        let spent = text.split_whitespace().next().and_then(|figure| figure.parse().ok());
        spent.map(Duration::from_nanos).ok_or_else(|| LabError::Api(format!("{path}: no figures: {text}")))
    }

    /// `https://127.0.0.1:6443`.
    pub fn url(&self) -> String {
        let scheme = if lock(&self.shared.access).tls().is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.shared.address)
    }
}

/// Objects of the cluster.
impl Server {
    /// Creates or replaces an object. Watches have the change before this returns. The error is the answer of a real
    /// API server to an object that it rejects.
    pub fn put(&self, object: &Value) -> Result<Version> {
        check(object)?;
        self.put_raw(object.to_string().as_bytes())
    }

    /// As [`Server::put`], from JSON text whose fields are not checked: they may be invalid or huge.
    pub fn put_raw(&self, json: &[u8]) -> Result<Version> {
        let (kind, version) = {
            let mut store = lock(&self.shared.store);
            (store.put(json)?.kind, store.version())
        };
        self.nudge(kind, &Nudge::Changed);
        Ok(version)
    }

    /// Puts many objects, with one notification of the watches.
    pub fn put_all(&self, objects: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Version> {
        let version = {
            let mut store = lock(&self.shared.store);
            for json in objects {
                store.put(json.as_ref())?;
            }
            store.version()
        };
        Kind::ALL.into_iter().for_each(|kind| {
            self.nudge(kind, &Nudge::Changed);
        });
        Ok(version)
    }

    /// The documents of a YAML stream, such as `objects.yaml` of a conformance case.
    pub fn load(&self, yaml: &str) -> Result<Version> {
        let objects = read_documents(yaml)?;
        objects.iter().try_for_each(check)?;
        self.put_all(objects.iter().map(Value::to_string))
    }

    /// An empty namespace for kinds that have none.
    pub fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<Version> {
        let deleted = lock(&self.shared.store).delete(kind, &Key::new(namespace, name));
        let version = deleted
            .ok_or_else(|| LabError::Api(format!("there is no {kind} {namespace}/{name} to delete")))?;
        self.nudge(kind, &Nudge::Changed);
        Ok(version)
    }

    /// Forgets all previous changes: older versions have expired for watches and lists.
    pub fn compact(&self) {
        lock(&self.shared.store).compact();
    }

    /// The version of the last change.
    pub fn version(&self) -> Version {
        lock(&self.shared.store).version()
    }

    /// The Events that clients created, sorted by name.
    pub fn events(&self) -> Result<Vec<Value>> {
        let everything = Selection { kind: Kind::Event, namespace: None, selector: Selector::default() };
        let events = lock(&self.shared.store).all(&everything);
        let parse = |text| serde_json::from_slice(text).map_err(|e| LabError::Api(format!("an Event: {e}")));
        events.iter().map(|event| parse(event.text())).collect()
    }

    fn nudge(&self, kind: Kind, nudge: &Nudge) -> usize {
        self.shared.nudge(kind, nudge)
    }
}

impl Shared {
    /// Returns the number of watches that it reached.
    pub fn nudge(&self, kind: Kind, nudge: &Nudge) -> usize {
        let watchers = lock(&self.watchers);
        let reached = |watcher: &&Watcher| watcher.kind == kind && watcher.nudge.send(nudge.clone()).is_ok();
        watchers.iter().filter(reached).count()
    }
}

fn check(object: &Value) -> Result<()> {
    let Some(kind) = object["kind"].as_str().and_then(Kind::from_name) else { return Ok(()) };
    rules::check(kind, object)
        .map_err(|status| LabError::Api(format!("{} {}", status.code, status.message())))
}

/// Faults.
impl Server {
    /// Affects all requests. In force when this returns.
    pub fn fault(&self, fault: Fault) -> Result<()> {
        self.fault_on(On::default(), fault)
    }

    /// Affects requests for a kind with a verb, a number of times: `fault_on((Kind::Service, Verb::List), …)`.
    pub fn fault_on(&self, on: impl Into<On>, fault: Fault) -> Result<()> {
        let refuse = fault == Fault::Refuse;
        self.shared.faults.add(on.into(), fault);
        if refuse { self.listen(false) } else { Ok(()) }
    }

    /// Ends all faults. Connections that are already affected do not recover.
    pub fn clear_faults(&self) -> Result<()> {
        self.shared.faults.clear();
        self.listen(true)
    }

    /// Injects a fault into every open watch of a kind, once; returns the number of watches.
    pub fn inject(&self, kind: Kind, injection: Injection) -> usize {
        self.nudge(kind, &Nudge::Inject(injection))
    }

    /// Cuts all connections, even in the middle of an answer.
    pub fn cut(&self) {
        self.shared.cut.send_replace(());
    }

    fn listen(&self, open: bool) -> Result<()> {
        let (done, result) = std::sync::mpsc::channel();
        let gone = || LabError::Api("the API server's thread has ended".to_owned());
        let commands = self.commands.as_ref().ok_or_else(gone)?;
        commands.send(Command::Listen { open, done }).map_err(|_| gone())?;
        let action = || format!("listen again on {}", self.shared.address);
        result.recv().map_err(|_| gone())?.map_err(|e| LabError::system(action(), e))
    }
}

/// Credentials.
impl Server {
    /// Writes a kubeconfig with the current credentials, and the files that it names, into a folder. Calling it again after a
    /// renewal rotates them.
    pub fn kubeconfig(&self, folder: &Path, login: Login) -> Result<PathBuf> {
        self.with_contents(|contents| kubeconfig::write(folder, login, contents))
    }

    /// Writes the service account files of a pod.
    pub fn service_account(&self, folder: &Path) -> Result<()> {
        self.with_contents(|contents| kubeconfig::write_service_account(folder, contents))
    }

    /// A new token and a new client certificate; the old ones stay valid until they are revoked.
    pub fn renew_credentials(&self) -> Result<()> {
        Ok(lock(&self.shared.access).renew_credentials()?)
    }

    /// Applies from the next request on, also on open connections.
    pub fn revoke_old_credentials(&self) {
        lock(&self.shared.access).revoke_old_credentials();
    }

    /// Applies to new connections.
    pub fn renew_server_certificate(&self) -> Result<()> {
        Ok(lock(&self.shared.access).renew_server_certificate()?)
    }

    /// Also creates a new CA. Clients need a new kubeconfig.
    pub fn renew_authority(&self) -> Result<()> {
        Ok(lock(&self.shared.access).renew_authority()?)
    }

    /// The valid token.
    pub fn token(&self) -> String {
        lock(&self.shared.access).token().to_owned()
    }

    fn with_contents<T>(&self, write: impl FnOnce(&Contents<'_>) -> T) -> T {
        let url = self.url();
        let access = lock(&self.shared.access);
        write(&Contents {
            url: &url,
            authority: access.tls().is_some().then(|| access.authority_certificate()),
            token: access.token(),
            certificate: &access.client().certificate,
            key: &access.client().key,
        })
    }
}

/// Requests and connections.
impl Server {
    /// Requests for a kind with a verb; each page of a list is one.
    pub fn count(&self, kind: Kind, verb: Verb) -> usize {
        let requests = lock(&self.shared.requests);
        requests.iter().filter(|request| request.kind == Some(kind) && request.verb == verb).count()
    }

    /// Every request since the start, or since `forget_requests`.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    pub fn forget_requests(&self) {
        lock(&self.shared.requests).clear();
    }

    /// How many connections have been accepted since the start.
    pub fn connections_accepted(&self) -> usize {
        self.shared.connections.accepted.load(Ordering::Relaxed)
    }

    pub fn connections_open(&self) -> usize {
        self.shared.connections.open.load(Ordering::Relaxed)
    }

    /// Watches of a kind that are open now.
    pub fn watches(&self, kind: Kind) -> usize {
        lock(&self.shared.watchers).iter().filter(|watcher| watcher.kind == kind).count()
    }

    /// Waits until this many watches of a kind are open.
    pub fn wait_for_watches(&self, kind: Kind, count: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.watches(kind) != count {
            if Instant::now() > deadline {
                let watches = self.watches(kind);
                return Err(LabError::WaitedInVain(format!(
                    "{count} watches of {kind}: there are {watches}"
                )));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.commands.take());
        let Some(thread) = self.thread.take() else { return };
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("the API server's thread had ended: {error}"),
            Err(_) => eprintln!("the API server's thread has panicked"),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.shared.address).finish_non_exhaustive()
    }
}
