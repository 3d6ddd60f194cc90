//! The public interface of the source: open it, then watch it or read it once.

use std::fmt;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ferroxy_core::{Diagnostic, Event};
use ferroxy_platform::privileges;
use futures_util::future::{join_all, select};
use tokio::runtime;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tracing::warn;

use super::access::{Access, OpenError};
use super::credentials::keep;
use super::encoding::Accept;
use super::follow::follow;
use super::hub::Hub;
use super::link::Link;
use super::liveness::{Liveness, Pulse};
use super::observer::{Observer, learn_version};
use super::probe::probe;
use super::recorder::{Recorder, record};
use super::resource::Resource;
use super::{Denial, Options, Update};
use crate::occurrence::Occurrence;

/// An API server with its configuration, not contacted yet.
#[derive(Debug)]
pub struct KubeSource {
    options: Options,
    access: Access,
    observer: Observer,
    held_back: HeldBack,
}

/// Returns whether the receiver of the updates has enough of them for now: then no more are read.
#[derive(Default)]
pub(super) struct HeldBack(Option<Box<dyn Fn() -> bool + Send>>);

impl HeldBack {
    pub(super) fn is_full(&self) -> bool {
        self.0.as_ref().is_some_and(|is_full| is_full())
    }
}

impl fmt::Debug for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldBack")
    }
}

/// A thread that follows the API server. Dropping this ends it.
#[derive(Debug)]
pub struct KubeWatch {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    pulses: Vec<Arc<Pulse>>,
    recorder: Recorder,
}

/// Why the read is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    #[error("not everything was read from {server} within {} seconds{}", waited.as_secs_f32(), because(troubles))]
    Timeout { server: String, waited: Duration, troubles: Vec<Diagnostic> },
    #[error(
        "{server} does not accept the credentials of the kubeconfig or service account (401){}",
        said(message)
    )]
    Unauthorized { server: String, message: String },
    #[error("missing permission at {server}: list {resource} (403){}", said(message))]
    Forbidden { server: String, resource: String, message: String },
}

impl ReadError {
    fn denied(server: String, denial: Denial) -> ReadError {
        let Denial { code, resource, message } = denial;
        match code {
            401 => ReadError::Unauthorized { server, message },
            _ => ReadError::Forbidden { server, resource, message },
        }
    }
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

fn because(troubles: &[Diagnostic]) -> String {
    troubles.first().map(|it| format!(": {}: {}", it.field, it.reason)).unwrap_or_default()
}

impl KubeSource {
    /// Reads the configuration and the credentials. The server need not be reachable yet.
    pub fn open(options: Options) -> Result<KubeSource, OpenError> {
        let access = Access::read(&options)?;
        Ok(KubeSource { options, access, observer: Observer::default(), held_back: HeldBack::default() })
    }

    /// Reports every request to the observer.
    pub fn observed_by(self, observer: Observer) -> KubeSource {
        KubeSource { observer, ..self }
    }

    /// Reads no further while `is_full` returns true. It is called often.
    pub fn held_back_while(self, is_full: impl Fn() -> bool + Send + 'static) -> KubeSource {
        KubeSource { held_back: HeldBack(Some(Box::new(is_full))), ..self }
    }

    /// `https://192.0.2.1:6443`
    pub fn server(&self) -> String {
        self.access.server()
    }

    /// Lists and watches on a separate thread, and calls back from there.
    pub fn watch(self, on_update: impl FnMut(Update) + Send + 'static) -> io::Result<KubeWatch> {
        self.start(false, give_up_privileges, on_update)
    }

    /// Lists everything once. Also returns what is wrong with single objects.
    pub fn read_once(self, limit: Duration) -> Result<(Vec<Event>, Vec<Diagnostic>), ReadError> {
        let (deadline, server) = (Instant::now() + limit, self.server());
        let (sender, updates) = mpsc::channel();
        // Fails only if the receiver is gone.
        let watch = self.start(true, || {}, move |update| drop(sender.send(update)))?;
        let (mut events, mut troubles) = (Vec::new(), Vec::new());
        loop {
            match updates.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Update::Events(more)) => events.extend(more),
                Ok(Update::Troubles(now)) => troubles = now,
                Ok(Update::Listed) => break,
                Ok(Update::Denied(denial)) => return Err(ReadError::denied(server, denial)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(ReadError::Timeout { server, waited: limit, troubles });
                }
            }
        }
        drop(watch);
        // The diagnostics of the last list follow it.
        for update in updates.try_iter() {
            if let Update::Troubles(now) = update {
                troubles = now;
            }
        }
        Ok((events, troubles))
    }

    /// `wait_for_all`: also for optional resources. `prepare` runs first on the new thread.
    fn start(
        self,
        wait_for_all: bool,
        prepare: fn(),
        on_update: impl FnMut(Update) + Send + 'static,
    ) -> io::Result<KubeWatch> {
        let resources = Resource::all(&self.options.node_name, self.options.service_cidrs);
        let pulses: Vec<Arc<Pulse>> = resources.iter().map(|it| Pulse::new(it.kind)).collect();
        let (recorder, occurrences) = Recorder::new();
        let (stop, stopped) = oneshot::channel();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let work = Work { source: self, resources, pulses: pulses.clone(), occurrences, wait_for_all };
        let run = move || {
            prepare();
            runtime.block_on(async { drop(select(pin!(work.run(on_update)), stopped).await) });
            // Does not wait for DNS lookups and exec plugins.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("api-watch".to_owned()).spawn(run)?;
        Ok(KubeWatch { stop: Some(stop), thread: Some(thread), pulses, recorder })
    }
}

/// The thread that reads from the network programs nothing, and an exec plugin of the kubeconfig, which is a child of
/// it, must not get the privileges that the agent keeps for its own tools.
fn give_up_privileges() {
    if let Err(error) = privileges::give_up_in_this_thread() {
        warn!("cannot drop privileges in the thread of the API server's connection: {error}");
    }
}

impl KubeWatch {
    /// The state of the watches. Cheap.
    pub fn liveness(&self) -> Liveness {
        let now = Instant::now();
        Liveness { resources: self.pulses.iter().map(|it| it.at(now)).collect() }
    }

    /// Sends events for people over the same connections.
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }
}

impl Drop for KubeWatch {
    fn drop(&mut self) {
        // Both fail only if the thread has already ended.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Everything that runs on the thread.
struct Work {
    source: KubeSource,
    resources: Vec<Resource>,
    pulses: Vec<Arc<Pulse>>,
    occurrences: Receiver<Occurrence>,
    wait_for_all: bool,
}

impl Work {
    async fn run(self, on_update: impl FnMut(Update) + 'static) {
        let Work { source, resources, pulses, occurrences, wait_for_all } = self;
        let KubeSource { options, access, observer, held_back } = source;
        let hub = Rc::new(Hub::new(resources.iter().map(|it| it.kind), on_update, held_back));
        let link = Link::new(&options, pulses.clone(), observer.clone());
        let accept = Accept::new(&options);
        let followers = resources.into_iter().zip(pulses).map(|(resource, pulse)| {
            follow(resource, wait_for_all, accept.clone(), Rc::clone(&link), Rc::clone(&hub), pulse)
        });
        let followers = join_all(followers.collect::<Vec<_>>());
        let node_name = options.node_name.clone();
        let recording = record(occurrences, Rc::clone(&link), node_name);
        let supplying = keep(options, access, Rc::clone(&link), hub);
        let learning = learn_version(Rc::clone(&link), observer);
        let others = futures_util::future::join4(supplying, probe(link), recording, learning);
        futures_util::future::join(followers, others).await;
    }
}
