//! Reads the traffic counters: connections, packets and bytes for each frontend and endpoint. The rules that count are in
//! `program.rs`; the caller knows which Service a frontend belongs to.

use std::collections::HashMap;
use std::net::SocketAddr;

use ferroxy_core::{Family, Protocol};
use ferroxy_dataplane::Failure;
use ferroxy_dataplane::capability::traffic::{CountsTraffic, Flow, Traffic, Volume};
use ferroxy_netfilter::failure;
use ferroxy_netfilter::tables::kernel_family;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::Connection;

use crate::TABLE;
use crate::element::{Counted, SetId, address_from};
use crate::program::TRAFFIC_ENTRIES;

/// Has its own connection to the kernel, so that long listings do not block the dataplane.
#[derive(Debug, Default)]
pub struct Reader {
    /// `None` before the first reading and after a failed one.
    connection: Option<Connection>,
}

impl CountsTraffic for Reader {
    fn read(&mut self) -> Result<HashMap<Flow, Traffic>, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open().map_err(failure::of)?,
        };
        let flows = read(&mut connection).map_err(failure::of)?;
        self.connection = Some(connection);
        Ok(flows)
    }

    fn limit(&self) -> u64 {
        TRAFFIC_ENTRIES.into()
    }
}

fn read(connection: &mut Connection) -> Result<HashMap<Flow, Traffic>, Error> {
    let mut flows: HashMap<Flow, Traffic> = HashMap::new();
    for family in Family::ALL {
        for counted in Counted::ALL {
            let set = SetId::Traffic(counted).name();
            connection.counters(kernel_family(family), TABLE, set, &mut |key, counter| {
                // A key of another form is not ours.
                let Some(flow) = flow_of_key(key) else { return };
                let traffic = flows.entry(flow).or_default();
                let volume = Volume { packets: counter.packets, bytes: counter.bytes };
                match counted {
                    Counted::Connections => traffic.connections = counter.packets,
                    Counted::Received => traffic.received = volume,
                    Counted::Sent => traffic.sent = volume,
                }
            })?;
        }
    }
    Ok(flows)
}

/// Protocol, address, port, address, port: each padded to four bytes, as `rule::FLOW_FIELDS` loads them.
fn flow_of_key(key: &[u8]) -> Option<Flow> {
    let (protocol, ends) = key.split_first_chunk::<4>()?;
    let (frontend, endpoint) = ends.split_at(ends.len() / 2);
    Some(Flow {
        protocol: Protocol::from_number(protocol[0])?,
        frontend: socket_address(frontend)?,
        endpoint: socket_address(endpoint)?,
    })
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
    fn keys_of_both_families_are_decoded_and_others_ignored() {
        for (frontend, endpoint) in
            [("10.96.0.80:80", "10.244.1.5:8080"), ("[fd00:10:96::80]:80", "[fd00:10:244:1::5]:8080")]
        {
            let (frontend, endpoint): (SocketAddr, SocketAddr) =
                (frontend.parse().unwrap(), endpoint.parse().unwrap());
            let start = Key::EMPTY.protocol(Protocol::Udp).address(frontend.ip()).port(frontend.port());
            let end = Key::EMPTY.address(endpoint.ip()).port(endpoint.port());
            let key = [start.as_bytes(), end.as_bytes()];
            let expected = Flow { protocol: Protocol::Udp, frontend, endpoint };
            assert_eq!(flow_of_key(&key.concat()), Some(expected));
        }
        for foreign in [&[][..], &[6, 0, 0, 0], &[6; 19], &[1; 20], &[6; 22]] {
            assert_eq!(flow_of_key(foreign), None, "{foreign:?}");
        }
    }
}
