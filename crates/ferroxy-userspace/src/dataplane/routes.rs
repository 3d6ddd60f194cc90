//! Local routes in the kernel: the proxy's own addresses, and cluster IPs that it listens on.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_dataplane::Failure;
use ferroxy_netfilter::failure;
use ferroxy_netlink::route::{Connection, LocalRoute};
use rustix::io::Errno;

/// The protocol number of our routes (`ip route show table local proto 102`). No other program has registered it.
const PROTOCOL: u8 = 102;

#[derive(Debug)]
pub(super) struct Routes {
    connection: Connection,
}

impl Routes {
    pub(super) fn open() -> Result<Routes, Failure> {
        Ok(Routes { connection: Connection::open().map_err(failure::of)? })
    }

    /// Returns whether the route was missing.
    pub(super) fn add(&mut self, address: IpAddr) -> Result<bool, Failure> {
        match self.connection.add_local_route(LocalRoute { address, protocol: PROTOCOL }) {
            Ok(()) => Ok(true),
            Err(error) if error.errno == Errno::EXIST => Ok(false),
            Err(error) => Err(failure::of(error)),
        }
    }

    pub(super) fn remove(&mut self, address: IpAddr) -> Result<(), Failure> {
        match self.connection.remove_local_route(LocalRoute { address, protocol: PROTOCOL }) {
            Err(error) if error.errno != Errno::SRCH => Err(failure::of(error)),
            _ => Ok(()),
        }
    }

    /// The addresses of our routes, whichever run added them.
    pub(super) fn seen(&mut self) -> Result<BTreeSet<IpAddr>, Failure> {
        let routes = self.connection.local_routes(PROTOCOL).map_err(failure::of)?;
        Ok(routes.into_iter().map(|route| route.address).collect())
    }
}
