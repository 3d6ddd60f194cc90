//! The running dataplane: keeps the kernel at what the Intent asks for, a change at a time.
//!
//! What the kernel has taken is in the [`Ledger`]. Its operations are carried out one by one: after a failure the ledger is
//! not relied upon, and the next attempt, of whatever it is, reads the kernel and sends the difference. It has no queue
//! and no clock: when to try again, and when to look after endpoints on their way out, is the agent's business.

use std::sync::Arc;
use std::time::Duration;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_iptables::tool::Tools;
use ferroxy_netlink::ipvs;
use ferroxy_netlink::nftables::Ignorer;
use ipnet::IpNet;
use rustix::io::Errno;

use crate::apply::{Applied, apply, place, server};
use crate::diff::{diff, keeping_the_unknown};
use crate::doors::{Doors, Error};
use crate::drain::Drains;
use crate::expected::Expected;
use crate::ledger::{Change, Ledger, Settlement};
use crate::observe::observe;
use crate::plan::{Op, Plan};
use crate::render::{Settings, Surroundings, fragment, render};
use crate::state::{Address, State, Treatment};
use crate::sysctl;

/// What the configuration says of this mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// As the kernel calls it: `rr`, `lc`, `mh`…
    pub scheduler: Arc<str>,
    pub strict_arp: bool,
    /// In seconds; 0 leaves what the kernel has.
    pub timeouts: ipvs::Timeouts,
    /// Where virtual servers are somebody else's.
    pub exclude_cidrs: Vec<IpNet>,
    /// How long an endpoint that left may keep its connections.
    pub drain_limit: Duration,
}

#[derive(Debug)]
pub struct Dataplane {
    doors: Doors,
    options: Options,
    ledger: Ledger,
    drains: Drains,
    on_device: Expected,
    /// Of the agent's clock, when it last said.
    now: Duration,
    /// The kernel has what the ledger says, unless somebody else changed it.
    is_certain: bool,
    /// Not all of the cluster can be seen: what is there and not asked for may be asked for by what is unseen.
    keep_unknown: bool,
}

/// What came of an attempt.
#[derive(Debug, Default)]
pub struct Outcome {
    pub messages: usize,
    /// How many operations the kernel took.
    pub operations: usize,
    /// The Services it did not take, with its words. All others are in force.
    pub failed: Vec<(ServiceName, String)>,
}

/// What verification found.
#[derive(Debug, Default)]
pub struct Repair {
    pub messages: usize,
    /// What had to be done; empty when all was as it should be.
    pub plan: Plan,
    /// What is still not as it should be after that.
    pub unmended: Plan,
}

/// How much of a Service the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programmed {
    /// There is nothing of ours at all.
    Nothing,
    /// Virtual servers, members and addresses.
    Parts { right: usize, wanted: usize },
}

impl Default for Options {
    fn default() -> Options {
        Options {
            scheduler: "rr".into(),
            strict_arp: false,
            timeouts: ipvs::Timeouts::default(),
            exclude_cidrs: Vec::new(),
            drain_limit: Duration::from_secs(15 * 60),
        }
    }
}

impl Dataplane {
    pub fn open(families: &[Family], options: Options) -> Result<Dataplane, Error> {
        let doors = Doors { excluded: options.exclude_cidrs.clone(), ..Doors::open(families)? };
        Ok(Dataplane {
            doors,
            drains: Drains::new(options.drain_limit),
            on_device: Expected::default(),
            options,
            ledger: Ledger::default(),
            now: Duration::ZERO,
            is_certain: false,
            keep_unknown: false,
        })
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn tools(&self) -> &[Tools] {
        &self.doors.tools
    }

    /// From now on a listener to the kernel's notifications hears of others' changes to the rules only.
    pub fn hide_from(&mut self, listener: Ignorer) {
        self.doors.bystander.listener = Some(listener);
    }

    /// From now on this is called about once a second while a tool is at work.
    pub fn live_by(&mut self, sign_of_life: Box<dyn Fn() + Send>) {
        self.doors.bystander.sign_of_life = Some(sign_of_life);
    }

    /// What our device should have, now and later.
    pub fn on_device(&self) -> Expected {
        self.on_device.clone()
    }

    /// Of any clock that does not jump: what begins to leave from here on does so at this time.
    pub fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// While this is on, nothing is removed that is not known.
    pub fn keep_unknown(&mut self, keep: bool) {
        self.keep_unknown = keep;
    }

    /// Whether the kernel can do what this mode needs, and lets us set what it needs.
    pub fn probe(&mut self) -> Result<(), Error> {
        self.probe_scheduler()?;
        sysctl::set(self.options.strict_arp)
    }

    /// Found out with a virtual server at an address for documentation, which nobody uses, unless there is one that has the
    /// scheduler already.
    fn probe_scheduler(&mut self) -> Result<(), Error> {
        let scheduler = &self.options.scheduler;
        if self.doors.balancer.servers()?.iter().any(|it| it.scheduler == **scheduler) {
            return Ok(());
        }
        let nowhere =
            Address { ip: [198, 51, 100, 0].into(), protocol: ferroxy_core::Protocol::Tcp, port: 20000 };
        let probe = server(&nowhere, &Treatment::new(scheduler, None));
        let changes = [ipvs::Change::AddServer(probe), ipvs::Change::RemoveServer(place(&nowhere))];
        match self.doors.balancer.change(&changes)?.into_iter().next() {
            None => Ok(()),
            // What is no name of a scheduler at all is "out of range".
            Some(refused) if matches!(refused.error.errno, Errno::NOENT | Errno::RANGE) => {
                Err(Error::NoScheduler(scheduler.to_string()))
            }
            Some(refused) => Err(refused.error.into()),
        }
    }

    /// How long the kernel remembers connections, where the configuration says so.
    pub fn set_timeouts(&mut self) -> Result<(), Error> {
        match self.options.timeouts == ipvs::Timeouts::default() {
            true => Ok(()),
            false => Ok(self.doors.balancer.set_timeouts(self.options.timeouts)?),
        }
    }

    /// Whether there is anything of ours.
    pub fn is_installed(&mut self) -> Result<bool, Error> {
        Ok(!observe(&mut self.doors)?.is_empty())
    }

    /// Brings the kernel from whatever it has of ours to this Intent, sending the difference only.
    pub fn start(&mut self, intent: &Intent) -> Result<Outcome, Error> {
        sysctl::set(self.options.strict_arp)?;
        let settings = self.settings()?;
        self.ledger = Ledger::new(&self.doors.families(), settings, intent.node.clone());
        self.is_certain = false;
        let all = intent.services.iter().map(|(name, service)| (name.clone(), Some(service.clone())));
        self.change(all.collect())
    }

    /// Changes some Services. Those the kernel refuses are named; the others are in force.
    pub fn change(&mut self, mut changes: Vec<Change>) -> Result<Outcome, Error> {
        let (plan, settlement) = self.plan(&changes)?;
        let applied = self.carry_out(&plan)?;
        let mut outcome = Outcome {
            messages: applied.messages,
            operations: plan.len() - applied.refused.len(),
            failed: Vec::new(),
        };
        if applied.refused.is_empty() {
            self.ledger.settle(settlement);
            return Ok(outcome);
        }
        for (op, words) in applied.refused {
            let Some(owner) = self.ledger.owner(&changes, &op).cloned() else {
                return Err(Error::Refused(words));
            };
            if outcome.failed.iter().all(|(other, _)| *other != owner) {
                outcome.failed.push((owner, words));
            }
        }
        changes.retain(|(name, _)| outcome.failed.iter().all(|(failed, _)| failed != name));
        self.ledger.settle(self.ledger.settlement(&changes));
        Ok(outcome)
    }

    /// Changes what concerns the node as a whole; or its addresses, which are looked up.
    pub fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Error> {
        let settings = self.settings()?;
        let plan = match self.is_certain && !self.keep_unknown {
            true => self.ledger.plan_node(&node, &settings),
            false => self.difference(self.ledger.state_with(&node, &settings))?,
        };
        let outcome = self.carry_out_all(&plan)?;
        self.ledger.settle_node(node, settings);
        Ok(outcome)
    }

    /// Whether this node, with the addresses it has now, is the one that the kernel is programmed for.
    pub fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Error> {
        let settings = self.settings()?;
        Ok(self.ledger.node() == node && *self.ledger.settings() == settings)
    }

    /// Removes endpoints whose last connection has ended, or whose time is over. `now` as in [`set_time`](Dataplane::set_time).
    pub fn drain(&mut self, now: Duration) -> Result<Outcome, Error> {
        self.now = now;
        let mut counts = std::collections::BTreeMap::new();
        for address in self.drains.servers().collect::<Vec<_>>() {
            for found in self.doors.balancer.destinations(&place(&address))? {
                // Those that wait for late packets are connections too.
                counts.insert((address, found.destination.address), found.active + found.inactive);
            }
        }
        let plan = self.drains.due(now, |address, endpoint| counts.get(&(*address, *endpoint)).copied());
        let was_certain = self.is_certain;
        let outcome = self.carry_out_all(&plan)?;
        self.is_certain = was_certain;
        Ok(outcome)
    }

    /// How many endpoints are on their way out.
    pub fn draining(&self) -> usize {
        self.drains.len()
    }

    /// Compares the kernel with what it should have, and mends what differs.
    pub fn verify(&mut self) -> Result<Repair, Error> {
        // Node ports answer on addresses that the node got meanwhile, too.
        let node = self.ledger.node().clone();
        if !self.has_node(&node)? {
            self.change_node(node)?;
        }
        let plan = self.difference(self.ledger.state())?;
        let applied = self.carry_out(&plan)?;
        let unmended = match plan.is_empty() {
            true => Plan::default(),
            false => self.difference(self.ledger.state())?,
        };
        Ok(Repair { messages: applied.messages, plan, unmended })
    }

    /// What `start` would do to this kernel now.
    pub fn preview(&mut self, intent: &Intent) -> Result<Plan, Error> {
        let settings = self.settings()?;
        self.difference(render(intent, &settings, &self.doors.families()))
    }

    /// Whether the kernel has a Service as it should be.
    pub fn programmed(&mut self, intent: &Intent, service: &ServiceIntent) -> Result<Programmed, Error> {
        let (seen, settings) = (observe(&mut self.doors)?, self.settings()?);
        if seen.is_empty() {
            return Ok(Programmed::Nothing);
        }
        let families = self.doors.families();
        let wanted =
            fragment(service, Surroundings { node: &intent.node, settings: &settings, families: &families });
        let servers = wanted.servers.iter().chain(&wanted.node_port_servers);
        let (mut right, mut all) = (0, 0);
        let mut count = |is_right: bool| {
            all += 1;
            right += usize::from(is_right);
        };
        servers.for_each(|(at, server)| count(seen.servers.get(at) == Some(server)));
        wanted.members.iter().for_each(|(name, member)| count(seen.has_member(*name, member)));
        let on_device = |ip| seen.device.as_ref().is_some_and(|device| device.contains(ip));
        wanted.addresses.iter().for_each(|ip| count(on_device(ip)));
        Ok(Programmed::Parts { right, wanted: all })
    }

    /// Removes everything of ours: a diff to nothing. Says whether there was anything.
    pub fn cleanup(&mut self) -> Result<bool, Error> {
        let plan = diff(&observe(&mut self.doors)?, &State::default());
        self.carry_out_all(&plan)?;
        self.ledger = Ledger::default();
        self.is_certain = false;
        Ok(!plan.is_empty())
    }

    fn settings(&mut self) -> Result<Settings, Error> {
        let host_addresses = self.doors.host_addresses()?;
        Ok(Settings { scheduler: self.options.scheduler.clone(), host_addresses })
    }

    /// From the ledger alone, where it can be relied upon. What is unknown is in no ledger.
    fn plan(&mut self, changes: &[Change]) -> Result<(Plan, Settlement), Error> {
        if self.is_certain && !self.keep_unknown {
            return Ok(self.ledger.plan(changes));
        }
        let plan = self.difference(self.ledger.state_after(changes))?;
        Ok((plan, self.ledger.settlement(changes)))
    }

    fn difference(&mut self, wanted: State) -> Result<Plan, Error> {
        let seen = observe(&mut self.doors)?;
        self.adopt_drains(&seen, &wanted);
        let wanted = if self.keep_unknown { keeping_the_unknown(&seen, wanted) } else { wanted };
        self.on_device.replace(wanted.device.clone().unwrap_or_default());
        Ok(diff(&seen, &wanted))
    }

    /// What an earlier run of ours left on its way out goes on its way.
    fn adopt_drains(&mut self, seen: &State, wanted: &State) {
        for (address, server) in &seen.servers {
            let Some(wanted) = wanted.servers.get(address) else { continue };
            for (endpoint, weight) in &server.endpoints {
                if *weight == 0 && !wanted.endpoints.contains_key(endpoint) {
                    self.drains.note(&Op::Drain(*address, *endpoint), self.now);
                }
            }
        }
    }

    /// Refusals are for the caller to deal with; until then the kernel is not what the ledger will say.
    fn carry_out(&mut self, plan: &Plan) -> Result<Applied, Error> {
        self.is_certain = false;
        self.on_device.follow(plan);
        let applied = apply(&mut self.doors, plan)?;
        let is_done = |op: &&Op| applied.refused.iter().all(|(refused, _)| refused != *op);
        for op in plan.ops().iter().filter(is_done) {
            match op {
                // It may have been on its way out.
                Op::AddEndpoint(address, endpoint) => {
                    self.drains.note(&Op::Revive(*address, *endpoint), self.now);
                }
                op => self.drains.note(op, self.now),
            }
        }
        self.is_certain = applied.refused.is_empty();
        Ok(applied)
    }

    /// For a plan that is nobody's in particular.
    fn carry_out_all(&mut self, plan: &Plan) -> Result<Outcome, Error> {
        let applied = self.carry_out(plan)?;
        match applied.refused.into_iter().next() {
            Some((_, words)) => Err(Error::Refused(words)),
            None => Ok(Outcome { messages: applied.messages, operations: plan.len(), failed: Vec::new() }),
        }
    }
}
