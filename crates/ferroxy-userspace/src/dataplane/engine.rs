//! The proxy's engine in this process: changes of it, and taking over the sockets of a predecessor.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferroxy_dataplane::Failure;
use ferroxy_pools::Meter;
use ferroxy_proxy::{Engine, ProxyError};
use tracing::{info, warn};

use crate::plan::{Op, change};
use crate::settings::{Rules, Settings};

/// Where the listening sockets are handed over, in a directory that only this user can read.
const DIRECTORY: &str = "/run/ferroxy";

#[derive(Debug)]
pub(super) struct Proxy {
    engine: Arc<Engine>,
    /// The path of the hand-over, until the sockets of a predecessor have been taken over.
    hand_over: Option<PathBuf>,
}

impl Proxy {
    pub(super) fn start(settings: &Settings, meter: &Meter) -> Result<Proxy, Failure> {
        let privileged = settings.rules != Rules::None;
        let wanted = ferroxy_proxy::Settings {
            mark: privileged.then_some(settings.mark),
            ..ferroxy_proxy::Settings::default()
        };
        let engine = Arc::new(Engine::start(wanted).map_err(Failure::other)?);
        meter.read_from(&engine);
        let hand_over = path();
        if let Some(path) = &hand_over {
            match engine.adopt(path) {
                Ok(0) => {}
                Ok(count) => info!("took over {count} listening sockets"),
                Err(error) => warn!("cannot take over the listening sockets of another process: {error}"),
            }
        }
        match engine.adopt_kept() {
            Ok(0) => {}
            Ok(count) => info!("systemd kept {count} listening sockets"),
            Err(error) => warn!("cannot use systemd's descriptor store: {error}"),
        }
        Ok(Proxy { engine, hand_over })
    }

    /// Carries out the operations of the engine. Those that are not among the failures are in force.
    pub(super) fn apply(&self, ops: &[Op]) -> Vec<ferroxy_proxy::Failure> {
        let change = change(ops);
        if change.is_empty() { Vec::new() } else { self.engine.apply(change).failures }
    }

    /// All frontends are in force: a predecessor may end, and a successor may come.
    pub(super) fn taken_over(&mut self) {
        self.engine.adopted();
        if self.engine.kept_failures() > 0 {
            warn!("systemd does not keep all listening sockets: connections during a restart may be refused");
        }
        let Some(path) = self.hand_over.take() else { return };
        if let Err(error) = prepare(&path).and_then(|()| self.engine.hand_over(&path).map_err(Failure::other))
        {
            warn!("listening sockets cannot be handed over to a successor: {error}");
        }
    }

    pub(super) fn is_superseded(&self) -> bool {
        self.engine.is_superseded()
    }

    pub(super) fn stop(self, grace: Duration) -> usize {
        ferroxy_pools::stop(self.engine, grace)
    }
}

/// Another program has the address and port.
pub(super) fn is_in_use(error: &ProxyError) -> bool {
    error.source.kind() == ErrorKind::AddrInUse
}

/// Sockets belong to a network namespace: each has a path of its own.
fn path() -> Option<PathBuf> {
    let namespace = fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
    Some(Path::new(DIRECTORY).join(format!("userspace-{namespace}.sock")))
}

fn prepare(path: &Path) -> Result<(), Failure> {
    let Some(directory) = path.parent() else { return Ok(()) };
    fs::create_dir_all(directory)
        .map_err(|error| Failure::other(format!("cannot create {}: {error}", directory.display())))
}
