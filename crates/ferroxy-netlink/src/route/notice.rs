//! Notifications about addresses, decoded. If the kernel drops notifications, [`Notice::Lost`] reports it. Reads no socket.

use super::Address;
use super::wire::{RTM_DELADDR, RTM_NEWADDR};
use crate::codec::{Malformed, Messages};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The changes since the last notice, in order.
    Changed(Vec<Moved>),
    /// The kernel dropped notifications because there were too many. List the addresses again.
    Lost,
}

/// An address that was added or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub address: Address,
    pub came: bool,
}

pub(super) fn read(bytes: &[u8], mut moved: Vec<Moved>) -> Result<Vec<Moved>, Malformed> {
    for message in Messages::new(bytes) {
        let message = message?;
        let came = match message.kind {
            RTM_NEWADDR => true,
            RTM_DELADDR => false,
            _ => continue,
        };
        moved.extend(Address::decode(&message)?.map(|address| Moved { address, came }));
    }
    Ok(moved)
}
