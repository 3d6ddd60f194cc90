//! Deletes stale connections through connection tracking (ctnetlink). Which connections are stale is the caller's decision.

use ferroxy_core::{Family, Protocol};
use ferroxy_dataplane::capability::connections::{Connection, Selection, SweepsConnections};
use ferroxy_dataplane::{Failure, FailureKind};
use ferroxy_netlink::conntrack::{self, Entry, Filter, status};
use ferroxy_netlink::error::Error;

use crate::failure;

/// How many connections are judged and deleted at once.
const CHUNK: usize = 512;

/// The connections of the network namespace of the thread that sweeps.
#[derive(Debug, Default)]
pub struct Conntrack;

impl SweepsConnections for Conntrack {
    fn sweep(
        &mut self,
        selection: &[Selection],
        judge: &mut dyn FnMut(&[Connection]) -> Vec<bool>,
        deleted: &mut dyn FnMut(Family, u64),
    ) -> Result<(), Failure> {
        sweep(selection, judge, deleted).map_err(explain)
    }
}

/// One socket lists while the other deletes, so only one chunk of connections is in memory, however many there are.
fn sweep(
    selection: &[Selection],
    judge: &mut dyn FnMut(&[Connection]) -> Vec<bool>,
    deleted: &mut dyn FnMut(Family, u64),
) -> Result<(), Error> {
    let (mut lister, mut remover) = (conntrack::Connection::open()?, conntrack::Connection::open()?);
    let mut chunk = Vec::with_capacity(CHUNK);
    // A failed deletion does not end the sweep.
    let mut failed = None;
    for selection in selection {
        let mut remove_stale = |chunk: &mut Vec<(Entry, Connection)>| {
            match remove_stale(chunk, &mut remover, judge) {
                Ok(count) => deleted(selection.family, count),
                Err(error) => failed = Some(error),
            }
            chunk.clear();
        };
        lister.entries(filter(selection), &mut |entry| {
            chunk.extend(connection(&entry).map(|connection| (entry, connection)));
            if chunk.len() == CHUNK {
                remove_stale(&mut chunk);
            }
        })?;
        remove_stale(&mut chunk);
    }
    failed.map_or(Ok(()), Err)
}

/// Deletes the stale connections of a chunk. Returns how many were deleted.
fn remove_stale(
    chunk: &[(Entry, Connection)],
    remover: &mut conntrack::Connection,
    judge: &mut dyn FnMut(&[Connection]) -> Vec<bool>,
) -> Result<u64, Error> {
    if chunk.is_empty() {
        return Ok(0);
    }
    let connections: Vec<Connection> = chunk.iter().map(|(_, connection)| *connection).collect();
    let judged = chunk.iter().zip(judge(&connections));
    let stale: Vec<Entry> = judged.filter_map(|((entry, _), stale)| stale.then_some(*entry)).collect();
    if stale.is_empty() { Ok(0) } else { remover.delete(&stale).map(|count| count as u64) }
}

/// `None` for a protocol that no Service has.
fn connection(entry: &Entry) -> Option<Connection> {
    Some(Connection {
        protocol: Protocol::from_number(entry.protocol)?,
        frontend: entry.original.destination,
        endpoint: entry.reply.source,
        is_translated: entry.is_destination_translated(),
    })
}

/// The filter that the kernel applies. IPVS sets no status, so its connections are listed only where untranslated ones
/// are, too. (IPVS itself ends connections to a removed endpoint: `net.ipv4.vs.expire_nodest_conn`.)
fn filter(selection: &Selection) -> Filter {
    let family = match selection.family {
        Family::V4 => conntrack::Family::V4,
        Family::V6 => conntrack::Family::V6,
    };
    Filter {
        family,
        protocol: Some(selection.protocol.number()),
        destination: selection.frontend.map(|frontend| frontend.ip()),
        destination_port: selection.frontend.map(|frontend| frontend.port()),
        status: if selection.translated_only { status::DST_NAT } else { 0 },
    }
}

fn explain(error: Error) -> Failure {
    if conntrack::is_missing(&error) {
        Failure::new(FailureKind::Unsupported, format!("this kernel cannot list conntrack entries: {error}"))
    } else {
        failure::of(error)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ferroxy_netlink::conntrack::Tuple;
    use rustix::io::Errno;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn entry(to: &str, by: &str, status: u32) -> Entry {
        let client = at("10.244.1.9:40000");
        Entry {
            protocol: Protocol::Udp.number(),
            original: Tuple { source: client, destination: at(to) },
            reply: Tuple { source: at(by), destination: client },
            zone: 0,
            id: 1,
            status,
            timeout: Some(30),
        }
    }

    #[test]
    fn a_selection_becomes_a_filter_of_the_kernel() {
        let all =
            Selection { family: Family::V6, protocol: Protocol::Udp, frontend: None, translated_only: false };
        let everything = Filter { protocol: Some(17), ..Filter::all(conntrack::Family::V6) };
        assert_eq!(filter(&all), everything);
        let translated_only = Selection { translated_only: true, ..all };
        assert_eq!(filter(&translated_only), Filter { status: status::DST_NAT, ..everything });
        let one = Selection { family: Family::V4, frontend: Some(at("10.96.0.10:53")), ..translated_only };
        let Filter { family, destination, destination_port, .. } = filter(&one);
        assert_eq!(family, conntrack::Family::V4);
        assert_eq!((destination, destination_port), (Some(at("10.96.0.10:53").ip()), Some(53)));
    }

    #[test]
    fn connections_that_ipvs_balances_count_as_translated() {
        let translated = |entry| connection(&entry).unwrap().is_translated;
        assert!(translated(entry("10.96.0.10:53", "10.244.1.5:53", status::DST_NAT)));
        assert!(translated(entry("10.96.0.10:53", "10.244.1.5:53", 0)), "the reply shows it");
        assert!(!translated(entry("10.96.0.10:53", "10.96.0.10:53", 0)));
    }

    #[test]
    fn a_kernel_without_ctnetlink_is_recognised() {
        let missing = explain(Error::refused("list connections", "", Errno::OPNOTSUPP));
        assert_eq!(missing.kind, FailureKind::Unsupported);
        let other = explain(Error::refused("delete connections", "", Errno::OPNOTSUPP));
        assert_eq!(other.kind, FailureKind::Other);
    }
}
