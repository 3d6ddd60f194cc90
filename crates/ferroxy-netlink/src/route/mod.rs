//! Links, addresses and routes of one network namespace (rtnetlink), and notice of changes. Makes what it is told
//! to; what the network should look like is its callers' knowledge.

mod address;
mod link;
mod monitor;
#[allow(clippy::module_inception, reason = "the file is named for its noun, like its neighbours")]
mod route;

pub use address::Address;
pub use link::Link;
pub use monitor::{AddressMonitor, Moved, Notice};
pub use route::Route;

use std::net::IpAddr;

use crate::codec::{Encoder, Messages};
use crate::error::Error;
use crate::socket::{Protocol, Socket};

/// A door to the namespace that the calling thread was in when it was opened, wherever the thread goes later.
/// The methods stand with their nouns: `link.rs`, `address.rs`, `route.rs`.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
}

impl Connection {
    pub fn open() -> Result<Connection, Error> {
        Socket::open(Protocol::Route).map(|socket| Connection { socket })
    }
}

/// Reads bytes as every kind of message; whatever they are: an answer or an error. For the fuzzer.
#[doc(hidden)]
pub fn read_everything(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = (Address::decode(&message), Link::decode(&message));
    }
}

/// The kernel's number for the address's family, as it stands in every header here.
fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    }
}

fn put_address(encoder: &mut Encoder, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => encoder.put_bytes(kind, &address.octets()),
        IpAddr::V6(address) => encoder.put_bytes(kind, &address.octets()),
    }
}

const AF_UNSPEC: u8 = libc::AF_UNSPEC as u8;
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;
const AF_BRIDGE: u8 = libc::AF_BRIDGE as u8;
