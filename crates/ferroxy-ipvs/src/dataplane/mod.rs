//! The running dataplane: keeps the kernel equal to the Intent.
//!
//! The [`Ledger`] holds what the kernel has acknowledged. Operations are applied one by one: after a failure the ledger is not
//! trusted, and the next attempt of any kind reads the kernel and sends the difference. `capability.rs` has the capabilities.

pub mod apply;
mod capability;
pub mod observe;

use std::time::{Duration, Instant};

use ferroxy_core::{Family, Intent, NodeIntent, Protocol};
use ferroxy_dataplane::{
    Acknowledged, Change, ChoiceOfEndpoints, Dataplane, Drains as DrainsEndpoints, Failure, Outcome,
    Persists, Preview, Receipt, Refusal, Settings, SignsOfLife, SweepsConnections, TakesOver, Verifies,
    Watches,
};
use ferroxy_netfilter::connections::Conntrack;
use ferroxy_netlink::ipvs;
use rustix::io::Errno;
use tracing::warn;

use self::apply::{Applied, apply, place, server};
use self::observe::observe;
use crate::diff::{diff, keeping_the_unknown};
use crate::doors::{Doors, Error};
use crate::drain::{self, Drains};
use crate::expected::Expected;
use crate::ledger::{Ledger, Settlement};
use crate::options::{Options, Timeouts};
use crate::plan::{Op, Plan};
use crate::render::{Parameters, render};
use crate::scheduler::Scheduler;
use crate::state::{Address, State, Treatment};
use crate::sysctl;

#[derive(Debug)]
pub struct Ipvs {
    doors: Doors,
    options: Options,
    ledger: Ledger,
    drains: Drains,
    on_device: Expected,
    /// The start of the clock for draining.
    opened: Instant,
    /// The kernel equals the ledger, unless another program has changed the kernel.
    is_certain: bool,
    keep_unknown: bool,
}

impl Ipvs {
    pub fn open(families: &[Family], settings: &Settings) -> Result<Ipvs, Failure> {
        let options = Options::from(settings);
        let doors = Doors { excluded: options.exclude_cidrs.clone(), ..Doors::open(families, settings)? };
        Ok(Ipvs {
            doors,
            options,
            ledger: Ledger::default(),
            drains: Drains::new(drain::LIMIT),
            on_device: Expected::default(),
            opened: Instant::now(),
            is_certain: false,
            keep_unknown: false,
        })
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The number of draining endpoints.
    pub fn draining(&self) -> usize {
        self.drains.len()
    }

    /// Tries the scheduler with a virtual server at a documentation address, unless a virtual server already uses the scheduler.
    fn probe_scheduler(&mut self) -> Result<(), Error> {
        let scheduler = &self.options.scheduler;
        if self.doors.balancer.servers()?.iter().any(|it| it.scheduler == **scheduler) {
            return Ok(());
        }
        let unused = Address { ip: [198, 51, 100, 0].into(), protocol: Protocol::Tcp, port: 20000 };
        let probe = server(&unused, &Treatment::new(scheduler, None));
        let changes = [ipvs::Change::AddServer(probe), ipvs::Change::RemoveServer(place(&unused))];
        match self.doors.balancer.change(&changes)?.into_iter().next() {
            None => Ok(()),
            // ERANGE: too long for the name of a scheduler.
            Some(refused) if matches!(refused.error.errno, Errno::NOENT | Errno::RANGE) => {
                Err(Error::NoScheduler(scheduler.to_string()))
            }
            Some(refused) => Err(refused.error.into()),
        }
    }

    fn set_timeouts(&mut self) -> Result<(), Error> {
        let Timeouts { tcp, tcp_fin, udp } = self.options.timeouts;
        match self.options.timeouts == Timeouts::default() {
            true => Ok(()),
            false => Ok(self.doors.balancer.set_timeouts(ipvs::Timeouts { tcp, tcp_fin, udp })?),
        }
    }

    /// The configured parameters, with the current addresses of the host.
    fn parameters(&mut self) -> Result<Parameters, Error> {
        let Options { masquerade_mark, scheduler, .. } = &self.options;
        let (masquerade_mark, scheduler) = (*masquerade_mark, scheduler.clone());
        Ok(Parameters { masquerade_mark, scheduler, host_addresses: self.doors.host_addresses()? })
    }

    fn now(&self) -> Duration {
        self.opened.elapsed()
    }

    fn change_services(&mut self, mut changes: Vec<Change>) -> Result<Outcome, Error> {
        let (plan, settlement) = self.plan(&changes)?;
        let applied = self.carry_out(&plan)?;
        let mut outcome = Outcome {
            receipt: receipt(&applied),
            operations: plan.len() - applied.refused.len(),
            ..Outcome::default()
        };
        if applied.refused.is_empty() {
            self.ledger.settle(settlement);
            return Ok(outcome);
        }
        for (op, reason) in applied.refused {
            let Some(service) = self.ledger.owner(&changes, &op).cloned() else {
                return Err(Error::Refused(reason));
            };
            if outcome.refused.iter().all(|other| other.service != service) {
                outcome.refused.push(Refusal { service, reason });
            }
        }
        changes.retain(|(name, _)| outcome.refused.iter().all(|refusal| refusal.service != *name));
        self.ledger.settle(self.ledger.settlement(&changes));
        Ok(outcome)
    }

    fn replace_node(&mut self, node: NodeIntent) -> Result<Outcome, Error> {
        let parameters = self.parameters()?;
        let plan = match self.is_certain && !self.keep_unknown {
            true => self.ledger.plan_node(&node, &parameters),
            false => self.difference(self.ledger.state_with(&node, &parameters))?,
        };
        let outcome = self.carry_out_all(&plan)?;
        self.ledger.settle_node(node, parameters);
        Ok(outcome)
    }

    fn is_programmed_for(&mut self, node: &NodeIntent) -> Result<bool, Error> {
        let parameters = self.parameters()?;
        Ok(self.ledger.node() == node && *self.ledger.parameters() == parameters)
    }

    /// Uses only the ledger if it can be trusted. The ledger does not contain unknown objects that are kept.
    fn plan(&mut self, changes: &[Change]) -> Result<(Plan, Settlement), Error> {
        if self.is_certain && !self.keep_unknown {
            return Ok(self.ledger.plan(changes));
        }
        let plan = self.difference(self.ledger.state_after(changes))?;
        Ok((plan, self.ledger.settlement(changes)))
    }

    fn difference(&mut self, wanted: State) -> Result<Plan, Error> {
        let observed = observe(&mut self.doors)?;
        self.adopt_drains(&observed, &wanted);
        let wanted = if self.keep_unknown { keeping_the_unknown(&observed, wanted) } else { wanted };
        self.on_device.replace(wanted.device.clone().unwrap_or_default());
        Ok(diff(&observed, &wanted))
    }

    /// Endpoints that an earlier run left draining go on draining.
    fn adopt_drains(&mut self, observed: &State, wanted: &State) {
        let now = self.now();
        for (address, server) in &observed.servers {
            let Some(wanted) = wanted.servers.get(address) else { continue };
            for (endpoint, weight) in &server.endpoints {
                if *weight == 0 && !wanted.endpoints.contains_key(endpoint) {
                    self.drains.note(&Op::Drain(*address, *endpoint), now);
                }
            }
        }
    }

    /// Applies a Plan. The caller handles refusals; until then, the kernel differs from the ledger.
    fn carry_out(&mut self, plan: &Plan) -> Result<Applied, Error> {
        self.is_certain = false;
        self.on_device.follow(plan);
        let applied = apply(&mut self.doors, plan)?;
        let now = self.now();
        let is_done = |op: &&Op| applied.refused.iter().all(|(refused, _)| refused != *op);
        for op in plan.ops().iter().filter(is_done) {
            match op {
                // The endpoint may have been draining.
                Op::AddEndpoint(address, endpoint) => {
                    self.drains.note(&Op::Revive(*address, *endpoint), now);
                }
                op => self.drains.note(op, now),
            }
        }
        self.is_certain = applied.refused.is_empty();
        Ok(applied)
    }

    /// Applies a Plan that belongs to no particular Service: a refusal is an error.
    fn carry_out_all(&mut self, plan: &Plan) -> Result<Outcome, Error> {
        let applied = self.carry_out(plan)?;
        let receipt = receipt(&applied);
        match applied.refused.into_iter().next() {
            Some((_, reason)) => Err(Error::Refused(reason)),
            None => Ok(Outcome { receipt, operations: plan.len(), ..Outcome::default() }),
        }
    }
}

impl Dataplane for Ipvs {
    fn probe(&mut self, _: &NodeIntent) -> Result<(), Failure> {
        self.probe_scheduler()?;
        sysctl::set(self.options.strict_arp)?;
        Ok(())
    }

    fn configure(&mut self, settings: &Settings) {
        self.options = settings.into();
        self.doors.excluded = self.options.exclude_cidrs.clone();
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        if let Err(error) = self.set_timeouts() {
            warn!("{error}: the timeouts of connections stay as they are");
        }
        sysctl::set(self.options.strict_arp)?;
        let parameters = self.parameters()?;
        self.ledger = Ledger::new(&self.doors.families(), parameters, intent.node.clone());
        self.is_certain = false;
        let all = intent.services.iter().map(|(name, service)| (name.clone(), Some(service.clone())));
        Ok(self.change_services(all.collect())?)
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        Ok(self.change_services(changes)?)
    }

    /// Also applies changes of the host's addresses.
    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        Ok(self.replace_node(node)?)
    }

    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        Ok(self.is_programmed_for(node)?)
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.ledger.acknowledged()
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let parameters = self.parameters()?;
        let plan = self.difference(render(intent, &parameters, &self.doors.families()))?;
        Ok(Preview {
            text: plan.to_string(),
            operations: plan.ops().iter().map(ToString::to_string).collect(),
        })
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        let plan = diff(&observe(&mut self.doors)?, &State::default());
        self.carry_out_all(&plan)?;
        self.ledger = Ledger::default();
        self.is_certain = false;
        Ok(plan.removals())
    }

    /// Sockets choose endpoints at random, which would defeat the purpose of any other scheduler.
    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        let scheduler = Scheduler::parse(&self.options.scheduler);
        let is_even = matches!(scheduler, Some(Scheduler::RoundRobin | Scheduler::WeightedRoundRobin));
        is_even.then_some(ChoiceOfEndpoints::ByFrontend)
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

    fn drains(&mut self) -> Option<&mut dyn DrainsEndpoints> {
        Some(self)
    }

    fn takes_over(&mut self) -> Option<&mut dyn TakesOver> {
        Some(self)
    }

    fn signs_of_life(&mut self) -> Option<&mut dyn SignsOfLife> {
        Some(self)
    }

    fn sweeps_connections(&self) -> Option<Box<dyn SweepsConnections>> {
        Some(Box::new(Conntrack))
    }
}

fn receipt(applied: &Applied) -> Receipt {
    Receipt { messages: applied.messages, ..Receipt::default() }
}

/// The first operations as text, for log messages.
fn examples(plan: &Plan) -> Vec<String> {
    plan.ops().iter().take(3).map(ToString::to_string).collect()
}
