//! Reads what the kernel has while the agent still waits for the API server: at a restart both take about as long.

use std::thread::{self, JoinHandle};

use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::Connection;

use super::observe::observe;
use crate::state::State;

#[derive(Debug)]
pub(super) struct EarlyLook {
    thread: JoinHandle<Result<Seen, Error>>,
}

#[derive(Debug)]
struct Seen {
    /// The kernel's count of transactions before.
    generation: u32,
    state: State,
}

impl EarlyLook {
    /// In the network namespace of the calling thread. `None` if there can be no thread: then the start looks itself.
    pub(super) fn begin() -> Option<EarlyLook> {
        let thread = thread::Builder::new().name("observer".into()).spawn(look).ok()?;
        Some(EarlyLook { thread })
    }

    /// `None` if it failed, or if anybody has committed anything since.
    pub(super) fn finish(self, connection: &mut Connection) -> Option<State> {
        let seen = self.thread.join().ok()?.ok()?;
        (connection.generation().ok()? == seen.generation).then_some(seen.state)
    }
}

fn look() -> Result<Seen, Error> {
    let mut connection = Connection::open()?;
    let generation = connection.generation()?;
    Ok(Seen { generation, state: observe(&mut connection)? })
}
