//! The running dataplane: keeps HNS at what the Intent asks for.
//!
//! The [`Ledger`] has the wanted objects, the [`Mirror`] the objects of HNS. A change compares the two where it affects them,
//! and costs the calls of its Services. After a call without an answer, the mirror is not trusted: the next attempt reads HNS.
//! `capability.rs` has the capabilities.

mod announcements;
mod apply;
mod capability;
mod cleanup;
pub mod document;
mod error;
pub mod failures;
mod glance;
pub mod mirror;
mod observe;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroxy_core::{Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{
    Acknowledged, Change, CountsRefusals, Dataplane, Failure, Outcome, Persists, Preview, Receipt, Refusal,
    Settings, SignsOfLife, TakesOver, Verifies, Watches,
};
use ferroxy_hcn::{Calls, Features, Guid, Hcn, Kind};

use self::announcements::Announcements;
use self::apply::Applied;
pub use self::error::Error;
use self::failures::Failures;
use self::mirror::Mirror;
use crate::diff::diff;
use crate::ledger::{Ledger, Touched};
use crate::options::Options;
use crate::plan::{Op, Plan};
use crate::render::{fragment, lost, render};
use crate::shortcomings::{self, Here};
use crate::state::{Mac, State};
use crate::surroundings::Surroundings;

pub struct Kernelspace {
    hcn: Hcn,
    options: Options,
    mac_of: MacOf,
    features: Option<Features>,
    network: Option<Guid>,
    surroundings: Option<Surroundings>,
    /// The counts of the ledger are those of earlier surroundings.
    are_surroundings_new: bool,
    ledger: Ledger,
    mirror: Mirror,
    /// HNS has what the mirror says, unless another program changed it.
    is_certain: bool,
    keep_unknown: bool,
    modify: Modify,
    /// The share of the known objects that the next look reads again.
    turn: u8,
    /// Kinds of which HNS last gave no list of whole objects, which was logged.
    blind: BTreeSet<Kind>,
    failures: Failures,
    announcements: Option<Announcements>,
    life: Option<Life>,
}

/// How to find the hardware address of the interface that has an address of the host.
pub struct MacOf(pub Box<dyn Fn(IpAddr) -> Option<Mac> + Send>);

struct Life {
    alive: Box<dyn Fn() + Send>,
    shown: Instant,
}

/// Whether HNS changes load balancers in place. The capability that it reports is verified once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Modify {
    Unchecked,
    Works,
    DoesNotWork,
}

/// The result of reading an object.
enum Seen<T> {
    There(T),
    Gone,
    Unreadable,
}

impl fmt::Debug for Kernelspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernelspace").field("options", &self.options).finish_non_exhaustive()
    }
}

impl fmt::Debug for MacOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MacOf").finish_non_exhaustive()
    }
}

impl Kernelspace {
    /// Does not call HNS: it may not run yet.
    pub fn new(hcn: Hcn, options: Options, mac_of: MacOf) -> Kernelspace {
        Kernelspace {
            hcn,
            options,
            mac_of,
            features: None,
            network: None,
            surroundings: None,
            are_surroundings_new: false,
            ledger: Ledger::default(),
            mirror: Mirror::default(),
            is_certain: false,
            keep_unknown: false,
            modify: Modify::Unchecked,
            turn: 0,
            blind: BTreeSet::new(),
            failures: Failures::default(),
            announcements: None,
            life: None,
        }
    }

    pub fn calls(&self) -> Calls {
        self.hcn.calls()
    }

    /// Our objects in HNS, as of the last look and of what we wrote since.
    pub fn in_force(&self) -> State {
        self.mirror.state(&self.wanted())
    }

    fn wanted(&self) -> State {
        self.surroundings.as_ref().map(|it| self.ledger.state(it)).unwrap_or_default()
    }

    /// Looks at HNS, and updates the counts of the ledger if the surroundings changed.
    fn refresh(&mut self, node: &NodeIntent) -> Result<Surroundings, Error> {
        self.look(node)?;
        let surroundings = self.surroundings.clone().ok_or(Error::NoNodeIp)?;
        if std::mem::take(&mut self.are_surroundings_new) {
            self.ledger.set_node(node.clone(), &surroundings);
        }
        Ok(surroundings)
    }

    fn change_services(&mut self, changes: &[Change]) -> Result<Outcome, Error> {
        let node = self.ledger.node().clone();
        let mut known = self.surroundings.clone().filter(|_| self.is_certain);
        if let Some(before) = &known {
            let has_lost = |it: &ServiceIntent| lost(it, &node, before).is_some();
            let has_lost = changes.iter().filter_map(|it| it.1.as_deref()).any(has_lost);
            if has_lost && !self.has_routes_of(before)? {
                known = None;
            }
        }
        let is_partial = known.is_some();
        let surroundings = match known {
            Some(surroundings) => surroundings,
            None => self.refresh(&node)?,
        };
        let before = self.hcn.calls();
        let touched = self.ledger.want(changes, &surroundings);
        let (plan, missing) = match is_partial {
            true => self.plan_part(touched)?,
            false => self.plan_to_keep(),
        };
        let applied = self.carry_out(&plan)?;
        let refused = self.refusals(changes, &applied, missing, &surroundings);
        let names: BTreeSet<ServiceName> = refused.keys().cloned().collect();
        self.ledger.settle(changes.iter().map(|(name, _)| name), &names);
        Ok(Outcome {
            receipt: self.receipt(before),
            operations: applied.operations,
            refused: refused.into_iter().map(|(service, reason)| Refusal { service, reason }).collect(),
            // Objects that could not be removed belong to no Service any more.
            drift: applied.refused.iter().any(|(op, _)| op.is_removal()),
        })
    }

    /// The Plan for a change, and the endpoints of this node that HNS does not know.
    fn plan_part(&mut self, mut touched: Touched) -> Result<(Plan, Missing), Error> {
        let wanted = std::mem::take(&mut touched.wanted);
        if !self.missing(&wanted).is_empty() {
            // A pod of this node is new, most likely.
            self.is_certain = false;
            self.look_at_endpoints(false)?;
            self.is_certain = true;
        }
        let missing = self.missing(&wanted);
        let named = wanted.balancers.values().flat_map(|it| &it.endpoints).chain(wanted.endpoints.keys());
        let of_others = named.copied().filter(|ip| self.mirror.is_of_others(*ip)).collect();
        self.mirror.adopt(wanted.balancers.keys());
        touched.wanted = wanted;
        let seen = self.mirror.part(&touched);
        Ok((diff(&seen, &touched.wanted.bound_to(&of_others)), missing))
    }

    /// The Plan for everything. Adopts load balancers without an owner at our frontends.
    fn plan_to_keep(&mut self) -> (Plan, Missing) {
        let wanted = self.wanted();
        self.mirror.adopt(wanted.balancers.keys());
        self.plan_all(wanted)
    }

    fn plan_all(&self, wanted: State) -> (Plan, Missing) {
        let missing = self.missing(&wanted);
        let seen = self.mirror.state(&wanted);
        let plan = diff(&seen, &wanted.bound_to(&self.mirror.of_others()));
        (if self.keep_unknown { plan.keeping_everything() } else { plan }, missing)
    }

    fn missing(&self, wanted: &State) -> Missing {
        // The endpoint that stood for a remote pod does not count once the pod is on this node.
        let is_missing = |ip: &IpAddr| !wanted.endpoints.contains_key(ip) && !self.mirror.is_of_others(*ip);
        let balancers = wanted.balancers.iter();
        balancers
            .flat_map(|(at, balancer)| balancer.endpoints.iter().map(move |ip| (*at, *ip)))
            .filter(|(_, ip)| is_missing(ip))
            .collect()
    }

    /// Which of the changed Services are not in force, and why.
    fn refusals(
        &self,
        changes: &[Change],
        applied: &Applied,
        missing: Missing,
        surroundings: &Surroundings,
    ) -> BTreeMap<ServiceName, String> {
        let mut refused = BTreeMap::new();
        let of_endpoint: BTreeMap<IpAddr, String> = applied
            .refused
            .iter()
            .filter_map(|(op, error)| match op {
                Op::CreateEndpoint(ip, _) => Some((*ip, error.to_string())),
                _ => None,
            })
            .collect();
        for (op, error) in &applied.refused {
            if let Some(owner) = op.frontend().and_then(|at| self.ledger.owner(&at)) {
                refused.insert(owner.clone(), error.to_string());
            }
        }
        for (at, ip) in applied.incomplete.iter().copied().chain(missing) {
            let Some(owner) = self.ledger.owner(&at) else { continue };
            let unknown =
                format!("HNS has no endpoint for the pod {ip} of this node yet: it gets no traffic");
            let reason = of_endpoint.get(&ip).cloned().unwrap_or(unknown);
            refused.entry(owner.clone()).or_insert(reason);
        }
        for (name, service) in changes.iter().filter(|_| !of_endpoint.is_empty()) {
            let Some(service) = service else { continue };
            let needed = fragment(service, self.ledger.node(), surroundings).endpoints;
            if let Some(reason) = needed.keys().find_map(|ip| of_endpoint.get(ip)) {
                refused.entry(name.clone()).or_insert_with(|| reason.clone());
            }
        }
        for (name, service) in changes {
            let lost = service.as_ref().and_then(|it| lost(it, self.ledger.node(), surroundings));
            let Some(ip) = lost else { continue };
            let reason = || format!("the overlay has no route to the pod {ip} yet: it gets no traffic");
            refused.entry(name.clone()).or_insert_with(reason);
        }
        refused
    }

    fn receipt(&self, before: Calls) -> Receipt {
        let messages = self.hcn.calls().total() - before.total();
        Receipt { messages: usize::try_from(messages).unwrap_or(usize::MAX), ..Receipt::default() }
    }

    fn show_life(&mut self) {
        const EVERY: Duration = Duration::from_secs(1);
        if let Some(life) = &mut self.life
            && life.shown.elapsed() >= EVERY
        {
            life.shown = Instant::now();
            (life.alive)();
        }
    }
}

/// Endpoints of this node that a load balancer needs and HNS does not know.
type Missing = Vec<(crate::state::Frontend, IpAddr)>;

impl Dataplane for Kernelspace {
    /// If HNS does not run, or has no network yet, the agent waits for it.
    fn probe(&mut self, _: &NodeIntent) -> Result<(), Failure> {
        if self.options.network.is_none() {
            return Err(Error::NoNetworkName.into());
        }
        match self.features() {
            Err(error) if !error.is_silence() => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn configure(&mut self, settings: &Settings) {
        self.options = Options::new(settings, std::env::var("KUBE_NETWORK").ok());
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.ledger = Ledger::new(intent.node.clone());
        self.is_certain = false;
        let all: Vec<Change> =
            intent.services.iter().map(|(name, service)| (name.clone(), Some(service.clone()))).collect();
        Ok(self.change_services(&all)?)
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        Ok(self.change_services(&changes)?)
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        let before = self.hcn.calls();
        let surroundings = self.refresh(&node)?;
        self.ledger.set_node(node, &surroundings);
        let (plan, _) = self.plan_to_keep();
        let applied = self.carry_out(&plan)?;
        Ok(Outcome {
            receipt: self.receipt(before),
            operations: applied.operations,
            drift: !applied.refused.is_empty(),
            ..Outcome::default()
        })
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.ledger.acknowledged()
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let surroundings = self.refresh(&intent.node)?;
        let (plan, _) = self.plan_all(render(intent, &surroundings));
        Ok(Preview {
            text: plan.to_string(),
            operations: plan.ops().iter().map(ToString::to_string).collect(),
        })
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        self.ledger = Ledger::default();
        Ok(self.remove_everything()?)
    }

    fn shortcomings(&self, service: &ServiceIntent) -> Vec<ferroxy_core::Diagnostic> {
        let here = Here { node: self.ledger.node(), surroundings: self.surroundings.as_ref() };
        shortcomings::of(service, here)
    }

    fn persists(&mut self) -> Option<&mut dyn Persists> {
        Some(self)
    }

    fn verifies(&mut self) -> Option<&mut dyn Verifies> {
        Some(self)
    }

    fn watches(&mut self) -> Option<&mut dyn Watches> {
        Some(self)
    }

    fn takes_over(&mut self) -> Option<&mut dyn TakesOver> {
        Some(self)
    }

    fn counts_refusals(&self) -> Option<&dyn CountsRefusals> {
        Some(self)
    }

    fn signs_of_life(&mut self) -> Option<&mut dyn SignsOfLife> {
        Some(self)
    }
}
