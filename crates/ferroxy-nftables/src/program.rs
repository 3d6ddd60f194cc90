//! The constant program: the chains and sets that are there whatever Services exist.
//!
//! ```text
//!   prerouting, output  -110   firewall ─────────── source ranges: drop
//!   prerouting, output  -100   services ─┬─ frontends ──┐ cluster IPs, external and load-balancer IPs
//!                                        └─ nodeports ──┤ node ports (the same again, prefixed "nodeport-")
//!            ┌──────────────────────────────────────────┘
//!            ├─▶ pick-N                        one of N endpoints          (cluster IPs)
//!            ├─▶ external       ─▶ picks ──▶ pick-N                        (policy Cluster: masquerade)
//!            ├─▶ external-local ─┬▶ short-cut ─▶ picks ──▶ pick-N          (pods, this host)
//!            │                   └▶ local-picks ──▶ local-pick-N           (policy Local: everybody else)
//!            └─▶ sticky…: the same three with session affinity
//!   input, postrouting         learn ────────────── session affinity: who went where
//!   input, forward, output  0  no-endpoints ─────── reject or drop what found no endpoint
//!   forward, output         0  cluster-ips-check ── unused ports: reject; unallocated addresses: drop
//!   postrouting            100 masquerading ─────── marked packets, and pods that reached themselves
//! ```
//!
//! A Service is elements of the maps named here; `render.rs` writes them. The only chains that come and go are
//! `pick-N` (one for each *number* of endpoints in use) and, while a Service has affinity, `sticky…`, `learn-T` and
//! `to-P` (one for each timeout and each endpoint port in use).
//!
//! **Session affinity.** A client's endpoint address is learnt after translation (`learn`), where the packet's own
//! destination is the endpoint and `ct original` the frontend. A new connection of a known client gets that
//! address written into the packet (`ip daddr set … map @affinity jump recall`), and then only `sticky-endpoints`, which
//! holds a frontend's endpoints of this moment, lets it be translated to that address (`to-P`, with the endpoint's
//! port). So an endpoint that has left gets no new connection from the commit that removed it, with no clean-up of
//! client entries: the stale one is deleted by the first packet that meets it, the destination is put back, and
//! the packet goes on to a fresh pick. The header field serves as the register that nft's language does not give
//! us; why not one map lookup for address and port: with IPv6 keys `nft -f` runs out of registers and aborts (1.0.6).

use ferroxy_core::intent::{FamilyIntent, LocalDetector, NodePortAddresses};
use ferroxy_core::{Family, NodeIntent, Protocol};
use ferroxy_netlink::nftables::{ChainType, Datatype, Hook, HookPoint, Set, SetData};

use crate::element::{ChainId, Scope, SetId};
use crate::rule::{Field, Rule, RuleWriter, frontend_fields, original_frontend_fields};
use crate::state::Chain;

/// How many clients' affinity one scope remembers; beyond that a client is balanced like any other.
const AFFINITY_CLIENTS: u32 = 524_288;

/// The sets, empty.
pub fn sets(family: Family) -> Vec<Set> {
    SetId::all().map(|set| declaration(set, family)).collect()
}

/// The chains that are always there, in the order of the listing.
pub fn chains(node: &NodeIntent, family: Family) -> Vec<(String, Chain)> {
    let program = Program { node, intent: node.family(family), family };
    let mut chains = program.base_chains();
    chains.extend(program.checks());
    chains.push(("services".into(), program.services()));
    for scope in Scope::ALL {
        chains.extend(program.treatments(scope));
    }
    chains.push(("learn".into(), program.learn()));
    chains.push(("masquerading".into(), program.masquerading()));
    chains
}

/// A chain that exists while something leads to it.
pub fn on_demand_chain(chain: ChainId, node: &NodeIntent, family: Family) -> Chain {
    let program = Program { node, intent: node.family(family), family };
    let rule = || program.rule();
    // nft knows what a port is only when the rule names the protocol: hence one rule for each.
    let for_each_protocol = |rule: &dyn Fn(RuleWriter) -> RuleWriter| -> Vec<Rule> {
        Protocol::ALL.map(|protocol| rule(program.rule().protocol(protocol)).done()).into()
    };
    Chain::plain(match chain {
        ChainId::Pick(scope, count) => vec![rule().pick(count, false, scope).done()],
        ChainId::LocalPick(scope, count) => vec![rule().pick(count, true, scope).done()],
        ChainId::Learn(scope, seconds) => {
            let mut client = vec![Field::OriginalSaddr];
            client.extend_from_slice(original_frontend_fields(scope));
            for_each_protocol(&|rule| rule.remember(&client, SetId::Affinity(scope), seconds))
        }
        ChainId::To(port) => for_each_protocol(&|rule| rule.translate_to_port(port)),
        ChainId::Recall(scope) => program.recall(scope, SetId::StickyEndpoints(scope)),
        ChainId::RecallLocal(scope) => program.recall(scope, SetId::StickyLocalEndpoints(scope)),
        ChainId::Sticky(scope) => program.sticky(scope, ChainId::Recall(scope), SetId::Picks(scope)),
        ChainId::StickyLocal(scope) => {
            program.sticky(scope, ChainId::RecallLocal(scope), SetId::LocalPicks(scope))
        }
        ChainId::StickyExternal(scope) => {
            vec![rule().set_mark(node.masquerade_mark).done(), rule().goto(ChainId::Sticky(scope)).done()]
        }
        ChainId::StickyExternalLocal(scope) => {
            let mut rules = program.near_sources(ChainId::Sticky(scope));
            rules.push(rule().goto(ChainId::StickyLocal(scope)).done());
            rules
        }
        ChainId::Reject | ChainId::External(_) | ChainId::ExternalLocal(_) | ChainId::ShortCut(_) => Vec::new(),
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
        let learn = || self.rule().is_translated().jump("learn").done();
        let base = |name: &str, kind, point, priority, rules| {
            (name.to_string(), Chain { hook: Some(Hook { kind, point, priority }), rules, comment: None })
        };
        let checks = || vec![new("no-endpoints-check"), new("cluster-ips-check")];
        vec![
            base("pre-dnat-prerouting", Filter, Prerouting, -110, vec![new("firewall")]),
            base("pre-dnat-output", Filter, Output, -110, vec![new("firewall")]),
            base("nat-prerouting", Nat, Prerouting, -100, vec![all("services")]),
            base("nat-output", Nat, Output, -100, vec![all("services")]),
            base(
                "filter-input",
                Filter,
                Input,
                0,
                vec![new("nodeport-no-endpoints-check"), new("no-endpoints-check")],
            ),
            base("filter-forward", Filter, Forward, 0, checks()),
            base("filter-output", Filter, Output, 0, checks()),
            base("nat-input", Nat, Input, 100, vec![learn()]),
            base("nat-postrouting", Nat, Postrouting, 100, vec![learn(), all("masquerading")]),
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
        let no_endpoints = vec![self.rule().dispatch(frontend, SetId::NoEndpoints(Scope::Address)).done()];
        let nodeport_no_endpoints = vec![
            self.to_node_port()
                .dispatch(frontend_fields(Scope::NodePort), SetId::NoEndpoints(Scope::NodePort))
                .done(),
        ];
        let mut cluster_ips = vec![
            self.rule()
                .is_in(&[Field::Daddr], SetId::ClusterIps)
                .reject()
                .done_with("a port no Service has on this cluster IP"),
        ];
        for cidr in &self.intent.service_cidrs {
            let rule = self.rule().address_in(Field::Daddr, *cidr).drop();
            cluster_ips.push(rule.done_with("a cluster IP no Service has"));
        }
        let reject = vec![self.rule().reject().done()];
        [
            ("firewall", firewall),
            ("no-endpoints-check", no_endpoints),
            ("nodeport-no-endpoints-check", nodeport_no_endpoints),
            ("cluster-ips-check", cluster_ips),
            ("rejected", reject),
        ]
        .map(|(name, rules)| (name.to_string(), Chain::plain(rules)))
        .into()
    }

    fn services(&self) -> Chain {
        let to_cluster_ip = || self.rule().is_in(&[Field::Daddr], SetId::ClusterIps);
        let mark = self.node.masquerade_mark;
        let mut rules = Vec::new();
        if self.node.masquerade_all {
            rules.push(to_cluster_ip().set_mark(mark).done_with("masquerade all cluster IP traffic"));
        } else if let Some(detector) = &self.intent.local_detector {
            let outside = not_from_pod(to_cluster_ip(), detector).set_mark(mark);
            rules.push(outside.done_with("masquerade cluster IP traffic that no pod sent"));
        }
        let by_address = frontend_fields(Scope::Address);
        rules.push(self.rule().dispatch(by_address, SetId::Frontends(Scope::Address)).done());
        let by_port = frontend_fields(Scope::NodePort);
        rules.push(self.to_node_port().dispatch(by_port, SetId::Frontends(Scope::NodePort)).done());
        Chain::plain(rules)
    }

    /// The kinds of treatment a frontend's element can ask for, besides the sticky ones.
    fn treatments(&self, scope: Scope) -> Vec<(String, Chain)> {
        let key = frontend_fields(scope);
        let pick = || self.rule().dispatch(key, SetId::Picks(scope)).done();
        let masquerade = self.rule().set_mark(self.node.masquerade_mark).done();
        let mut external_local = self.near_sources(ChainId::ShortCut(scope));
        external_local.push(self.rule().dispatch(key, SetId::LocalPicks(scope)).done());
        [
            (ChainId::External(scope), vec![masquerade, pick()]),
            (ChainId::ShortCut(scope), vec![pick()]),
            (ChainId::ExternalLocal(scope), external_local),
        ]
        .map(|(chain, rules)| (chain.to_string(), Chain::plain(rules)))
        .into()
    }

    /// Policy Local does not bind those inside: pods go on as they are, this host masqueraded.
    fn near_sources(&self, chain: ChainId) -> Vec<Rule> {
        let mut rules = Vec::new();
        if let Some(detector) = &self.intent.local_detector {
            rules.push(from_pod(self.rule(), detector).goto(chain).done_with("pods may go anywhere"));
        }
        let from_host = || self.rule().is_local(Field::Saddr);
        rules.push(from_host().set_mark(self.node.masquerade_mark).done());
        rules.push(from_host().goto(chain).done_with("this host may go anywhere"));
        rules
    }

    /// Known clients are recalled; unknown ones, and those whose endpoint has left, go to a pick.
    fn sticky(&self, scope: Scope, recall: ChainId, picks: SetId) -> Vec<Rule> {
        let known = self.rule().put_destination_from(&client_fields(scope), SetId::Affinity(scope));
        vec![
            known.jump(&recall.to_string()).done(),
            self.rule().dispatch(frontend_fields(scope), picks).done(),
        ]
    }

    /// The destination in the packet is the remembered endpoint now, and the frontend's is in `ct original`. If it is
    /// no endpoint of the frontend any more, all is put back as it was.
    fn recall(&self, scope: Scope, endpoints: SetId) -> Vec<Rule> {
        let remembered: &[Field] = match scope {
            Scope::Address => &[Field::OriginalDaddr, Field::L4proto, Field::Dport, Field::Daddr],
            Scope::NodePort => &[Field::L4proto, Field::Dport, Field::Daddr],
        };
        vec![
            self.rule().dispatch(remembered, endpoints).done(),
            self.rule().restore_destination().done(),
            self.rule().forget(&client_fields(scope), SetId::Affinity(scope)).done(),
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
        let all = Scope::ALL.into_iter().flat_map(|scope| Protocol::ALL.map(|protocol| rule(scope, protocol)));
        Chain::plain(all.collect())
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

/// What a client's endpoint is remembered by.
fn client_fields(scope: Scope) -> Vec<Field> {
    [&[Field::Saddr], frontend_fields(scope)].concat()
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

fn declaration(set: SetId, family: Family) -> Set {
    use Datatype::{InetProto, InetService, Integer32};
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
        SetId::Frontends(scope) => (frontend(scope), verdict(), "how a Service is treated"),
        SetId::NoEndpoints(scope) => (frontend(scope), verdict(), "frontends that lead nowhere"),
        SetId::Picks(scope) => (frontend(scope), verdict(), "how many endpoints there are to pick from"),
        SetId::LocalPicks(scope) => (frontend(scope), verdict(), "how many of them are on this node"),
        SetId::Endpoints(scope) => (around(&[Integer32], scope, &[]), endpoint(), "slot, frontend : endpoint"),
        SetId::StickyEndpoints(scope) | SetId::StickyLocalEndpoints(scope) => {
            (around(&[], scope, &[address]), verdict(), "endpoints a client may stick to")
        }
        SetId::AffinityTimeouts(scope) => (frontend(scope), verdict(), "frontends with session affinity"),
        SetId::Affinity(scope) => {
            (around(&[address], scope, &[]), Some(SetData::Value(vec![address])), "client, frontend : endpoint")
        }
    };
    Set {
        name: set.name().into(),
        key,
        data,
        interval: set == SetId::AllowedSources,
        dynamic: set.is_runtime(),
        timeout_ms: None,
        size: set.is_runtime().then_some(AFFINITY_CLIENTS),
        comment: Some(comment.into()),
    }
}
