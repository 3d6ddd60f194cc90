//! What kube-proxy's ipvs mode left beside its chains: virtual servers, the device that makes their addresses the host's,
//! and the sets that its rules asked. Virtual servers, sets and devices of others stay.
//!
//! Connections that IPVS has established end with its virtual servers: only IPVS knows how they are translated. New ones have
//! been ours since our rules came, which see them first.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_netlink::error::Error;
use ferroxy_netlink::ipset::{self, Member};
use ferroxy_netlink::ipvs::{self, Change};
use ferroxy_netlink::route;
use rustix::io::Errno;

use super::Report;
use super::names::{DEVICE, is_set, node_port_protocol};
use crate::config::Mode;

/// Runs after the chains have gone: their rules use the sets.
pub(super) fn remove(in_force: Option<Mode>, report: &mut Report) {
    if in_force == Some(Mode::Ipvs) {
        return;
    }
    if let Err(error) = Leftovers::look().and_then(|left| left.remove(report)) {
        report.failed(&error);
    }
}

#[derive(Default)]
struct Leftovers {
    /// By name.
    sets: Vec<String>,
    has_device: bool,
    servers: Vec<ipvs::Address>,
}

impl Leftovers {
    fn look() -> Result<Leftovers, Error> {
        let mut links = route::Connection::open()?;
        let device = find_device(&mut links)?;
        let sets = read_sets()?;
        let mut left = Leftovers { has_device: device.is_some(), ..Leftovers::default() };
        left.sets = sets.iter().map(|(name, _)| name.clone()).collect();
        if left.has_device || !left.sets.is_empty() {
            let evidence = Evidence::gather(device, &sets, &mut links)?;
            left.servers = find_servers(&evidence)?;
        }
        Ok(left)
    }

    /// In this order, and each step only when the one before succeeded: the device and the sets tell whose the virtual
    /// servers are, for the next time.
    fn remove(self, report: &mut Report) -> Result<(), Error> {
        remove_servers(&self.servers, report)?;
        if self.has_device {
            route::Connection::open()?.delete_link_named(DEVICE)?;
            report.removed.push(format!("device {DEVICE}"));
        }
        remove_sets(&self.sets, report)
    }
}

/// By what a virtual server is known to be kube-proxy's.
#[derive(Debug, Default)]
struct Evidence {
    /// On its device: Services' addresses.
    on_device: BTreeSet<IpAddr>,
    /// On the other devices.
    of_host: BTreeSet<IpAddr>,
    /// Node ports, by protocol. Whether IPv6: each family has sets of its own.
    node_ports: BTreeSet<(bool, u8, u16)>,
    /// Addresses with ports that it has written down one by one; some are on other devices than its own.
    written_down: BTreeSet<(IpAddr, u8, u16)>,
}

impl Evidence {
    fn gather(
        device: Option<u32>,
        sets: &[(String, Vec<Member>)],
        links: &mut route::Connection,
    ) -> Result<Evidence, Error> {
        let mut evidence = Evidence::default();
        for address in links.addresses()? {
            let on_device = device == Some(address.link);
            if on_device { &mut evidence.on_device } else { &mut evidence.of_host }.insert(address.ip);
        }
        for (name, members) in sets {
            evidence.read(name, members);
        }
        Ok(evidence)
    }

    fn read(&mut self, set: &str, members: &[Member]) {
        for member in members {
            match *member {
                Member::Port(port) => {
                    self.node_ports
                        .extend(node_port_protocol(set).map(|(six, protocol)| (six, protocol, port)));
                }
                Member::IpPort(ipset::Address { ip, protocol, port }) => {
                    self.written_down.insert((ip, protocol, port));
                }
                // Of endpoints and clients, not of servers; and the device's addresses once more.
                Member::Ip(_) | Member::IpPortIp(..) | Member::IpPortNet(..) => {}
            }
        }
    }

    fn shows(&self, server: &ipvs::Address) -> bool {
        let ipvs::Address { ip, protocol, port } = *server;
        let is_node_port =
            self.of_host.contains(&ip) && self.node_ports.contains(&(ip.is_ipv6(), protocol, port));
        is_node_port || self.on_device.contains(&ip) || self.written_down.contains(&(ip, protocol, port))
    }
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

fn find_servers(evidence: &Evidence) -> Result<Vec<ipvs::Address>, Error> {
    let Some(mut connection) = ipvs::Connection::open_if_loaded()? else { return Ok(Vec::new()) };
    let addresses = connection.servers()?.into_iter().map(|server| server.address);
    Ok(addresses.filter(|address| evidence.shows(address)).collect())
}

fn remove_servers(servers: &[ipvs::Address], report: &mut Report) -> Result<(), Error> {
    if servers.is_empty() {
        return Ok(());
    }
    let changes: Vec<Change> = servers.iter().copied().map(Change::RemoveServer).collect();
    let mut refused = ipvs::Connection::open()?.change(&changes)?;
    // Gone by itself.
    refused.retain(|it| it.error.errno != Errno::SRCH);
    let count = servers.len() - refused.len();
    if count > 0 {
        report.removed.push(format!("{count} virtual servers"));
    }
    refused.into_iter().next().map_or(Ok(()), |first| Err(first.error))
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
    use super::*;

    const TCP: u8 = libc::IPPROTO_TCP as u8;
    const UDP: u8 = libc::IPPROTO_UDP as u8;
    const SCTP: u8 = libc::IPPROTO_SCTP as u8;

    fn at(ip: &str, protocol: u8, port: u16) -> ipvs::Address {
        ipvs::Address { ip: ip.parse().unwrap(), protocol, port }
    }

    fn member(ip: &str, protocol: u8, port: u16) -> Member {
        Member::IpPort(ipset::Address { ip: ip.parse().unwrap(), protocol, port })
    }

    #[test]
    fn a_server_is_known_by_its_address_or_its_node_port() {
        let mut evidence = Evidence {
            on_device: ["10.96.0.80".parse().unwrap()].into(),
            of_host: ["172.18.0.2", "fd00:172:18::2"].map(|ip| ip.parse().unwrap()).into(),
            ..Evidence::default()
        };
        evidence.read("KUBE-NODE-PORT-TCP", &[Member::Port(30080)]);
        evidence.read("KUBE-6-NODE-PORT-LOCAL-UDP", &[Member::Port(30053)]);
        evidence.read("KUBE-HEALTH-CHECK-NODE-PORT", &[Member::Port(32000)]);
        evidence.read("KUBE-NODE-PORT-SCTP-HASH", &[member("172.18.0.2", SCTP, 30077)]);
        evidence.read("KUBE-EXTERNAL-IP", &[member("172.18.0.2", TCP, 8080)]);
        for (server, its) in [
            (at("10.96.0.80", TCP, 80), true),
            (at("10.96.0.81", TCP, 80), false),
            (at("172.18.0.2", TCP, 30080), true),
            (at("172.18.0.2", UDP, 30080), false),
            (at("172.18.0.3", TCP, 30080), false),
            (at("fd00:172:18::2", UDP, 30053), true),
            (at("fd00:172:18::2", TCP, 30080), false),
            (at("172.18.0.2", TCP, 32000), false),
            (at("172.18.0.2", SCTP, 30077), true),
            (at("172.18.0.2", TCP, 8080), true),
        ] {
            assert_eq!(evidence.shows(&server), its, "{server}");
        }
    }
}
