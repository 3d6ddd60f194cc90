//! One connection of our own through a frontend that only we have: proof that the programs really run, for this process at
//! least. Everything stays on loopback.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::generation::Generation;
use crate::entry::{Clients, FrontendKey, FrontendValue, PoolId, SlotKey, SlotValue};
use crate::plan::Op;

/// Every address of 127.0.0.0/8 is the host's own, and nothing listens here: untranslated connections are refused at once.
const FRONTEND: Ipv4Addr = Ipv4Addr::new(127, 96, 169, 254);
const PORT: u16 = 9;
/// The name of a Service hashes to it with a probability of one in 2^64.
const POOL: PoolId = PoolId(u64::MAX);

/// Checks that the host's connections reach the endpoint in the maps.
pub fn run(generation: &Generation) -> Result<(), String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    let endpoint = listener.local_addr().map_err(|error| error.to_string())?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let (slot, frontend) = (SlotKey::new(POOL, 0), FrontendKey::new(FRONTEND.into(), PORT));
    // The two forms that a frontend can have.
    let values = [
        FrontendValue::listed(&frontend, Clients::HOST, &[endpoint]),
        FrontendValue::pooled(&frontend, Clients::HOST, 1, POOL),
    ];
    let result = values.into_iter().try_for_each(|value| {
        let writes = [Op::PutSlot(slot, SlotValue::new(POOL, endpoint)), Op::PutFrontend(frontend, value)];
        writes.iter().try_for_each(|op| generation.apply(op)).map_err(|error| error.to_string())?;
        connect_both(&listener)
    });
    // An element that cannot be removed now is drift, which the next verification removes.
    let _ = generation.apply(&Op::RemoveFrontend(frontend));
    let _ = generation.apply(&Op::RemoveSlot(slot));
    result
}

/// Connects through both programs: an IPv6 socket connects to the mapped address.
fn connect_both(listener: &TcpListener) -> Result<(), String> {
    let addresses = [IpAddr::V4(FRONTEND), IpAddr::V6(FRONTEND.to_ipv6_mapped())];
    for address in addresses {
        let connected = TcpStream::connect_timeout(&SocketAddr::new(address, PORT), PATIENCE);
        match connected {
            // Without IPv6 there are no such sockets to translate.
            Err(error) if address.is_ipv6() && error.raw_os_error() == Some(AFNOSUPPORT) => {}
            Err(error) => return Err(format!("a connection to {address} was not translated: {error}")),
            // Another program may listen on all addresses.
            Ok(stream) => {
                let own = stream.local_addr().map_err(|error| error.to_string())?;
                if !arrives(listener, own.port()) {
                    return Err(format!("a connection to {address} was not translated"));
                }
            }
        }
    }
    Ok(())
}

/// Whether the connection from this port is accepted here. On a busy machine it is made a moment before it can be accepted.
fn arrives(listener: &TcpListener, port: u16) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((_, client)) if client.port() == port => return true,
            Ok(_) => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        let left = end.saturating_duration_since(Instant::now());
        let Ok(timeout) = Timespec::try_from(left) else { return false };
        let mut listening = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut listening, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) if !left.is_zero() => {}
            _ => return false,
        }
    }
}

/// Only a self-test that fails takes this long.
const PATIENCE: Duration = Duration::from_secs(5);
const AFNOSUPPORT: i32 = 97;
