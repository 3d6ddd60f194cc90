//! Removes what kube-proxy's ipvs mode left besides its chains: virtual servers, the device that carries their
//! addresses, and the sets that its rules match against. Virtual servers, sets and devices of other programs stay.
//!
//! Established connections depend on IPVS: only IPVS knows how to translate them. New connections are translated by our
//! rules as soon as these are in force, because they see packets before IPVS (PREROUTING and OUTPUT come before the
//! LOCAL_IN of IPVS). So virtual servers with connections stay until the connections end, together with what they need:
//!
//! ```text
//! the address on kube-ipvs0    delivers packets to LOCAL_IN, where IPVS takes them
//! the chain KUBE-IPVS-FILTER   protects the host's own programs at that address (`names::Spared`)
//! the sets                     that chain matches against them; and they show, also after a restart, which servers are kube-proxy's
//! ```
//! kube-proxy's other chains are not needed: they decided at the first packet of a connection whether to masquerade it,
//! and connection tracking remembers that. A virtual server that stays has weight 0 for all destinations, so that
//! packets which our rules do not translate (to a deleted Service, to a node port on another address) find no endpoint
//! there.

mod evidence;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ferroxy_dataplane::capability::leftovers::{Established, Leftovers};
use ferroxy_netlink::conntrack::{self, Entry, Filter};
use ferroxy_netlink::error::Error;
use ferroxy_netlink::ipset::{self, Member};
use ferroxy_netlink::ipvs::{self, Change, Destination, Found};
use ferroxy_netlink::requests::Refused;
use ferroxy_netlink::route;
use rustix::io::Errno;

use super::names::{DEVICE, is_set};
use super::{Own, failed};
use evidence::Evidence;
use server::{Server, partition};

/// The objects that kube-proxy left, and which of them can be removed.
#[derive(Debug, Default)]
pub(super) struct VirtualServers {
    /// Names.
    sets: Vec<String>,
    has_device: bool,
    /// On the device.
    addresses: Vec<route::Address>,
    going: Vec<Server>,
    staying: Vec<Server>,
}

impl VirtualServers {
    pub(super) fn find(in_force: Option<Own>, established: Established) -> Result<VirtualServers, Error> {
        if in_force == Some(Own::Ipvs) {
            return Ok(VirtualServers::default());
        }
        let mut links = route::Connection::open()?;
        let device = find_device(&mut links)?;
        let sets = read_sets()?;
        if device.is_none() && sets.is_empty() {
            return Ok(VirtualServers::default());
        }
        let mut addresses = links.addresses()?;
        let evidence = Evidence::gather(&addresses, device, &sets);
        addresses.retain(|address| device == Some(address.link));
        let servers = find_servers(&evidence)?;
        let (staying, going) = match established {
            Established::GoOn => partition(servers, &evidence.on_device),
            Established::End => (Vec::new(), servers),
        };
        let sets = sets.into_iter().map(|(name, _)| name).collect();
        Ok(VirtualServers { sets, has_device: device.is_some(), addresses, going, staying })
    }

    /// Whether some virtual servers must stay for established connections.
    pub(super) fn are_needed(&self) -> bool {
        !self.staying.is_empty()
    }

    /// To be called after the chains are removed: their rules use the sets.
    pub(super) fn remove(self, report: &mut Leftovers) {
        report.connections = self.staying.iter().map(Server::connections).sum();
        if let Err(error) = self.try_remove(report) {
            failed(report, &error);
        }
    }

    /// The order matters, and each step runs only if the previous one succeeded: a later attempt recognises the virtual
    /// servers by the device and the sets.
    fn try_remove(&self, report: &mut Leftovers) -> Result<(), Error> {
        refuse_new_connections(&self.staying)?;
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

    fn remove_unused_addresses(&self, report: &mut Leftovers) -> Result<(), Error> {
        let used: BTreeSet<IpAddr> = self.staying.iter().map(|server| server.address.ip).collect();
        // The kernel itself assigns the device a link-local address.
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

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// A device of another kind only has the name by chance.
fn find_device(links: &mut route::Connection) -> Result<Option<u32>, Error> {
    let is_its = |link: &route::Link| link.name == DEVICE && link.kind.as_deref() == Some("dummy");
    Ok(links.links()?.into_iter().find(is_its).map(|link| link.index))
}

fn read_sets() -> Result<Vec<(String, Vec<Member>)>, Error> {
    // A query would load the module.
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

/// Sets weight 0: established connections continue, and IPVS accepts no new ones.
fn refuse_new_connections(servers: &[Server]) -> Result<(), Error> {
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

fn remove_servers(servers: &[Server], report: &mut Leftovers) -> Result<(), Error> {
    if servers.is_empty() {
        return Ok(());
    }
    let changes: Vec<Change> = servers.iter().map(|server| Change::RemoveServer(server.address)).collect();
    let refused = ipvs::Connection::open()?.change(&changes)?;
    let gone = conclude(changes.len(), refused, Errno::SRCH)?;
    report.removed.push(format!("{gone} virtual servers"));
    Ok(())
}

/// How many changes were made. A refusal with `gone` means that the object no longer existed, and is no error.
fn conclude(count: usize, mut refused: Vec<Refused>, gone: Errno) -> Result<usize, Error> {
    refused.retain(|it| it.error.errno != gone);
    refused.into_iter().next().map_or(Ok(count), |first| Err(first.error))
}

/// Deletes the connection tracking entries of removed virtual servers. While an entry exists, no nat rule sees the
/// packets of its connection, and they are lost. Without the entry, the next packet starts a new connection with our
/// rules: UDP continues with it, and a TCP endpoint answers with a reset, which is better than silence.
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
            // A connection with this status is translated by our rules. (IPVS does not set it.)
            let is_ours = entry.status & conntrack::status::DST_NAT != 0;
            if !is_ours && places.contains(&(to.ip(), to.port())) {
                stranded.push(entry);
            }
        });
        match listed {
            // Without ctnetlink, the entries stay until they time out.
            Err(error) if conntrack::is_missing(&error) => return Ok(()),
            other => other?,
        }
        connection.delete(&stranded)?;
    }
    Ok(())
}

fn remove_sets(names: &[String], report: &mut Leftovers) -> Result<(), Error> {
    if names.is_empty() {
        return Ok(());
    }
    // If no rule was removed just now, a set in use belongs to a rule that stays, and waiting does not help.
    const PATIENCE: Duration = Duration::from_secs(30);
    let patience = if report.removed.is_empty() { Duration::ZERO } else { PATIENCE };
    let deadline = Instant::now() + patience;
    let mut connection = ipset::Connection::open()?;
    let mut count = 0;
    for name in names {
        match connection.destroy_when_free(name, deadline) {
            Ok(()) => count += 1,
            Err(error) if error.errno == Errno::BUSY => {
                report.kept.push(format!("set {name} (a rule uses it)"));
            }
            Err(error) => failed(report, &error),
        }
    }
    if count > 0 {
        report.removed.push(format!("{count} sets"));
    }
    Ok(())
}
