//! The counters of an engine, for readers that are created before the engine runs; and how to stop the engine.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use ferroxy_dataplane::{CountsPackets, Ejects, Failure};
use ferroxy_proxy::{Counters, Engine};

use crate::metrics;

/// Reads the counters of the engine, once it runs. Readers are made before that.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    engine: Arc<Mutex<Weak<Engine>>>,
}

impl Meter {
    pub fn read_from(&self, engine: &Arc<Engine>) {
        *self.engine() = Arc::downgrade(engine);
    }

    fn engine(&self) -> MutexGuard<'_, Weak<Engine>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All zero while no engine runs.
    pub fn counters(&self) -> Counters {
        let engine = self.engine().upgrade();
        engine.map(|engine| engine.counters()).unwrap_or_default()
    }
}

impl Ejects for Meter {
    fn pardon(&self, ip: IpAddr, port: Option<u16>) {
        // Without an engine, nothing is ejected.
        let engine = self.engine().upgrade();
        engine.iter().for_each(|engine| engine.pardon(ip, port));
    }
}

impl CountsPackets for Meter {
    fn read(&mut self) -> Result<Vec<(&'static str, u64)>, Failure> {
        Ok(metrics::values(&self.counters()))
    }
}

/// Stops the engine ([`Engine::stop`]), and returns how many connections were cut. Waits while a reader uses the
/// engine.
pub fn stop(mut engine: Arc<Engine>, grace: Duration) -> usize {
    loop {
        match Arc::try_unwrap(engine) {
            Ok(engine) => return engine.stop(grace),
            Err(shared) => engine = shared,
        }
        thread::sleep(Duration::from_millis(10));
    }
}
