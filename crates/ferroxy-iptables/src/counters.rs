//! Creates, reads and removes the nfacct packet counters that our rules use, if the kernel has nfacct. `program.rs` and
//! `render.rs` decide which rules count.

use std::time::{Duration, Instant};

use ferroxy_dataplane::{CountsPackets, Failure};
use ferroxy_netfilter::failure;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nfacct::{Connection, is_missing};
use rustix::io::Errno;

use crate::program::COUNTERS;

/// How long to wait for the kernel to free the counters. If rules of another program use a counter, we wait the full time.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Reads the counters of the network namespace of the calling thread.
#[derive(Debug, Default)]
pub struct Counters;

impl CountsPackets for Counters {
    /// 0 for a counter that does not exist.
    fn read(&mut self) -> Result<Vec<(&'static str, u64)>, Failure> {
        read().map_err(failure::of)
    }
}

/// Creates the counters. False if the kernel has no nfacct.
pub fn create() -> Result<bool, Error> {
    let mut connection = Connection::open()?;
    unless_missing(COUNTERS.into_iter().try_for_each(|name| connection.ensure(name)))
}

/// Returns the same as `create`, without creating anything.
pub fn can_be_created() -> Result<bool, Error> {
    let mut connection = Connection::open()?;
    unless_missing(COUNTERS.into_iter().try_for_each(|name| connection.read(name).map(drop)))
}

/// Removes the counters, except for those that rules of others use. Returns the names of the removed ones.
pub fn remove() -> Result<Vec<&'static str>, Error> {
    let mut connection = Connection::open()?;
    let mut removed = Vec::new();
    let until = Instant::now() + LONGEST_WAIT;
    for name in COUNTERS {
        match remove_patiently(&mut connection, name, until) {
            Ok(true) => removed.push(name),
            Ok(false) => {}
            Err(error) if error.errno == Errno::BUSY || is_missing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

/// The kernel frees deleted rules of nf_tables, and the counters they refer to, some milliseconds after the commit; on a busy
/// machine that takes seconds.
fn remove_patiently(connection: &mut Connection, name: &str, until: Instant) -> Result<bool, Error> {
    loop {
        match remove_one(connection, name) {
            Err(error) if error.errno == Errno::BUSY && Instant::now() < until => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

fn remove_one(connection: &mut Connection, name: &str) -> Result<bool, Error> {
    let exists = connection.read(name)?.is_some();
    connection.remove(name)?;
    Ok(exists)
}

fn read() -> Result<Vec<(&'static str, u64)>, Error> {
    let mut connection = Connection::open()?;
    let mut packets = |name| match connection.read(name) {
        Ok(counter) => Ok((name, counter.map_or(0, |counter| counter.packets))),
        Err(error) if is_missing(&error) => Ok((name, 0)),
        Err(error) => Err(error),
    };
    COUNTERS.into_iter().map(&mut packets).collect()
}

fn unless_missing(result: Result<(), Error>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}
