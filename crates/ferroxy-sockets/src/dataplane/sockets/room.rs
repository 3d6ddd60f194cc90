//! Room in the maps: how much is reserved, and what happens when it is not enough.

use ferroxy_core::ServiceName;
use ferroxy_dataplane::Acknowledged;
use tracing::{info, warn};

use super::Sockets;
use crate::capacity::capacity;
use crate::dataplane::generation::{Capacity, GenerationError};
use crate::diff::{Unknown, difference};
use crate::plan::Op;
use crate::state::State;

impl Sockets {
    pub(super) fn capacity(&self, state: &State) -> Result<Capacity, GenerationError> {
        let most = self.options.most_elements;
        let room = |needed| capacity(needed, most).ok_or(GenerationError::TooMany(most));
        Ok(Capacity {
            frontends: room(state.frontends.len())?,
            endpoints: room(state.endpoints.len())?,
            members: room(state.members.len())?,
        })
    }

    /// Handles a write that the kernel refused: makes more room or, if that is impossible, leaves the Services at fault to packets.
    pub(super) fn refused(
        &mut self,
        in_force: &Acknowledged,
        names: &[ServiceName],
        seen: &State,
        error: GenerationError,
    ) {
        let is_full = matches!(&error, GenerationError::Kernel(error) if error.is_full());
        if is_full && self.grow(in_force).is_ok() {
            return;
        }
        for name in names {
            let desired = self.ledger.fragment(in_force, [name]);
            let ops: Vec<Op> =
                difference(&State::default(), &desired, Unknown::Remove).ops().copied().collect();
            if let Err(error) = self.apply(&ops) {
                warn!("connections to {name} are translated by packet rules, not at sockets: {error}");
                let removal = self.ledger.leave_out(in_force, name, error.to_string());
                let removal: Vec<Op> = removal.ops().copied().collect();
                if let Err(error) = self.apply(&removal) {
                    self.stop(&error.to_string());
                    return;
                }
            }
        }
        // Remove the elements that the Services had before and no longer have.
        let now = self.ledger.fragment(in_force, names);
        let leftover: Vec<Op> = difference(seen, &now, Unknown::Remove).ops().copied().collect();
        if let Err(error) = self.apply(&leftover) {
            self.stop(&error.to_string());
        }
    }

    /// Replaces this generation by a larger one.
    fn grow(&mut self, in_force: &Acknowledged) -> Result<(), String> {
        let Some(running) = &self.running else { return Ok(()) };
        let room = self.capacity(&self.ledger.state(in_force)).map_err(|error| error.to_string())?;
        let now = running.generation.capacity();
        let grows =
            [(room.frontends, now.frontends), (room.endpoints, now.endpoints), (room.members, now.members)];
        if grows.iter().all(|(room, now)| room <= now) {
            return Err("it is as large as it may be".into());
        }
        let (name, written) = (running.generation.name().next(), running.generation.written().clone());
        let larger = self.create(in_force, name, Some(written)).map_err(|error| error.to_string())?;
        if let Some(running) = &mut self.running {
            running.generation = larger;
        }
        self.attach()?;
        let Capacity { frontends, endpoints, .. } = room;
        info!("the BPF maps have room for {frontends} frontends and {endpoints} endpoints now");
        Ok(())
    }
}
