//! The kernel's packet counters that our rules count into, where the kernel has such: made, read and removed. Which rules
//! count is in `program.rs` and `render.rs`.

use ferroxy_netlink::error::Error;
use ferroxy_netlink::nfacct::{Connection, is_missing};
use rustix::io::Errno;

use crate::program::COUNTERS;

/// How many packets were counted since the counters were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packets {
    /// Dropped because connection tracking found them invalid.
    pub invalid_dropped: u64,
    /// To node ports on loopback addresses.
    pub localhost_accepted: u64,
}

/// False where the kernel has no counters.
pub fn make() -> Result<bool, Error> {
    let mut connection = Connection::open()?;
    unless_missing(COUNTERS.into_iter().try_for_each(|name| connection.ensure(name)))
}

/// Whether `make` would say so, without making any.
pub fn can_be_made() -> Result<bool, Error> {
    let mut connection = Connection::open()?;
    unless_missing(COUNTERS.into_iter().try_for_each(|name| connection.read(name).map(drop)))
}

/// What is not counted is nought.
pub fn read() -> Result<Packets, Error> {
    let mut connection = Connection::open()?;
    let mut packets = |name| match connection.read(name) {
        Ok(counter) => Ok(counter.map_or(0, |counter| counter.packets)),
        Err(error) if is_missing(&error) => Ok(0),
        Err(error) => Err(error),
    };
    let [invalid, localhost] = COUNTERS;
    Ok(Packets { invalid_dropped: packets(invalid)?, localhost_accepted: packets(localhost)? })
}

/// Those that somebody else's rules count into stay.
pub fn remove() -> Result<(), Error> {
    let mut connection = Connection::open()?;
    for name in COUNTERS {
        match connection.remove(name) {
            Err(error) if error.errno == Errno::BUSY || is_missing(&error) => {}
            result => result?,
        }
    }
    Ok(())
}

fn unless_missing(result: Result<(), Error>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
