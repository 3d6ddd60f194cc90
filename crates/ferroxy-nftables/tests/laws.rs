//! Ring 0: laws that hold for every cluster, checked on random ones.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::testing::{Cluster, clusters, config, events, interesting_packets};
use ferroxy_core::{Facts, Family, Frontend, Intent, Packet, Verdict, oracle, resolve};
use ferroxy_dataplane::Change;
use ferroxy_netlink::nftables::Set;
use ferroxy_nftables::chain::Pool;
use ferroxy_nftables::diff::Unknown;
use ferroxy_nftables::element::{Key, Scope, SetId, Value};
use ferroxy_nftables::ledger::Ledger;
use ferroxy_nftables::part::Part;
use ferroxy_nftables::plan::{Action, Op};
use ferroxy_nftables::state::{Chain, Entry};
use ferroxy_nftables::{Plan, Settings, State, diff, interpret, trace};
use proptest::prelude::*;

/// Applies the Plan to the State as the kernel does, and fails where the kernel refuses.
fn carried_out(mut state: State, plan: &Plan) -> Result<State, TestCaseError> {
    for op in plan.ops() {
        state.apply(op).map_err(|refused| TestCaseError::fail(format!("{op}: {refused}")))?;
    }
    Ok(state)
}

fn render(intent: &Intent) -> State {
    ferroxy_nftables::render(intent, &Settings::default(), &Family::ALL)
}

fn rendered(cluster: &Cluster) -> State {
    render(&cluster.intent())
}

/// The changes between two Intents, as the agent passes them.
fn changes(before: &Intent, after: &Intent) -> Vec<Change> {
    let names: BTreeSet<_> = before.services.keys().chain(after.services.keys()).cloned().collect();
    let differs = |name: &_| before.services.get(name) != after.services.get(name);
    names.into_iter().filter(differs).map(|name| (name.clone(), after.services.get(&name).cloned())).collect()
}

/// What a State does to packets. Which slot an endpoint has does not matter.
fn meaning(intent: &Intent, state: &State) -> Vec<Verdict> {
    interesting_packets(intent).iter().map(|packet| interpret(state, packet)).collect()
}

fn served(state: &State, packet: &Packet) -> bool {
    matches!(interpret(state, packet), Verdict::Endpoints(_))
}

/// Whether the port that serves a packet has session affinity. Addresses come before node ports.
fn has_affinity(intent: &Intent, packet: &Packet) -> bool {
    let port = |address: Option<IpAddr>| {
        let ports = intent.services.values().flat_map(|service| &service.ports);
        let mut ports = ports.filter(|port| port.protocol == packet.protocol);
        ports.find(|port| {
            let is_its = |frontend: &Frontend| frontend.address == address && frontend.port == packet.port;
            port.family == Family::of(packet.destination) && port.frontends.iter().any(is_its)
        })
    };
    port(Some(packet.destination)).or_else(|| port(None)).is_some_and(|port| port.affinity.is_some())
}

/// As it is observed where the version without parts made it: one map of endpoints, and chains and treatments without a part.
fn before_parts(mut state: State) -> State {
    let foreign = |entry: &mut Entry| entry.value = Value::Foreign;
    for table in state.tables.values_mut() {
        for scope in Scope::ALL {
            let parts = Part::all().map(|part| SetId::Endpoints(scope, part));
            for set in parts {
                table.elements.remove(&set);
                let Some(declared) = table.sets.remove(set.name()) else { continue };
                let name = set.name().trim_end_matches(|c: char| c == '-' || c.is_ascii_digit()).to_owned();
                table.sets.insert(name.clone(), Set { name, ..declared });
            }
            for set in [SetId::Frontends(scope), SetId::LocalFrontends(scope)] {
                table.elements.entry(set).or_default().values_mut().for_each(foreign);
            }
        }
        for set in [Pool::Main, Pool::Local].map(SetId::Treatments) {
            let old = table.elements.remove(&set).unwrap_or_default();
            let without_part = |key: Key| {
                let code = key.as_bytes().try_into().map(u32::from_ne_bytes).unwrap_or_default();
                Key::EMPTY.number(code & 0x00ff_ffff)
            };
            let entry = Entry { value: Value::Foreign, comment: None };
            let old = old.into_keys().map(|key| (without_part(key), entry.clone()));
            table.elements.insert(set, old.collect());
        }
        let chains = std::mem::take(&mut table.chains).into_iter();
        let without_part = |(name, chain): (String, Chain)| match name.split_once("-in-") {
            Some((name, _)) => (name.to_owned(), chain),
            None => (name, chain),
        };
        table.chains = chains.map(without_part).collect();
        table.elements.retain(|_, elements| !elements.is_empty());
    }
    state
}

/// Committed, with the fix of what it shows.
const COUNTEREXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

proptest! {
    #![proptest_config(config(128, COUNTEREXAMPLES))]

    #[test]
    fn packets_go_where_the_oracle_says(cluster in clusters()) {
        let intent = cluster.intent();
        let state = render(&intent);
        for packet in interesting_packets(&intent) {
            prop_assert_eq!(interpret(&state, &packet), oracle(&intent, &packet), "{:?}", packet);
        }
    }

    #[test]
    fn a_trace_shows_session_affinity_exactly_where_a_port_has_it(cluster in clusters()) {
        let intent = cluster.intent();
        let state = render(&intent);
        for packet in interesting_packets(&intent).into_iter().filter(|packet| served(&state, packet)) {
            let is_sticky = trace(&state, &packet).steps.iter().any(|step| step.is_sticky);
            prop_assert_eq!(is_sticky, has_affinity(&intent, &packet), "{:?}", packet);
        }
    }

    #[test]
    fn a_plan_turns_one_state_into_the_other_without_dangling_references(a in clusters(), b in clusters()) {
        let (a, b) = (rendered(&a), rendered(&b));
        prop_assert_eq!(carried_out(a.clone(), &diff(&a, &b))?, b);
    }

    #[test]
    fn from_nothing_and_back_to_nothing(cluster in clusters()) {
        let state = rendered(&cluster);
        let made = carried_out(State::default(), &diff(&State::default(), &state))?;
        prop_assert_eq!(&made, &state);
        prop_assert_eq!(carried_out(made, &diff(&state, &State::default()))?, State::default());
    }

    #[test]
    fn equal_states_have_an_empty_plan(cluster in clusters()) {
        let state = rendered(&cluster);
        prop_assert!(diff(&state, &state).is_empty());
    }

    #[test]
    fn the_same_cluster_renders_to_the_same_bytes(cluster in clusters()) {
        prop_assert_eq!(rendered(&cluster).to_string(), rendered(&cluster).to_string());
    }

    #[test]
    fn changes_lead_to_the_same_behaviour_as_a_start(cluster in clusters()) {
        let mut facts = Facts::new(cluster.policy.clone());
        let mut intent = resolve::all(&facts).0;
        let mut ledger = Ledger::new(&Family::ALL, intent.node.clone(), Settings::default());
        let mut kernel = carried_out(State::default(), &ledger.plan_program())?;
        for event in &cluster.events {
            let before = intent.clone();
            let touched = facts.apply(event.clone());
            resolve::update(&facts, &touched, &mut intent);
            kernel = carried_out(kernel, &ledger.plan_node(&intent.node, &Settings::default()))?;
            ledger.settle_node(intent.node.clone(), Settings::default());
            let (plan, settlement) = ledger.plan(&changes(&before, &intent));
            let makes_rules = |op: &Op| matches!(op.action, Action::AddChain { .. } | Action::AddRule { .. });
            prop_assert!(!plan.changes.iter().any(makes_rules), "chains are committed before elements refer to them");
            kernel = carried_out(kernel, &plan)?;
            ledger.settle(settlement);
            prop_assert_eq!(meaning(&intent, &kernel), meaning(&intent, &render(&intent)));
        }
        kernel = carried_out(kernel, &ledger.plan_tidy())?;
        ledger.settle_tidy();
        prop_assert_eq!(&kernel, &ledger.state(), "exactly the wanted state is left");
    }

    #[test]
    fn traffic_is_served_between_any_two_operations(cluster in clusters(), event in events()) {
        let mut facts = cluster.facts();
        let before = resolve::all(&facts).0;
        let mut ledger = Ledger::new(&Family::ALL, before.node.clone(), Settings::default());
        let start: Vec<Change> =
            before.services.iter().map(|(name, service)| (name.clone(), Some(service.clone()))).collect();
        let (_, settlement) = ledger.plan(&start);
        ledger.settle(settlement);
        facts.apply(event);
        let after = resolve::all(&facts).0;
        prop_assume!(before.node == after.node);

        let (plan, _) = ledger.plan(&changes(&before, &after));
        let mut kernel = ledger.state();
        let packets: Vec<_> = interesting_packets(&before)
            .into_iter()
            .filter(|packet| served(&kernel, packet) && served(&render(&after), packet))
            .collect();
        for op in plan.ops() {
            kernel.apply(op).map_err(|refused| TestCaseError::fail(format!("{op}: {refused}")))?;
            for packet in &packets {
                prop_assert!(served(&kernel, packet), "no endpoint for {:?} after {}", packet, op);
            }
        }
    }

    /// A first start, in portions of one Service, in a kernel that has what an earlier one left half-way.
    #[test]
    fn a_first_start_meets_no_packet_before_its_end(cluster in clusters(), leftover in clusters()) {
        let intent = cluster.intent();
        let mut kernel = render(&leftover.intent());
        kernel.tables.values_mut().for_each(|table| table.chains.retain(|_, chain| chain.hook.is_none()));
        prop_assert!(!kernel.is_in_force());
        let mut ledger = Ledger::new(&Family::ALL, intent.node.clone(), Settings::default());
        kernel = carried_out(kernel.clone(), &ledger.plan_foundation(&kernel))?;
        for (name, service) in &intent.services {
            let (plan, settlement) = ledger.plan(&[(name.clone(), Some(service.clone()))]);
            kernel = carried_out(kernel, &plan)?;
            ledger.settle(settlement);
            prop_assert!(!kernel.is_in_force());
        }
        let hooks = ledger.plan_hooks();
        prop_assert!(hooks.chains.is_empty() && hooks.tidy.is_empty(), "one transaction");
        kernel = carried_out(kernel, &hooks)?;
        prop_assert_eq!(&kernel, &ledger.state());
        prop_assert_eq!(kernel, render(&intent));
    }

    /// A restart over the rules of another cluster, as the kernel shows it to a packet on its way: the chains of before the
    /// commit, and the elements of after it.
    #[test]
    fn a_start_over_other_rules_fails_no_packet_on_its_way(a in clusters(), b in clusters()) {
        let (before, mut after) = (a.intent(), b.intent());
        after.node = before.node.clone();
        let mut kernel = render(&before);
        let packets: Vec<_> = interesting_packets(&before)
            .into_iter()
            .filter(|packet| served(&kernel, packet) && served(&render(&after), packet))
            .collect();
        let mut ledger = Ledger::new(&Family::ALL, after.node.clone(), Settings::default());
        ledger.adopt(&kernel);
        let start: Vec<Change> =
            after.services.iter().map(|(name, service)| (name.clone(), Some(service.clone()))).collect();
        let (plan, settlement) = ledger.plan_start(kernel.clone(), &start, Unknown::Remove);

        let first = Plan { chains: plan.chains.clone(), ..Plan::default() };
        kernel = carried_out(kernel, &first)?;
        let entered = kernel.clone();
        let is_met_later = |op: &Op| match &op.action {
            Action::Remove(element) => matches!(element.set, SetId::Treatments(_) | SetId::Hairpins),
            action => matches!(action, Action::RemoveChain(_) | Action::AddChain { .. } | Action::AddRule { .. } | Action::FlushChain(_) | Action::RetireChain(_)),
        };
        prop_assert_eq!(plan.changes.iter().chain(&plan.tidy).find(|op| is_met_later(op)), None);
        kernel = carried_out(kernel, &Plan { chains: Vec::new(), ..plan })?;
        let mut on_its_way = entered;
        for (family, table) in &mut on_its_way.tables {
            table.elements = kernel.tables[family].elements.clone();
        }
        for packet in &packets {
            prop_assert!(served(&on_its_way, packet), "no endpoint for {:?}", packet);
        }

        ledger.settle(settlement);
        prop_assert_eq!(&kernel, &ledger.state());
        kernel = carried_out(kernel, &ledger.plan_tidy())?;
        ledger.settle_tidy();
        prop_assert_eq!(kernel, render(&after), "tidying leaves exactly the wanted state");
    }

    /// An upgrade: whatever an operation leaves, frontends lead to chains that are there.
    #[test]
    fn rules_of_before_the_parts_are_taken_over_in_place(a in clusters(), b in clusters()) {
        let (before, mut after) = (a.intent(), b.intent());
        after.node = before.node.clone();
        let kernel = before_parts(render(&before));
        let mut ledger = Ledger::new(&Family::ALL, after.node.clone(), Settings::default());
        ledger.adopt(&kernel);
        let start: Vec<Change> =
            after.services.iter().map(|(name, service)| (name.clone(), Some(service.clone()))).collect();
        let (plan, settlement) = ledger.plan_start(kernel.clone(), &start, Unknown::Remove);
        ledger.settle(settlement);

        let is_left_behind = |op: &Op| match &op.action {
            Action::Remove(element) => matches!(element.set, SetId::Treatments(_)),
            action => matches!(action, Action::RetireChain(_) | Action::RemoveSet(_) | Action::RemoveChain(_)),
        };
        let leads = |op: &Op| op.action.element().is_some_and(|it| matches!(it.set, SetId::Frontends(_)));
        let before_it = plan.ops().skip_while(|op| !is_left_behind(op)).find(|op| leads(op));
        prop_assert_eq!(before_it, None, "a frontend leads to what is gone");
        prop_assert!(!plan.ops().any(|op| op.action == Action::RemoveTable));
        let mut kernel = carried_out(kernel, &plan)?;
        prop_assert_eq!(&kernel, &ledger.state());
        kernel = carried_out(kernel, &ledger.plan_tidy())?;
        prop_assert_eq!(kernel, render(&after));
    }
}

mod one_endpoint {
    //! The cost of a change is the size of the change.

    use std::sync::Arc;

    use ferroxy_core::testing::service;
    use ferroxy_core::{Family, Intent, NodeIntent, Origin, Packet, Protocol, ServiceIntent};
    use ferroxy_nftables::element::{Scope, SetId};
    use ferroxy_nftables::ledger::Ledger;
    use ferroxy_nftables::part::Part;
    use ferroxy_nftables::plan::{Op, Plan};
    use ferroxy_nftables::{Settings, interpret, render};

    /// A lookup sees the elements of its moment: the frontend may still be that of before when the endpoints are those of
    /// after.
    #[test]
    fn that_leaves_between_two_lookups_breaks_no_connection() {
        let state = |endpoints: u16| {
            let services = [service(1, 0..endpoints)].into();
            render(&Intent { node: NodeIntent::default(), services }, &Settings::default(), &[Family::V4])
        };
        let packet = Packet {
            source: [10, 244, 9, 9].into(),
            origin: Origin::Interface("eth0".into()),
            destination: [10, 96, 0, 1].into(),
            port: 80,
            protocol: Protocol::Tcp,
            to_this_host: false,
        };
        let found_late = |before: u16, after: u16, late: &[SetId]| {
            let (mut between, mut after) = (state(before), state(after));
            let old = between.tables.get_mut(&Family::V4).unwrap();
            let new = after.tables.get_mut(&Family::V4).unwrap();
            for set in late {
                old.elements.insert(*set, new.elements.get(set).cloned().unwrap_or_default());
            }
            (between, after)
        };
        for count in 2..5 {
            let endpoints = Part::all().map(|part| SetId::Endpoints(Scope::Address, part));
            let late: Vec<SetId> = endpoints.chain([SetId::SoleEndpoints]).collect();
            let (between, after) = found_late(count, count - 1, &late);
            assert_eq!(interpret(&between, &packet), interpret(&after, &packet), "{count} endpoints before");
        }
        // One endpoint becomes two: the frontend was not in the map when the packet looked there, and is no sole endpoint any more.
        let (mut between, after) = (state(2), state(2));
        between.tables.get_mut(&Family::V4).unwrap().chains.get_mut("services").unwrap().rules.remove(0);
        assert_eq!(interpret(&between, &packet), interpret(&after, &packet));
    }

    /// Hairpins are matched after the pick: the commit that removes the endpoint may happen in between.
    #[test]
    fn that_leaves_stays_a_hairpin_until_tidying() {
        let (name, with) = service(1, 0..2);
        let mut with = ServiceIntent::clone(&with);
        with.ports[0].cluster[0].is_local = true;
        let mut without = with.clone();
        without.ports[0].cluster.remove(0);
        let mut ledger = Ledger::new(&[Family::V4], NodeIntent::default(), Settings::default());
        let about_hairpins = |plan: Plan| -> Vec<String> {
            plan.ops().map(Op::to_string).filter(|op| op.contains(" hairpins ")).collect()
        };
        let change = |ledger: &mut Ledger, service: &ServiceIntent| {
            let (plan, settlement) = ledger.plan(&[(name.clone(), Some(Arc::new(service.clone())))]);
            ledger.settle(settlement);
            about_hairpins(plan)
        };
        let known = |ledger: &Ledger| {
            ledger.state().tables[&Family::V4].elements.get(&SetId::Hairpins).map_or(0, |all| all.len())
        };
        let hairpin = "element ip ferroxy hairpins { 10.244.0.0 . 10.244.0.0 . tcp . 80 }";
        let (comes, goes) = ([format!("add {hairpin}")], [format!("delete {hairpin}")]);
        let nothing: [String; 0] = [];

        assert_eq!(change(&mut ledger, &with), comes);
        assert_eq!((change(&mut ledger, &without).as_slice(), known(&ledger)), (nothing.as_slice(), 1));
        assert_eq!(about_hairpins(ledger.plan_tidy()), goes);
        assert_eq!(change(&mut ledger, &with), nothing, "it returned before the tidying");
        assert_eq!(about_hairpins(ledger.plan_tidy()), nothing);
        assert_eq!(change(&mut ledger, &without), nothing);
        ledger.settle_tidy();
        assert_eq!((about_hairpins(ledger.plan_tidy()).as_slice(), known(&ledger)), (nothing.as_slice(), 0));
        assert_eq!(change(&mut ledger, &with), comes);
    }

    /// Operations for each departure and each return of one endpoint out of many.
    fn costs(services: u16, endpoints: u16) -> Vec<usize> {
        let mut ledger = Ledger::new(&[Family::V4], NodeIntent::default(), Settings::default());
        let all: Vec<_> =
            (0..services).map(|n| service(n, 0..endpoints)).map(|(name, s)| (name, Some(s))).collect();
        let settlement = ledger.plan(&all).1;
        ledger.settle(settlement);
        let mut costs = Vec::new();
        for gone in 0..endpoints {
            for present in [false, true] {
                let (name, changed) = service(1, (0..endpoints).filter(|n| present || *n != gone));
                let (plan, settlement) = ledger.plan(&[(name, Some(changed))]);
                ledger.settle(settlement);
                costs.push(plan.len());
            }
        }
        costs
    }

    #[test]
    fn costs_a_handful_of_operations_whatever_the_size() {
        // Departure: another endpoint takes its slot, the last slot is removed, the treatment's number changes. Return: a slot, the
        // number. The first time also the chain for this number of endpoints: the chain, three rules, and its element.
        let (small, large) = (costs(2, 10), costs(2_000, 10));
        assert_eq!(small, large, "the number of Services does not matter");
        assert!(small[0] <= 8, "{small:?}");
        assert!(small[1..].iter().all(|cost| *cost <= 3), "{small:?}");
        assert!(costs(2, 200).iter().all(|cost| *cost <= 8), "nor does the number of endpoints");
    }
}
