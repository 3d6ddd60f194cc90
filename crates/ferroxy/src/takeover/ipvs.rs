//! What kube-proxy's ipvs mode left beside its chains: virtual servers, the device that makes their addresses the host's,
//! and the sets that its rules asked. Virtual servers, sets and devices of others stay.
//!
//! Connections that IPVS has established depend on it: only IPVS knows how they are translated. New ones are ours from the
//! moment our rules are there, because those see them first (PREROUTING and OUTPUT, before IPVS's LOCAL_IN). So the virtual
//! servers that carry connections stay until those have ended, with what they need:
//!
//! ```text
//! the address on kube-ipvs0    packets must come to LOCAL_IN, where IPVS takes them
//! the chain KUBE-IPVS-FILTER   keeps that address's other ports from the host's own programs (`names::Spared`)
//! the sets                     that chain asks them; and they tell whose a virtual server is, after a restart too
//! ```
//! Its other chains are not needed: they decided, at a connection's first packet, whether its source is translated, and
//! connection tracking remembers. A virtual server that stays has weight 0 everywhere: what our rules do not
//! take (a Service that is no more, a node port on another address) does not get through by way of it.

mod evidence;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_netlink::conntrack::{self, Entry, Filter};
use ferroxy_netlink::error::Error;
use ferroxy_netlink::ipset::{self, Member};
use ferroxy_netlink::ipvs::{self, Change, Destination, Found};
use ferroxy_netlink::requests::Refused;
use ferroxy_netlink::route;
use rustix::io::Errno;

use super::names::{DEVICE, is_set};
use super::{Established, Report};
use crate::dataplane::Mode;
use evidence::Evidence;

/// What there is, and what of it can go.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// By name.
    sets: Vec<String>,
    has_device: bool,
    /// Of the device.
    addresses: Vec<route::Address>,
    going: Vec<Server>,
    staying: Vec<Server>,
}

/// A virtual server and who gets its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Server {
    address: ipvs::Address,
    destinations: Vec<Found>,
}

impl Leftovers {
    pub(super) fn look(in_force: Option<Mode>, established: Established) -> Result<Leftovers, Error> {
        if in_force == Some(Mode::Ipvs) {
            return Ok(Leftovers::default());
        }
        let mut links = route::Connection::open()?;
        let device = find_device(&mut links)?;
        let sets = read_sets()?;
        if device.is_none() && sets.is_empty() {
            return Ok(Leftovers::default());
        }
        let mut addresses = links.addresses()?;
        let evidence = Evidence::gather(&addresses, device, &sets);
        addresses.retain(|address| device == Some(address.link));
        let servers = find_servers(&evidence)?;
        let (staying, going) = match established {
            Established::GoOn => part(servers, &evidence.on_device),
            Established::End => (Vec::new(), servers),
        };
        let sets = sets.into_iter().map(|(name, _)| name).collect();
        Ok(Leftovers { sets, has_device: device.is_some(), addresses, going, staying })
    }

    /// Whether something stays, for connections that IPVS carries.
    pub(super) fn are_needed(&self) -> bool {
        !self.staying.is_empty()
    }

    /// Runs after the chains have gone: their rules use the sets.
    pub(super) fn remove(self, report: &mut Report) {
        report.connections = self.staying.iter().map(Server::connections).sum();
        if let Err(error) = self.try_remove(report) {
            report.failed(&error);
        }
    }

    /// In this order, and each step only when the one before succeeded: the device and the sets tell whose the virtual
    /// servers are, for the next time.
    fn try_remove(&self, report: &mut Report) -> Result<(), Error> {
        send_nothing_new(&self.staying)?;
        remove_servers(&self.going, report)?;
        let quiet = self.staying.iter().filter(|server| server.is_udp() && server.is_open());
        forget_connections(self.going.iter().chain(quiet))?;
        if self.are_needed() {
            return self.remove_unused_addresses(report);
        }
        if self.has_device {
            route::Connection::open()?.delete_link_named(DEVICE)?;
            report.removed.push(format!("device {DEVICE}"));
        }
        remove_sets(&self.sets, report)
    }

    fn remove_unused_addresses(&self, report: &mut Report) -> Result<(), Error> {
        let used: BTreeSet<IpAddr> = self.staying.iter().map(|server| server.address.ip).collect();
        // The kernel gives the device a link-local address by itself.
        let is_unused = |it: &&route::Address| !used.contains(&it.ip) && !is_link_local(it.ip);
        let unused: Vec<route::Address> = self.addresses.iter().filter(is_unused).copied().collect();
        if unused.is_empty() {
            return Ok(());
        }
        let refused = route::Connection::open()?.remove_addresses(&unused)?;
        let gone = conclude(unused.len(), refused, Errno::ADDRNOTAVAIL)?;
        report.removed.push(format!("{gone} addresses of {DEVICE}"));
        Ok(())
    }
}

impl Server {
    /// That it carries, and that would break without it. UDP has none: a client that keeps its socket begins anew, with
    /// our rules ([`forget_connections`]).
    fn connections(&self) -> u64 {
        if self.is_udp() { 0 } else { self.remembered() }
    }

    /// Those in the middle of their end may still have data to bring, so they count, too.
    fn remembered(&self) -> u64 {
        self.destinations.iter().map(|found| u64::from(found.active) + u64::from(found.inactive)).sum()
    }

    fn is_udp(&self) -> bool {
        i32::from(self.address.protocol) == libc::IPPROTO_UDP
    }

    /// Nobody has seen to it that it gets no new connections.
    fn is_open(&self) -> bool {
        self.destinations.iter().any(|found| found.destination.weight > 0)
    }
}

/// Those that stay, and those that go. An address of the device stays or goes as a whole: where it stays, a port without a
/// virtual server would be the host's own.
fn part(servers: Vec<Server>, on_device: &BTreeSet<IpAddr>) -> (Vec<Server>, Vec<Server>) {
    let busy = servers.iter().filter(|server| server.connections() > 0).map(|server| server.address.ip);
    let held: BTreeSet<IpAddr> = busy.filter(|ip| on_device.contains(ip)).collect();
    servers.into_iter().partition(|it| it.connections() > 0 || held.contains(&it.address.ip))
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// A device of another kind only has the name.
fn find_device(links: &mut route::Connection) -> Result<Option<u32>, Error> {
    let is_its = |link: &route::Link| link.name == DEVICE && link.kind.as_deref() == Some("dummy");
    Ok(links.links()?.into_iter().find(is_its).map(|link| link.index))
}

fn read_sets() -> Result<Vec<(String, Vec<Member>)>, Error> {
    // The kernel loads its sets when somebody asks about them: not because of us.
    if Path::new("/sys/module").exists() && !Path::new("/sys/module/ip_set").exists() {
        return Ok(Vec::new());
    }
    let mut connection = match ipset::Connection::open() {
        Err(error) if ipset::is_missing(&error) => return Ok(Vec::new()),
        other => other?,
    };
    let mut sets = Vec::new();
    for name in connection.names()?.into_iter().filter(|name| is_set(name)) {
        let found = connection.set(&name)?;
        sets.extend(found.map(|found| (name, found.members)));
    }
    Ok(sets)
}

fn find_servers(evidence: &Evidence) -> Result<Vec<Server>, Error> {
    let Some(mut connection) = ipvs::Connection::open_if_loaded()? else { return Ok(Vec::new()) };
    let addresses = connection.servers()?.into_iter().map(|server| server.address);
    let its: Vec<ipvs::Address> = addresses.filter(|address| evidence.shows(address)).collect();
    let count = |address| Ok(Server { address, destinations: connection.destinations(&address)? });
    its.into_iter().map(count).collect()
}

/// Weight 0: connections go on, and there are no new ones.
fn send_nothing_new(servers: &[Server]) -> Result<(), Error> {
    let mut changes = Vec::new();
    for server in servers {
        for Found { destination, .. } in server.destinations.iter().filter(|it| it.destination.weight > 0) {
            changes.push(Change::SetDestination(server.address, Destination { weight: 0, ..*destination }));
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    let refused = ipvs::Connection::open()?.change(&changes)?;
    conclude(changes.len(), refused, Errno::NOENT).map(drop)
}

fn remove_servers(servers: &[Server], report: &mut Report) -> Result<(), Error> {
    if servers.is_empty() {
        return Ok(());
    }
    let changes: Vec<Change> = servers.iter().map(|server| Change::RemoveServer(server.address)).collect();
    let refused = ipvs::Connection::open()?.change(&changes)?;
    let gone = conclude(changes.len(), refused, Errno::SRCH)?;
    report.removed.push(format!("{gone} virtual servers"));
    Ok(())
}

/// How many were done, when none was refused but those that had gone by themselves (`gone`).
fn conclude(count: usize, mut refused: Vec<Refused>, gone: Errno) -> Result<usize, Error> {
    refused.retain(|it| it.error.errno != gone);
    refused.into_iter().next().map_or(Ok(count), |first| Err(first.error))
}

/// Connections whose virtual server is gone go nowhere, as long as connection tracking remembers them: it has seen them and asks
/// no rule. Forgotten, their next packet is a new connection's to our rules. UDP goes on with that; and a TCP endpoint that
/// gets it answers with a reset: better than silence.
fn forget_connections<'s>(ended: impl Iterator<Item = &'s Server>) -> Result<(), Error> {
    let mut places: BTreeMap<(bool, u8), BTreeSet<(IpAddr, u16)>> = BTreeMap::new();
    for server in ended.filter(|server| server.remembered() > 0) {
        let ipvs::Address { ip, protocol, port } = server.address;
        places.entry((ip.is_ipv6(), protocol)).or_default().insert((ip, port));
    }
    if places.is_empty() {
        return Ok(());
    }
    let mut connection = conntrack::Connection::open()?;
    for ((six, protocol), places) in places {
        let family = if six { conntrack::Family::V6 } else { conntrack::Family::V4 };
        let filter = Filter { protocol: Some(protocol), ..Filter::all(family) };
        let mut stranded: Vec<Entry> = Vec::new();
        let listed = connection.entries(filter, &mut |entry| {
            let to = entry.original.destination;
            // One that netfilter has translated is our rules'. (IPVS leaves no such sign.)
            let is_ours = entry.status & conntrack::status::DST_NAT != 0;
            if !is_ours && places.contains(&(to.ip(), to.port())) {
                stranded.push(entry);
            }
        });
        match listed {
            // Without it they end after a while.
            Err(error) if conntrack::is_missing(&error) => return Ok(()),
            other => other?,
        }
        connection.delete(&stranded)?;
    }
    Ok(())
}

fn remove_sets(names: &[String], report: &mut Report) -> Result<(), Error> {
    if names.is_empty() {
        return Ok(());
    }
    // nf_tables lets go of what a rule used some time after the rule has gone, in the background. When none has gone just
    // now there is nothing to wait for: a set in use is in use by somebody.
    const PATIENCE: Duration = Duration::from_secs(2);
    let patience = if report.removed.is_empty() { Duration::ZERO } else { PATIENCE };
    let deadline = Instant::now() + patience;
    let mut connection = ipset::Connection::open()?;
    let mut count = 0;
    for name in names {
        match destroy_when_free(&mut connection, name, deadline) {
            Ok(()) => count += 1,
            Err(error) if error.errno == Errno::BUSY => {
                report.kept.push(format!("set {name} (a rule uses it)"));
            }
            Err(error) => report.failed(&error),
        }
    }
    if count > 0 {
        report.removed.push(format!("{count} sets"));
    }
    Ok(())
}

fn destroy_when_free(connection: &mut ipset::Connection, name: &str, deadline: Instant) -> Result<(), Error> {
    loop {
        match connection.destroy(name) {
            Err(error) if error.errno == Errno::BUSY && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ferroxy_netlink::ipvs::Forwarding;

    use super::*;

    const TCP: u8 = libc::IPPROTO_TCP as u8;
    const UDP: u8 = libc::IPPROTO_UDP as u8;

    fn server(ip: &str, protocol: u8, port: u16, connections: [u32; 2]) -> Server {
        let ip: IpAddr = ip.parse().unwrap();
        let [active, inactive] = connections;
        let to = SocketAddr::new([10, 244, 1, 5].into(), 80);
        let destination = Destination { address: to, forwarding: Forwarding::Masquerade, weight: 1 };
        let found = Found { destination, active, inactive, persistent: 7 };
        Server { address: ipvs::Address { ip, protocol, port }, destinations: vec![found] }
    }

    #[test]
    fn a_server_stays_with_its_connections_or_for_its_address() {
        let on_device = BTreeSet::from(["10.96.0.80", "10.96.0.81"].map(|ip| ip.parse().unwrap()));
        let cases = [
            (server("10.96.0.80", TCP, 80, [1, 0]), true),
            (server("10.96.0.80", TCP, 443, [0, 0]), true),
            (server("10.96.0.80", UDP, 80, [0, 9]), true),
            (server("10.96.0.81", TCP, 80, [0, 0]), false),
            (server("10.96.0.81", UDP, 80, [0, 9]), false),
            (server("172.18.0.2", TCP, 30080, [0, 1]), true),
            (server("172.18.0.2", TCP, 30081, [0, 0]), false),
        ];
        let (staying, going) = part(cases.iter().map(|(server, _)| server.clone()).collect(), &on_device);
        for (server, stays) in &cases {
            assert_eq!(staying.contains(server), *stays, "{}", server.address);
            assert_eq!(going.contains(server), !stays, "{}", server.address);
        }
        let left = Leftovers { staying, ..Leftovers::default() };
        assert!(left.are_needed());
        assert_eq!(left.staying.iter().map(Server::connections).sum::<u64>(), 2);
    }
}
