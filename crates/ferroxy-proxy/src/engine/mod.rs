//! The engine: threads that serve, and the calls that change what they serve.

mod control;
#[cfg(target_os = "linux")]
mod hand_over;
#[cfg(target_os = "linux")]
mod kept;
mod listeners;
mod open;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::config::{Change, Key, Settings};
use crate::counters::Counters;
use crate::error::ProxyError;
use crate::shared::Shared;
use crate::worker::Worker;
use control::Control;
use listeners::Threads;

/// More threads serve more traffic, but every busy frontend has a socket for each thread.
const MOST_THREADS: usize = 8;

/// A running engine. All calls may block for a short time (threads answer within microseconds unless the machine is
/// overloaded), and none of them makes a connection wait. Dropping it cuts all connections; see [`Engine::stop`].
#[derive(Debug)]
pub struct Engine {
    control: Arc<Mutex<Control>>,
    shared: Arc<Shared>,
    #[cfg(target_os = "linux")]
    neighbours: Mutex<hand_over::Neighbours>,
}

/// The result of a [`Change`]. Everything that is not listed as a failure is in force.
#[derive(Debug, Default)]
pub struct Applied {
    /// The addresses of all sockets that this change opened, with the ports that the kernel chose.
    pub bound: Vec<(Key, SocketAddr)>,
    pub failures: Vec<Failure>,
}

/// A frontend or redirect listener that could not be opened. Everything else of the change is in force; an object that
/// had the same key before is closed. Applying the change again retries it.
#[derive(Debug)]
pub struct Failure {
    pub key: Key,
    pub error: ProxyError,
}

impl Engine {
    /// Starts the threads. Nothing is served yet.
    pub fn start(settings: Settings) -> Result<Engine, ProxyError> {
        let cores = std::thread::available_parallelism().map_or(1, |it| it.get());
        let threads = settings.threads.unwrap_or(cores.min(MOST_THREADS)).max(1);
        let workers: io::Result<Vec<Worker>> = (0..threads).map(Worker::start).collect();
        let workers = workers.map_err(|error| ProxyError::new("start", "a thread", error))?;
        let shared = Arc::new(Shared::new(settings, threads));
        let control = Control::new(Threads::new(workers, shared.clone()));
        Ok(Engine {
            control: Arc::new(Mutex::new(control)),
            shared,
            #[cfg(target_os = "linux")]
            neighbours: Mutex::default(),
        })
    }

    /// Puts a change in force. When it returns, new connections follow it.
    pub fn apply(&self, change: Change) -> Applied {
        lock(&self.control).apply(change)
    }

    /// A successful probe from elsewhere ends the ejection of this endpoint in all pools: of the one at this port, or, without
    /// a port, of all ports of this address. Never waits for a change.
    pub fn pardon(&self, ip: IpAddr, port: Option<u16>) {
        self.shared.ejected.pardon(ip, port);
    }

    pub fn counters(&self) -> Counters {
        let pools = lock(&self.control).counters();
        Counters { engine: self.shared.counters(), pools }
    }

    /// A successor accepts connections now; this process may end once its own connections have ended.
    pub fn is_superseded(&self) -> bool {
        self.shared.is_superseded()
    }

    /// Stops accepting, lets connections finish for at most `grace`, and ends the threads. Returns how many
    /// connections were cut.
    pub fn stop(self, grace: Duration) -> usize {
        lock(&self.control).close_all();
        let begun = Instant::now();
        while self.shared.open_connections() > 0 && begun.elapsed() < grace {
            sleep(Duration::from_millis(10));
        }
        self.shared.open_connections()
    }
}

/// Hand-over of listening sockets between processes.
impl Engine {
    /// Fetches the listening sockets of a predecessor that called [`Engine::hand_over`] with this path, and returns how
    /// many there are. Call it before the first change: a frontend or redirect with the address of a fetched socket takes
    /// it instead of opening a new one, so that no waiting connection is lost. The predecessor keeps accepting until
    /// [`Engine::adopted`]. No predecessor is not an error: 0 sockets. Linux only; elsewhere 0.
    pub fn adopt(&self, path: &Path) -> Result<usize, ProxyError> {
        #[cfg(target_os = "linux")]
        {
            let mut neighbours = lock(&self.neighbours);
            neighbours
                .adopt(path, &self.control)
                .map_err(|error| ProxyError::new("adopt from", path.display(), error))
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = path;
            Ok(0)
        }
    }

    /// Takes the listening sockets that the service manager has kept since an earlier run (systemd's descriptor store),
    /// as [`Engine::adopt`] does, unless a predecessor handed some over. From now on, the service manager keeps sockets
    /// that are opened and drops sockets that are closed, except when the engine itself ends. Linux only; elsewhere 0.
    pub fn adopt_kept(&self) -> Result<usize, ProxyError> {
        #[cfg(target_os = "linux")]
        let result = kept::adopt(&mut lock(&self.control));
        #[cfg(not(target_os = "linux"))]
        let result: io::Result<usize> = Ok(0);
        result.map_err(|error| ProxyError::new("adopt from", "the service manager's store", error))
    }

    /// How often a request to the service manager to keep or to drop a socket failed.
    pub fn kept_failures(&self) -> u64 {
        #[cfg(target_os = "linux")]
        return lock(&self.control).kept.failures;
        #[cfg(not(target_os = "linux"))]
        return 0;
    }

    /// Call it when all frontends have been applied. It closes fetched sockets that no frontend took, and notifies the
    /// predecessor to stop accepting. The predecessor lets its connections finish.
    pub fn adopted(&self) {
        #[cfg(target_os = "linux")]
        lock(&self.neighbours).adopted(&self.control);
    }

    /// Offers the listening sockets to a successor at this path (a unix socket, for this user only) until the engine
    /// stops. Once a successor has taken over, this engine accepts nothing more ([`Engine::is_superseded`]). Linux only;
    /// elsewhere an error of kind [`std::io::ErrorKind::Unsupported`].
    pub fn hand_over(&self, path: &Path) -> Result<(), ProxyError> {
        #[cfg(target_os = "linux")]
        let result = lock(&self.neighbours).offer(path, self.control.clone(), self.shared.clone());
        #[cfg(not(target_os = "linux"))]
        let result = Err(io::ErrorKind::Unsupported.into());
        result.map_err(|error| ProxyError::new("hand over at", path.display(), error))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        lock(&self.neighbours).end();
        let mut control = lock(&self.control);
        control.close_all();
        std::mem::take(&mut control.threads.workers).into_iter().for_each(Worker::stop);
    }
}

/// Ignores poisoning: if a thread panicked while it held the lock, serving on matters more than its unfinished change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
