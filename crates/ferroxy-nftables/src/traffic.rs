//! What the kernel has counted: connections, packets and bytes for each frontend and endpoint. Runtime data: read, never
//! written. The rules that count are in `program.rs`; whose frontend it is, the caller knows.

use std::collections::HashMap;
use std::net::SocketAddr;

use ferroxy_core::{Family, Protocol};
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{Connection, Counter};

use crate::TABLE;
use crate::element::{Counted, SetId, address_from};
use crate::rule::kernel_family;

/// Where clients connected to, and who served them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    pub protocol: Protocol,
    /// As the client wrote it. For a node port, one of this host's addresses.
    pub frontend: SocketAddr,
    pub endpoint: SocketAddr,
}

/// What was counted for a flow. It starts again from zero when the flow was not used for an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub connections: u64,
    /// From clients to the endpoint.
    pub received: Counter,
    /// From the endpoint to clients.
    pub sent: Counter,
}

/// A connection to the kernel of its own, so that long listings hold up nobody.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
}

impl Reader {
    pub fn open() -> Result<Reader, Error> {
        Connection::open().map(|connection| Reader { connection })
    }

    /// Everything counted so far; nothing where nothing is counted.
    pub fn read(&mut self) -> Result<HashMap<Flow, Traffic>, Error> {
        let mut flows: HashMap<Flow, Traffic> = HashMap::new();
        for family in Family::ALL {
            for counted in Counted::ALL {
                let set = SetId::Traffic(counted).name();
                self.connection.counters(kernel_family(family), TABLE, set, &mut |key, counter| {
                    // A key of another shape is not ours.
                    let Some(flow) = Flow::from_key(key) else { return };
                    let traffic = flows.entry(flow).or_default();
                    match counted {
                        Counted::Connections => traffic.connections = counter.packets,
                        Counted::Received => traffic.received = counter,
                        Counted::Sent => traffic.sent = counter,
                    }
                })?;
            }
        }
        Ok(flows)
    }
}

impl Flow {
    /// Protocol, address, port, address, port: each padded to four bytes, as `rule::FLOW_FIELDS` loads them.
    fn from_key(key: &[u8]) -> Option<Flow> {
        let (protocol, ends) = key.split_first_chunk::<4>()?;
        let (frontend, endpoint) = ends.split_at(ends.len() / 2);
        Some(Flow {
            protocol: Protocol::from_number(protocol[0])?,
            frontend: socket_address(frontend)?,
            endpoint: socket_address(endpoint)?,
        })
    }
}

fn socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (address, port) = bytes.split_last_chunk::<4>()?;
    Some(SocketAddr::new(address_from(address)?, u16::from_be_bytes([port[0], port[1]])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Key;

    #[test]
    fn keys_are_read_in_both_families_and_nothing_else_is() {
        for (frontend, endpoint) in
            [("10.96.0.80:80", "10.244.1.5:8080"), ("[fd00:10:96::80]:80", "[fd00:10:244:1::5]:8080")]
        {
            let (frontend, endpoint): (SocketAddr, SocketAddr) =
                (frontend.parse().unwrap(), endpoint.parse().unwrap());
            let start = Key::EMPTY.protocol(Protocol::Udp).address(frontend.ip()).port(frontend.port());
            let end = Key::EMPTY.address(endpoint.ip()).port(endpoint.port());
            let key = [start.as_bytes(), end.as_bytes()];
            let expected = Flow { protocol: Protocol::Udp, frontend, endpoint };
            assert_eq!(Flow::from_key(&key.concat()), Some(expected));
        }
        for foreign in [&[][..], &[6, 0, 0, 0], &[6; 19], &[1; 20], &[6; 22]] {
            assert_eq!(Flow::from_key(foreign), None, "{foreign:?}");
        }
    }
}
