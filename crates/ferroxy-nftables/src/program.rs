//! The constant program: the chains and sets that exist whatever Services there are.
//!
//! ```text
//!   prerouting, output  -110   firewall ────────── source ranges: drop
//!   prerouting, output  -100   services ─┬─ frontends ─┐ cluster IPs, external and load-balancer IPs
//!                                        ├─ sole-endpoints: cluster IPs with one endpoint, translated at once
//!                                        └─ nodeports ─┤ node ports (the same again, prefixed "nodeport-")
//!                                          treatments ◀┘ the number of a treatment : its chain
//!            ┌─────────────────────────────────┘
//!            ├─▶ pick-N-in-P                          one of N endpoints        (cluster IPs)
//!            ├─▶ external-N-in-P       ─▶ pick-N-in-P                           (policy Cluster: masquerade)
//!            ├─▶ external-local-N-in-P ─┬▶ pick-N-in-P                          (policy Local: pods, this host)
//!            │                          └▶ local-frontends ─▶ local-pick-M-in-P (policy Local: all other clients)
//!            └─▶ sticky…: the same with session affinity
//!   input, postrouting      0  learn ───────────── session affinity: remembers which client got which endpoint
//!   input, postrouting      0  traffic ─────────── counts for each frontend and endpoint, if enabled
//!   forward, output         0  unserved ────────── untranslated packets that need an answer: frontends without
//!   input                   0  unserved-here       endpoints, unused ports, unallocated cluster IPs: reject or drop
//!   postrouting            100 masquerading ────── marked packets, and pods that reached themselves
//! ```
//!
//! A Service consists of elements of these maps and sets; `render.rs` creates them. Chains that come and go: one for each
//! treatment, *number* of endpoints and part in use, and for session affinity one for each timeout and endpoint port in use.
//!
//! **Endpoints are in eight maps.** The part of a frontend (P) is a hash of its key; its endpoints are in `endpoints-P`. `part.rs` says
//! why. It costs packets nothing: the number of the treatment, which they look up anyway, contains the part.
//!
//! **The packet's priority is our register.** The obvious form is a verdict map, `frontend : goto pick-2-in-5`. But the kernel
//! validates a table from its hooks down, every element of every reachable verdict map, whenever an element with a `goto` is
//! added: with 44,000 Services one endpoint change took 6 ms instead of 30 µs (Linux 6.18). So the map of frontends holds
//! plain data, the number of a treatment (`1501:2`), and a second, tiny map leads from numbers to chains. The kernel could use the
//! result of one lookup as the key of the next, but `nft` has no syntax for that. It can write the number into the packet's
//! priority and look that up, which costs next to nothing (the address, which we used before, has checksums). The number is
//! not visible elsewhere: all of this happens within one hook, for the first packet of a connection, and every way out of it
//! clears the number. What gets lost is the priority that this first packet had (`SO_PRIORITY` of a local sender; forwarded
//! IPv4 packets get a new one from their TOS anyway).
//!
//! **One endpoint needs no pick.** Many Services have one endpoint. Their cluster IPs are in `sole-endpoints` only: two lookups
//! instead of three, one of which misses, and one element instead of two.
//!
//! **A commit can happen between two lookups.** A commit is atomic, but each lookup sees the elements of its own moment: a
//! packet can find a frontend with three endpoints and then only two of them. Hence the rules whose comment says so. And
//! pods that are no longer endpoints stay in `hairpins` until the next tidying, for packets that are already on their way.
//!
//! **Translated packets skip the checks.** The checks after translation are for packets that found no endpoint. For all others
//! they would cost more than everything else that happens there.
//!
//! **Session affinity** belongs to a Service port: a client has the same endpoint at its cluster IP, node port, external and
//! load-balancer IPs, as in kube-proxy. `sticky-ports` has the number of a frontend's Service port, which goes through the
//! priority, too. The destination address is used in the same way. The endpoint address of a client is learnt after
//! translation (`learn`; only for addresses of endpoints with affinity), where the packet's destination is the endpoint. A new
//! connection of a known client gets that address written into the packet (`ip daddr set … map @affinity jump recall`), and
//! then only `sticky-endpoints`, which has the current endpoints of a frontend, allows the translation to that address (`to-P`,
//! with the endpoint's port). So an endpoint that left gets no new connection from the commit that removed it, and client
//! entries need no cleanup: the first packet that meets a stale one deletes it, gets its own destination back, and goes on to
//! a fresh pick. (One map with address and port does not work: `nft -f` 1.0.6 runs out of registers and aborts when it loads
//! such IPv6 rules.)

mod sets;
mod treatments;

pub use sets::{TRAFFIC_ENTRIES, declaration, key_types};

use ferroxy_core::intent::{FamilyIntent, LocalDetector, NodePortAddresses};
use ferroxy_core::{Family, NodeIntent, Protocol};
use ferroxy_netlink::nftables::{ChainType, CtDirection, Hook, HookPoint, Set};

use crate::chain::{ChainId, Pool};
use crate::element::{Counted, Element, Key, Scope, SetId, member};
use crate::rule::{FLOW_FIELDS, Field, Rule, RuleWriter, frontend_fields, original_frontend_fields};
use crate::settings::Settings;
use crate::state::Chain;

const TRAFFIC: &str = "traffic";

/// The program for one family, with the parameters that it depends on.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    node: &'a NodeIntent,
    settings: &'a Settings,
    intent: &'a FamilyIntent,
    family: Family,
}

impl<'a> Program<'a> {
    pub fn new(node: &'a NodeIntent, settings: &'a Settings, family: Family) -> Program<'a> {
        Program { node, settings, intent: node.family(family), family }
    }
}

impl Program<'_> {
    /// The sets, empty.
    pub fn sets(&self) -> Vec<Set> {
        let wanted = |set: &SetId| self.node.count_traffic || !matches!(set, SetId::Traffic(_));
        SetId::all().filter(wanted).map(|set| declaration(set, self.family)).collect()
    }

    /// The chains that always exist, in the order of the listing.
    pub fn chains(&self) -> Vec<(String, Chain)> {
        let mut chains = self.base_chains();
        chains.extend(self.checks());
        chains.push(("services".into(), self.services()));
        chains.push(("learn".into(), self.learn()));
        chains.push(("masquerading".into(), self.masquerading()));
        if self.node.count_traffic {
            chains.push((TRAFFIC.into(), self.traffic()));
        }
        chains
    }

    /// A chain that exists only while an element or another chain refers to it.
    pub fn on_demand_chain(&self, chain: ChainId) -> Chain {
        // nft prints a port only where the rule matches the protocol: hence one rule for each.
        let for_each_protocol = |rule: &dyn Fn(RuleWriter) -> RuleWriter| -> Vec<Rule> {
            Protocol::ALL.map(|protocol| rule(self.rule().protocol(protocol)).done()).into()
        };
        Chain::plain(match chain {
            ChainId::Treat(treatment) => self.treat(treatment),
            ChainId::Recall(scope, pool) => self.recall(scope, pool),
            ChainId::Learn(scope, seconds) => for_each_protocol(&|rule| {
                rule.put_priority_from(original_frontend_fields(scope), SetId::StickyPorts(scope))
                    .remember(&[Field::OriginalSaddr, Field::Priority], SetId::Affinity, seconds)
                    .clear_priority()
            }),
            ChainId::To(port) => for_each_protocol(&|rule| rule.clear_priority().translate_to_port(port)),
        })
    }

    /// The elements that belong to the node and not to a Service.
    pub fn elements(&self) -> impl Iterator<Item = Element> + use<> {
        let addresses = match &self.intent.node_port_addresses {
            NodePortAddresses::These(addresses) => addresses.iter().copied().collect(),
            NodePortAddresses::AllLocal => Vec::new(),
        };
        addresses.into_iter().map(|address| member(SetId::NodePortIps, Key::EMPTY.address(address)))
    }

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
            // Every packet that is not dropped passes one of these hooks. Packets from this host to itself pass both.
            input.push(self.rule().interface_not("lo").is_translated().jump(TRAFFIC).done());
            postrouting.push(self.rule().is_translated().jump(TRAFFIC).done());
        }
        let output = |rule| self.skipping_the_proxy().into_iter().chain([rule]).collect();
        vec![
            base("pre-dnat-prerouting", Filter, Prerouting, -110, vec![new("firewall")]),
            base("pre-dnat-output", Filter, Output, -110, output(new("firewall"))),
            base("nat-prerouting", Nat, Prerouting, -100, vec![all("services")]),
            base("nat-output", Nat, Output, -100, output(all("services"))),
            base("filter-input", Filter, Input, 0, input),
            base("filter-forward", Filter, Forward, 0, vec![unserved("unserved")]),
            base("filter-output", Filter, Output, 0, output(unserved("unserved"))),
            // No nat chain: the kernel skips those once a nat chain of another table has translated the source.
            base("filter-postrouting", Filter, Postrouting, 0, postrouting),
            base("nat-postrouting", Nat, Postrouting, 100, vec![all("masquerading")]),
        ]
    }

    /// Chains that drop or reject: before translation (source ranges) and after it (packets that nothing translated).
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
            .node_port_rule()
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
        let mut unserved = Vec::new();
        if self.settings.proxy.is_some_and(|proxy| proxy.binds) {
            let here = self.rule().is_local(Field::Daddr).leave();
            unserved.push(here.done_with("the proxy listens on cluster IPs"));
        }
        unserved.extend([
            no_endpoints(),
            self.rule()
                .is_in(&[Field::Daddr], SetId::ClusterIps)
                .reject()
                .done_with("a port no Service has on this cluster IP"),
        ]);
        for cidr in &self.intent.service_cidrs {
            let rule = self.rule().address_in(Field::Daddr, *cidr).drop();
            unserved.push(rule.done_with("a cluster IP no Service has"));
        }
        let mut unserved_here = vec![nodeport_no_endpoints, no_endpoints()];
        if let Some(proxy) = &self.settings.proxy {
            let address = proxy.address(self.family).into();
            let rule = self.rule().address_in(Field::Daddr, address).drop();
            unserved_here.push(rule.done_with("only translated connections reach the proxy's address"));
        }
        [
            ("firewall", firewall),
            ("unserved", unserved),
            ("unserved-here", unserved_here),
            ("no-endpoints", refuse(frontend, Scope::Address)),
            ("nodeport-no-endpoints", refuse(by_port, Scope::NodePort)),
        ]
        .map(|(name, rules)| (name.to_string(), Chain::plain(rules)))
        .into()
    }

    fn services(&self) -> Chain {
        let to_cluster_ip = |rule: RuleWriter| rule.is_in(&[Field::Daddr], SetId::ClusterIps);
        let mark = self.settings.masquerade_mark;
        let mut rules = Vec::new();
        if self.node.masquerade_all {
            let all = to_cluster_ip(self.translated_here()).set_mark(mark);
            rules.push(all.done_with("masquerade all cluster IP traffic"));
        } else if let Some(detector) = &self.intent.local_detector {
            // The source is compared first: for packets of pods, which are most, the rule ends there.
            let outside = to_cluster_ip(not_from_pod(self.translated_here(), detector)).set_mark(mark);
            rules.push(outside.done_with("masquerade cluster IP traffic that no pod sent"));
        }
        let by_address = frontend_fields(Scope::Address);
        let treat = |rule: RuleWriter, key, scope| {
            rule.treat(key, SetId::Frontends(scope), SetId::Treatments(Pool::Main))
        };
        rules.push(treat(self.rule(), by_address, Scope::Address).done());
        rules.push(self.sole_endpoint_rule().done());
        rules
            .push(treat(self.rule(), by_address, Scope::Address).done_with("endpoints were added meanwhile"));
        rules.push(treat(self.node_port_rule(), frontend_fields(Scope::NodePort), Scope::NodePort).done());
        Chain::plain(rules)
    }

    /// Finds the affinity timeout of the connection's frontend.
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

    /// Counts translated packets by frontend and endpoint. Packets that others translated are counted, too: the reader knows the
    /// Services, and a check here would cost every packet more than the count.
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
        let mark = self.settings.masquerade_mark;
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

    fn node_port_rule(&self) -> RuleWriter {
        match &self.intent.node_port_addresses {
            NodePortAddresses::These(_) => self.rule().is_in(&[Field::Daddr], SetId::NodePortIps),
            NodePortAddresses::AllLocal => {
                self.rule().is_local(Field::Daddr).address_not_in(Field::Daddr, loopback(self.family))
            }
        }
    }

    /// The proxy's own connections go where it sends them: an endpoint can be an address that rules translate.
    fn skipping_the_proxy(&self) -> Option<Rule> {
        let proxy = self.settings.proxy?;
        Some(self.rule().has_mark(proxy.mark).leave().done_with("from the proxy itself"))
    }

    /// A rule about packets that are translated to endpoints, and may need masquerading. With a proxy that is SCTP only:
    /// all else ends on this host.
    fn translated_here(&self) -> RuleWriter {
        match self.settings.proxy {
            Some(_) => self.rule().protocol(Protocol::Sctp),
            None => self.rule(),
        }
    }

    fn rule(&self) -> RuleWriter {
        RuleWriter::new(self.family)
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
