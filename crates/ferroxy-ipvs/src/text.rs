//! States and Plans as text, in the formats of `ipvsadm -Sn`, `ipset save`, `ip address` and `iptables-save`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Protocol};
use ferroxy_iptables::TableName;
use ferroxy_iptables::state::Rules;
use ferroxy_iptables::text::tool;

use crate::plan::{Op, Plan};
use crate::program::{OUT_FILTER, guard, parse_guard};
use crate::set::{CAPACITY, Kind, SetName};
use crate::state::{Address, DEVICE, HASHES_PORT, State, Treatment, WEIGHT};

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# ipvsadm -Sn")?;
        for (address, server) in &self.servers {
            writeln!(f, "-A {} {}", At(address), server.treatment)?;
            for (endpoint, weight) in &server.endpoints {
                writeln!(f, "-a {} -r {endpoint} -m -w {weight}", At(address))?;
            }
        }
        writeln!(f, "# ipset save")?;
        for (name, set) in &self.sets {
            writeln!(f, "{}", Create(*name, set.capacity))?;
            set.members.iter().try_for_each(|member| writeln!(f, "add {name} {member}"))?;
        }
        writeln!(f, "# ip address show {DEVICE}")?;
        for ip in self.device.iter().flatten() {
            writeln!(f, "{}", Host(*ip))?;
        }
        write!(f, "{}", self.all_rules())
    }
}

impl State {
    /// The rules, with the guards.
    pub fn all_rules(&self) -> ferroxy_iptables::State {
        let mut rules = self.rules.clone();
        for address in &self.guarded {
            let table = rules.tables.entry((address.family(), TableName::Filter)).or_default();
            table.chains.entry(OUT_FILTER.into()).or_default().push(format_args!("{}", guard(address)));
        }
        rules
    }

    /// Sets the rules from those of the kernel, and separates the guards.
    pub fn set_rules(&mut self, mut rules: ferroxy_iptables::State) {
        self.guarded.clear();
        for family in Family::ALL {
            let Some(table) = rules.tables.get_mut(&(family, TableName::Filter)) else { continue };
            let Some(chain) = table.chains.get_mut(OUT_FILTER) else { continue };
            self.guarded.extend(chain.iter().filter_map(parse_guard));
            *chain = chain.iter().filter(|rule| parse_guard(rule).is_none()).collect::<Rules>();
        }
        self.rules = rules;
    }
}

/// Prints the operations as commands.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops().iter().try_for_each(|op| writeln!(f, "{op}"))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint =
            |f: &mut fmt::Formatter<'_>, command: char, at: &Address, to: &SocketAddr, weight: u32| {
                write!(f, "ipvsadm -{command} {} -r {to} -m -w {weight}", At(at))
            };
        match self {
            Op::CreateSet(name) => write!(f, "ipset {}", Create(*name, CAPACITY)),
            Op::ReplaceSet(name, members) => write!(f, "ipset swap {name} # {} members", members.len()),
            Op::CreateDevice => write!(f, "ip link add {DEVICE} type dummy"),
            Op::WriteRules(plan) | Op::RemoveRules(plan) => f.write_str(plan.to_string().trim_end()),
            Op::AddMember(name, member) => write!(f, "ipset add {name} {member}"),
            Op::Guard(at) => write!(f, "{} -A {OUT_FILTER} {}", tool(at.family()), guard(at)),
            Op::AddServer(at, treatment) => write!(f, "ipvsadm -A {} {treatment}", At(at)),
            Op::AddEndpoint(at, to) => endpoint(f, 'a', at, to, WEIGHT),
            Op::AddAddress(ip) => write!(f, "ip address add {} dev {DEVICE}", Host(*ip)),
            Op::ChangeServer(at, treatment) => write!(f, "ipvsadm -E {} {treatment}", At(at)),
            Op::Revive(at, to) => endpoint(f, 'e', at, to, WEIGHT),
            Op::Drain(at, to) => endpoint(f, 'e', at, to, 0),
            Op::RemoveEndpoint(at, to) => write!(f, "ipvsadm -d {} -r {to}", At(at)),
            Op::RemoveAddress(ip) => write!(f, "ip address del {} dev {DEVICE}", Host(*ip)),
            Op::RemoveServer(at) => write!(f, "ipvsadm -D {}", At(at)),
            Op::Unguard(at) => write!(f, "{} -D {OUT_FILTER} {}", tool(at.family()), guard(at)),
            Op::RemoveMember(name, member) => write!(f, "ipset del {name} {member}"),
            Op::RemoveDevice => write!(f, "ip link del {DEVICE}"),
            Op::DestroySet(name) => write!(f, "ipset destroy {name}"),
        }
    }
}

/// `-s rr -p 10800`
impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-s {}", self.scheduler)?;
        if let Some(seconds) = self.persistence {
            write!(f, " -p {seconds}")?;
        }
        if self.flags & HASHES_PORT != 0 {
            write!(f, " -b {}-port", self.scheduler)?;
        }
        Ok(())
    }
}

/// `-t 10.96.0.80:80`
struct At<'a>(&'a Address);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = match self.0.protocol {
            Protocol::Tcp => "-t",
            Protocol::Udp => "-u",
            Protocol::Sctp => "--sctp-service",
        };
        write!(f, "{option} {}", SocketAddr::new(self.0.ip, self.0.port))
    }
}

struct Host(IpAddr);

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0, if self.0.is_ipv4() { 32 } else { 128 })
    }
}

struct Create(SetName, u32);

impl fmt::Display for Create {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Create(name, capacity) = self;
        let kind = name.set.kind();
        write!(f, "create {name} {}", kind.type_name())?;
        match (kind, name.family) {
            (Kind::Port, _) => write!(f, " range 0-65535"),
            (_, Family::V4) => write!(f, " family inet hashsize 1024 maxelem {capacity}"),
            (_, Family::V6) => write!(f, " family inet6 hashsize 1024 maxelem {capacity}"),
        }
    }
}
