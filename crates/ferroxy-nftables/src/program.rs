//! The constant program: the chains and sets that are there whatever Services exist.
//!
//! ```text
//!   prerouting, output  -110   firewall ────────── source ranges: drop
//!   prerouting, output  -100   services ─┬─ frontends ─┐ cluster IPs, external and load-balancer IPs
//!                                        ├─ sole-endpoints: cluster IPs with one endpoint, at once there
//!                                        └─ nodeports ─┤ node ports (the same again, prefixed "nodeport-")
//!                                          treatments ◀┘ the number of a treatment : its chain
//!            ┌─────────────────────────────────┘
//!            ├─▶ pick-N                          one of N endpoints        (cluster IPs)
//!            ├─▶ external-N       ─▶ pick-N                                (policy Cluster: masquerade)
//!            ├─▶ external-local-N ─┬▶ pick-N                               (policy Local: pods, this host)
//!            │                     └▶ local-frontends ─▶ local-pick-M      (policy Local: everybody else)
//!            └─▶ sticky…: the same with session affinity
//!   input, postrouting      0  learn ───────────── session affinity: who went where
//!   input, postrouting      0  traffic ─────────── counts, for each frontend and endpoint, if asked for
//!   forward, output         0  unserved ────────── what was not translated and should have been: frontends without
//!   input                   0  unserved-here       endpoints, unused ports, unallocated cluster IPs: reject or drop
//!   postrouting            100 masquerading ────── marked packets, and pods that reached themselves
//! ```
//!
//! A Service is elements of the maps named here; `render.rs` writes them. Chains that come and go: one for each
//! treatment and *number* of endpoints in use, and for affinity one for each timeout and endpoint port in use.
//!
//! **The packet's priority is our register.** The obvious form is a verdict map, `frontend : goto pick-2`. But the
//! kernel validates a table from its hooks down, every element of every reachable verdict map, whenever an element
//! with a `goto` is added: at 44,000 Services that made one endpoint change 6 ms instead of 30 µs (Linux 6.18). So
//! the map of frontends holds plain data, the number of a treatment (`1:2`), and a second, tiny map leads from numbers
//! to chains. The kernel could look up one with what the other said, but `nft` has no words for that; it has for
//! writing the number into the packet's priority and looking that up, which costs next to nothing (an address, which
//! we used before, has checksums). Nobody else sees the number: all of it happens within one hook, for the first packet
//! of a connection, and whoever leaves, translated or not, takes it out. What it costs is the priority that this first
//! packet came with (`SO_PRIORITY` of a local sender; what is forwarded gets a new one from its TOS anyway, in IPv4).
//!
//! **One endpoint is nothing to pick.** Many Services have one; their cluster IPs are in `sole-endpoints` and nowhere
//! else: two lookups instead of three, one of which misses, and one element instead of two.
//!
//! **A change can come between two lookups.** A commit is one moment, but each lookup sees the elements of its own moment,
//! so a packet can find a frontend with three endpoints and then two of them. Hence the rules marked "by now"; and pods
//! that are endpoints no longer stay in `hairpins` until it is tidied: a packet on its way to one will be asked there.
//!
//! **What is translated is not asked again.** The checks behind translation are for packets that found no endpoint; for
//! those that did they would cost more than all else we do behind it.
//!
//! **Session affinity** uses the destination address in the same way. A client's endpoint address is learnt after
//! translation (`learn`; asked only for the addresses of such endpoints), where the packet's own destination is the
//! endpoint. A new connection of a known client gets that address written into the packet (`ip daddr set … map
//! @affinity jump recall`), and then only `sticky-endpoints`, which holds a frontend's endpoints of this moment, lets
//! it be translated to that address (`to-P`, with the endpoint's port). So an endpoint that has left gets no new
//! connection from the commit that removed it, with no clean-up of client entries: the stale one is deleted by the
//! first packet that meets it, which gets its own destination back and goes on to a fresh pick. (Not one map with
//! address and port: loading such IPv6 rules, `nft -f` 1.0.6 runs out of registers and aborts.)

use ferroxy_core::intent::{FamilyIntent, LocalDetector, NodePortAddresses};
use ferroxy_core::{Family, NodeIntent, Protocol};
use ferroxy_netlink::nftables::{ChainType, CtDirection, Datatype, Hook, HookPoint, Set, SetData};

use crate::chain::{ChainId, Kind, Pool, Treatment};
use crate::element::{Counted, Scope, SetId};
use crate::rule::{
    FLOW_FIELDS, Field, Rule, RuleWriter, frontend_fields, original_frontend_fields, recalled_frontend_fields,
};
use crate::state::Chain;

const TRAFFIC: &str = "traffic";

/// How many clients' affinity one scope remembers; beyond that a client is balanced like any other.
const AFFINITY_CLIENTS: u32 = 524_288;

/// How many pairs of frontend and endpoint are counted at once; what comes beyond is not counted.
pub const TRAFFIC_ENTRIES: u32 = 65_536;

/// How long one that is no longer used is remembered: so that those of departed endpoints make room, and long enough
/// for every reader of metrics to have seen the last of it.
const TRAFFIC_MEMORY_MS: u64 = 3_600_000;

/// The sets, empty.
pub fn sets(node: &NodeIntent, family: Family) -> Vec<Set> {
    let wanted = |set: &SetId| node.count_traffic || !matches!(set, SetId::Traffic(_));
    SetId::all().filter(wanted).map(|set| declaration(set, family)).collect()
}

/// The chains that are always there, in the order of the listing.
pub fn chains(node: &NodeIntent, family: Family) -> Vec<(String, Chain)> {
    let program = Program { node, intent: node.family(family), family };
    let mut chains = program.base_chains();
    chains.extend(program.checks());
    chains.push(("services".into(), program.services()));
    chains.push(("learn".into(), program.learn()));
    chains.push(("masquerading".into(), program.masquerading()));
    if node.count_traffic {
        chains.push((TRAFFIC.into(), program.traffic()));
    }
    chains
}

/// A chain that exists while something leads to it.
pub fn on_demand_chain(chain: ChainId, node: &NodeIntent, family: Family) -> Chain {
    let program = Program { node, intent: node.family(family), family };
    // nft knows what a port is only when the rule names the protocol: hence one rule for each.
    let for_each_protocol = |rule: &dyn Fn(RuleWriter) -> RuleWriter| -> Vec<Rule> {
        Protocol::ALL.map(|protocol| rule(program.rule().protocol(protocol)).done()).into()
    };
    Chain::plain(match chain {
        ChainId::Treat(treatment) => program.treat(treatment),
        ChainId::Recall(scope, pool) => program.recall(scope, pool),
        ChainId::Learn(scope, seconds) => {
            let client = [&[Field::OriginalSaddr], original_frontend_fields(scope)].concat();
            for_each_protocol(&|rule| rule.remember(&client, SetId::Affinity(scope), seconds))
        }
        ChainId::To(port) => for_each_protocol(&|rule| rule.clear_priority().translate_to_port(port)),
    })
}

/// What the fields of a set's keys are.
pub fn key_types(set: SetId, family: Family) -> Vec<Datatype> {
    declaration(set, family).key
}

struct Program<'a> {
    node: &'a NodeIntent,
    intent: &'a FamilyIntent,
    family: Family,
}

impl Program<'_> {
    fn base_chains(&self) -> Vec<(String, Chain)> {
        use ChainType::{Filter, Nat};
        use HookPoint::{Forward, Input, Output, Postrouting, Prerouting};
        let new = |chain: &str| self.rule().is_new().jump(chain).done();
        let all = |chain: &str| self.rule().jump(chain).done();
        let learn = || {
            let translated = self.rule().is_new().is_translated();
            translated.is_in(&[Field::Daddr], SetId::StickyAddresses).jump("learn").done()
        };
        let base = |name: &str, kind, point, priority, rules| {
            (name.to_string(), Chain { hook: Some(Hook { kind, point, priority }), rules, comment: None })
        };
        let unserved = |chain: &str| self.rule().is_new().is_untranslated().jump(chain).done();
        let mut input = vec![unserved("unserved-here"), learn()];
        let mut postrouting = vec![learn()];
        if self.node.count_traffic {
            // Every packet that leaves us alive passes one of these hooks. What this host sends itself passes both.
            input.push(self.rule().interface_not("lo").is_translated().jump(TRAFFIC).done());
            postrouting.push(self.rule().is_translated().jump(TRAFFIC).done());
        }
        vec![
            base("pre-dnat-prerouting", Filter, Prerouting, -110, vec![new("firewall")]),
            base("pre-dnat-output", Filter, Output, -110, vec![new("firewall")]),
            base("nat-prerouting", Nat, Prerouting, -100, vec![all("services")]),
            base("nat-output", Nat, Output, -100, vec![all("services")]),
            base("filter-input", Filter, Input, 0, input),
            base("filter-forward", Filter, Forward, 0, vec![unserved("unserved")]),
            base("filter-output", Filter, Output, 0, vec![unserved("unserved")]),
            // Not in a nat chain: the kernel leaves those out once another table's has decided on the source.
            base("filter-postrouting", Filter, Postrouting, 0, postrouting),
            base("nat-postrouting", Nat, Postrouting, 100, vec![all("masquerading")]),
        ]
    }

    /// What stops packets: before translation (firewall) and after it (nothing translated them).
    fn checks(&self) -> Vec<(String, Chain)> {
        let frontend = frontend_fields(Scope::Address);
        let mut with_source = frontend.to_vec();
        with_source.push(Field::Saddr);
        let firewall = vec![
            self.rule()
                .is_in(frontend, SetId::Firewalled)
                .is_not_in(&with_source, SetId::AllowedSources)
                .drop()
                .done_with("source not in loadBalancerSourceRanges"),
        ];
        let by_port = frontend_fields(Scope::NodePort);
        let no_endpoints =
            || self.rule().is_in(frontend, SetId::NoEndpoints(Scope::Address)).goto("no-endpoints").done();
        let nodeport_no_endpoints = self
            .to_node_port()
            .is_in(by_port, SetId::NoEndpoints(Scope::NodePort))
            .goto("nodeport-no-endpoints")
            .done();
        let refuse = |key, scope| {
            let elsewhere = self.rule().is_in(key, SetId::NoLocalEndpoints(scope)).drop();
            vec![
                elsewhere.done_with("policy Local, and all endpoints are elsewhere"),
                self.rule().reject().done(),
            ]
        };
        let mut unserved = vec![
            no_endpoints(),
            self.rule()
                .is_in(&[Field::Daddr], SetId::ClusterIps)
                .reject()
                .done_with("a port no Service has on this cluster IP"),
        ];
        for cidr in &self.intent.service_cidrs {
            let rule = self.rule().address_in(Field::Daddr, *cidr).drop();
            unserved.push(rule.done_with("a cluster IP no Service has"));
        }
        [
            ("firewall", firewall),
            ("unserved", unserved),
            ("unserved-here", vec![nodeport_no_endpoints, no_endpoints()]),
            ("no-endpoints", refuse(frontend, Scope::Address)),
            ("nodeport-no-endpoints", refuse(by_port, Scope::NodePort)),
        ]
        .map(|(name, rules)| (name.to_string(), Chain::plain(rules)))
        .into()
    }

    fn services(&self) -> Chain {
        let to_cluster_ip = |rule: RuleWriter| rule.is_in(&[Field::Daddr], SetId::ClusterIps);
        let mark = self.node.masquerade_mark;
        let mut rules = Vec::new();
        if self.node.masquerade_all {
            let all = to_cluster_ip(self.rule()).set_mark(mark);
            rules.push(all.done_with("masquerade all cluster IP traffic"));
        } else if let Some(detector) = &self.intent.local_detector {
            // Who sent it is asked first: for pods, which send the most, that is all.
            let outside = to_cluster_ip(not_from_pod(self.rule(), detector)).set_mark(mark);
            rules.push(outside.done_with("masquerade cluster IP traffic that no pod sent"));
        }
        let by_address = frontend_fields(Scope::Address);
        let treat = |rule: RuleWriter, key, scope| {
            rule.treat(key, SetId::Frontends(scope), SetId::Treatments(Pool::Main))
        };
        rules.push(treat(self.rule(), by_address, Scope::Address).done());
        rules.push(self.to_sole_endpoint().done());
        rules.push(treat(self.rule(), by_address, Scope::Address).done_with("several by now"));
        rules.push(treat(self.to_node_port(), frontend_fields(Scope::NodePort), Scope::NodePort).done());
        Chain::plain(rules)
    }

    fn treat(&self, treatment: Treatment) -> Vec<Rule> {
        let Treatment { kind, scope, count } = treatment;
        let masquerade = || self.rule().set_mark(self.node.masquerade_mark).done();
        let goto = |kind| self.rule().goto(&ChainId::Treat(treatment.with(kind)).to_string()).done();
        match kind {
            Kind::Pick(pool) => self.pick(count, pool, scope),
            Kind::External => vec![masquerade(), goto(Kind::Pick(Pool::Main))],
            Kind::ExternalLocal => self.near_or_local(treatment.with(Kind::Pick(Pool::Main))),
            Kind::Sticky(pool) => {
                let client = [&[Field::Saddr], frontend_fields(scope)].concat();
                let known = self.rule().put_destination_from(&client, SetId::Affinity(scope));
                let recall = ChainId::Recall(scope, pool).to_string();
                vec![known.jump(&recall).done(), goto(Kind::Pick(pool))]
            }
            Kind::StickyExternal => vec![masquerade(), goto(Kind::Sticky(Pool::Main))],
            Kind::StickyExternalLocal => self.near_or_local(treatment.with(Kind::Sticky(Pool::Main))),
        }
    }

    /// One of `count`; and if endpoints have left since the frontend was looked up, one that is there in any case.
    fn pick(&self, count: u16, pool: Pool, scope: Scope) -> Vec<Rule> {
        let mut rules = vec![self.rule().clear_priority().pick(count, pool, scope).done()];
        if count > 1 {
            rules.push(self.rule().pick(1, pool, scope).done_with("fewer by now"));
        }
        if (pool, scope) == (Pool::Main, Scope::Address) {
            rules.push(self.to_sole_endpoint().done_with("one by now"));
        }
        rules
    }

    fn to_sole_endpoint(&self) -> RuleWriter {
        self.rule().translate_to(frontend_fields(Scope::Address), SetId::SoleEndpoints)
    }

    /// Policy Local does not bind those inside: pods go on as they are, this host masqueraded. All others get the
    /// treatment for endpoints on this node; where there is none, the packet stays as it came and is dropped later.
    fn near_or_local(&self, near: Treatment) -> Vec<Rule> {
        let chain = ChainId::Treat(near).to_string();
        let mut rules = Vec::new();
        if let Some(detector) = &self.intent.local_detector {
            rules.push(from_pod(self.rule(), detector).goto(&chain).done_with("pods may go anywhere"));
        }
        let from_host = || self.rule().is_local(Field::Saddr);
        rules.push(from_host().set_mark(self.node.masquerade_mark).done());
        rules.push(from_host().goto(&chain).done_with("this host may go anywhere"));
        let (key, map) = (frontend_fields(near.scope), SetId::LocalFrontends(near.scope));
        rules.push(self.rule().treat(key, map, SetId::Treatments(Pool::Local)).done());
        rules.push(self.rule().clear_priority().done());
        rules
    }

    /// The destination in the packet is the remembered endpoint now. If it is no endpoint of the frontend any more,
    /// it is forgotten, and the pick that follows finds the packet as it came.
    fn recall(&self, scope: Scope, pool: Pool) -> Vec<Rule> {
        let endpoints = match pool {
            Pool::Main => SetId::StickyEndpoints(scope),
            Pool::Local => SetId::StickyLocalEndpoints(scope),
        };
        let frontend = recalled_frontend_fields(scope);
        let remembered = [frontend, &[Field::Daddr]].concat();
        let client = [&[Field::Saddr], frontend].concat();
        vec![
            self.rule().dispatch(&remembered, endpoints).done(),
            self.rule().forget(&client, SetId::Affinity(scope)).done(),
            self.rule().restore_destination().done(),
        ]
    }

    /// Which affinity timeout the frontend of this connection has, if any.
    fn learn(&self) -> Chain {
        let rule = |scope: Scope, protocol| {
            self.rule()
                .protocol(protocol)
                .dispatch(original_frontend_fields(scope), SetId::AffinityTimeouts(scope))
                .done()
        };
        let all =
            Scope::ALL.into_iter().flat_map(|scope| Protocol::ALL.map(|protocol| rule(scope, protocol)));
        Chain::plain(all.collect())
    }

    /// Translated packets, by frontend and endpoint. Somebody else's translations are counted with ours (whoever reads
    /// knows the Services): asking whose it is would cost every packet more than counting it does.
    fn traffic(&self) -> Chain {
        let count = |rule: RuleWriter, counted| rule.count(&FLOW_FIELDS, SetId::Traffic(counted)).done();
        let of = |protocol| {
            let rule = || self.rule().protocol(protocol);
            [
                count(rule().begins_connection(), Counted::Connections),
                count(rule().goes(CtDirection::Original), Counted::Received),
                count(rule().goes(CtDirection::Reply), Counted::Sent),
            ]
        };
        Chain::plain(Protocol::ALL.into_iter().flat_map(of).collect())
    }

    fn masquerading(&self) -> Chain {
        let mark = self.node.masquerade_mark;
        let hairpin = [Field::Saddr, Field::Daddr, Field::L4proto, Field::Dport];
        Chain::plain(vec![
            self.rule().has_mark(mark).flip_mark(mark).masquerade().done(),
            self.rule()
                .is_translated()
                .is_in(&hairpin, SetId::Hairpins)
                .masquerade()
                .done_with("a pod that reached itself"),
        ])
    }

    fn to_node_port(&self) -> RuleWriter {
        match &self.intent.node_port_addresses {
            NodePortAddresses::These(_) => self.rule().is_in(&[Field::Daddr], SetId::NodePortIps),
            NodePortAddresses::AllLocal => {
                self.rule().is_local(Field::Daddr).address_not_in(Field::Daddr, loopback(self.family))
            }
        }
    }

    fn rule(&self) -> RuleWriter {
        RuleWriter::new(self.family)
    }
}

fn from_pod(rule: RuleWriter, detector: &LocalDetector) -> RuleWriter {
    match detector {
        LocalDetector::SourceIn(net) => rule.address_in(Field::Saddr, *net),
        LocalDetector::Interface(name) => rule.interface(name),
        LocalDetector::InterfacePrefix(prefix) => rule.interface(&format!("{prefix}*")),
    }
}

fn not_from_pod(rule: RuleWriter, detector: &LocalDetector) -> RuleWriter {
    match detector {
        LocalDetector::SourceIn(net) => rule.address_not_in(Field::Saddr, *net),
        LocalDetector::Interface(name) => rule.interface_not(name),
        LocalDetector::InterfacePrefix(prefix) => rule.interface_not(&format!("{prefix}*")),
    }
}

fn loopback(family: Family) -> ipnet::IpNet {
    match family {
        Family::V4 => ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        Family::V6 => ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128).into(),
    }
}

/// A set as it must be.
pub fn declaration(set: SetId, family: Family) -> Set {
    use Datatype::{InetProto, InetService, Integer32, Priority};
    let address = match family {
        Family::V4 => Datatype::Ipv4Addr,
        Family::V6 => Datatype::Ipv6Addr,
    };
    let frontend = |scope: Scope| match scope {
        Scope::Address => vec![address, InetProto, InetService],
        Scope::NodePort => vec![InetProto, InetService],
    };
    let around = |before: &[Datatype], scope: Scope, after: &[Datatype]| {
        [before.to_vec(), frontend(scope), after.to_vec()].concat()
    };
    let endpoint = || Some(SetData::Value(vec![address, InetService]));
    let verdict = || Some(SetData::Verdict);
    let treatment = || Some(SetData::Value(vec![Priority]));
    let (key, data, comment) = match set {
        SetId::ClusterIps => (vec![address], None, "cluster IPs in use"),
        SetId::NodePortIps => (vec![address], None, "addresses of this host that answer on node ports"),
        SetId::Firewalled => (frontend(Scope::Address), None, "frontends with loadBalancerSourceRanges"),
        SetId::AllowedSources => {
            (around(&[], Scope::Address, &[address]), None, "who may use the firewalled frontends")
        }
        SetId::Hairpins => {
            (vec![address, address, InetProto, InetService], None, "pods here that are endpoints")
        }
        SetId::SoleEndpoints => (frontend(Scope::Address), endpoint(), "cluster IPs with one endpoint"),
        SetId::Treatments(_) => (vec![Priority], verdict(), "what a treatment's number stands for"),
        SetId::Frontends(scope) => (frontend(scope), treatment(), "how a Service is treated"),
        SetId::LocalFrontends(scope) => {
            (frontend(scope), treatment(), "and if endpoints must be on this node")
        }
        SetId::NoEndpoints(scope) => (frontend(scope), None, "frontends that lead nowhere"),
        SetId::NoLocalEndpoints(scope) => (frontend(scope), None, "those that do elsewhere"),
        SetId::Endpoints(scope) => {
            (around(&[Integer32], scope, &[]), endpoint(), "slot, frontend : endpoint")
        }
        SetId::StickyEndpoints(scope) | SetId::StickyLocalEndpoints(scope) => {
            (around(&[], scope, &[address]), verdict(), "endpoints a client may stick to")
        }
        SetId::AffinityTimeouts(scope) => (frontend(scope), verdict(), "frontends with session affinity"),
        SetId::StickyAddresses => (vec![address], None, "where clients may stick"),
        SetId::Affinity(scope) => (
            around(&[address], scope, &[]),
            Some(SetData::Value(vec![address])),
            "client, frontend : endpoint",
        ),
        SetId::Traffic(counted) => {
            let comment = match counted {
                Counted::Connections => "first packets, by frontend and endpoint",
                Counted::Received => "packets to endpoints",
                Counted::Sent => "packets from endpoints",
            };
            (vec![InetProto, address, InetService, address, InetService], None, comment)
        }
    };
    let (size, timeout_ms) = match set {
        SetId::Affinity(_) => (Some(AFFINITY_CLIENTS), None),
        SetId::Traffic(_) => (Some(TRAFFIC_ENTRIES), Some(TRAFFIC_MEMORY_MS)),
        _ => (None, None),
    };
    Set {
        name: set.name().into(),
        key,
        data,
        interval: set == SetId::AllowedSources,
        dynamic: set.is_runtime(),
        timeout_ms,
        size,
        comment: Some(comment.into()),
    }
}
