//! Links, addresses and routes of one network namespace (rtnetlink), and notifications about changes. The callers decide what
//! the network looks like.

mod address;
#[cfg(target_os = "linux")]
mod connection;
mod link;
mod local;
#[cfg(target_os = "linux")]
mod monitor;
mod notice;
#[allow(clippy::module_inception, reason = "the file is named for its noun, like its neighbours")]
mod route;
mod wire;

pub use address::Address;
#[cfg(target_os = "linux")]
pub use connection::Connection;
pub use link::Link;
pub use local::LocalRoute;
#[cfg(target_os = "linux")]
pub use monitor::AddressMonitor;
pub use notice::{Moved, Notice};
pub use route::Route;

use std::net::IpAddr;

use crate::codec::{Encoder, Messages};
use crate::numbers::{AF_INET, AF_INET6};

/// Decodes bytes as every kind of message and discards the results. For the fuzzer.
#[doc(hidden)]
pub fn read_everything(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = (Address::decode(&message), Link::decode(&message), LocalRoute::decode(&message));
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
