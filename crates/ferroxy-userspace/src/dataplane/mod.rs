//! The running dataplane, on Linux: keeps the proxy, and the rules that lead to it, at what the Intent asks for.
//!
//! It opens sockets, then changes rules, then closes unreferenced listeners: no client is refused that is served before and after.
//! `apply.rs` and `observe.rs` do it; `rules.rs` is the kernel's part, `engine.rs` the proxy's, `capability.rs` has the
//! capabilities, `remnants.rs` finds chains of a run with other settings.

mod adopt;
mod apply;
mod capability;
mod engine;
mod observe;
mod remnants;
mod routes;
mod rules;

use std::collections::BTreeSet;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceName};
use ferroxy_dataplane::{
    Acknowledged, Change, CountsPackets, CountsTraffic, Dataplane, Ejects, Failure, HandsOver, Outcome,
    Persists, Preview, Refusal, Settings as Values, SweepsConnections, TakesOver, Tidies, Verifies, Watches,
};
use ferroxy_pools::{Meter, Reader};
use tracing::warn;

use crate::ledger::Ledger;
use crate::render::{assign, render_with};
use crate::settings::{ClusterIps, Rules, Settings};
use engine::Proxy;
use routes::Routes;
use rules::Door;

#[derive(Debug)]
pub struct Userspace {
    /// For the next `start` or `change_node`. The ledger has those in force.
    settings: Settings,
    ledger: Ledger,
    /// Started with the first sync: by then the process has dropped what it may not keep.
    proxy: Option<Proxy>,
    door: Door,
    routes: Routes,
    meter: Meter,
    traffic: Reader,
}

impl Userspace {
    pub fn open(families: &[Family], values: &Values) -> Result<Userspace, Failure> {
        let settings = Settings::read(values);
        let meter = Meter::default();
        Ok(Userspace {
            ledger: Ledger::new(families, NodeIntent::default(), settings.clone()),
            door: Door::open(families, &settings, values)?,
            routes: Routes::open()?,
            proxy: None,
            traffic: Reader::new(&meter),
            meter,
            settings,
        })
    }

    /// The engine, started if it is not running, with the sockets of a predecessor.
    fn started(&mut self) -> Result<(&mut Proxy, bool), Failure> {
        let is_new = self.proxy.is_none();
        if is_new {
            self.proxy = Some(Proxy::start(&self.settings, &self.meter)?);
        }
        match &mut self.proxy {
            Some(proxy) => Ok((proxy, is_new)),
            None => Err(Failure::other("the proxy is not running")),
        }
    }
}

/// Everything in force, with these changes.
fn everything<'c>(ledger: &Ledger, changes: impl IntoIterator<Item = &'c Change>) -> Intent {
    let acknowledged = ledger.acknowledged();
    let services = acknowledged.services().map(|(name, it)| (name.clone(), it));
    let mut intent = Intent { node: acknowledged.node().clone(), services: services.collect() };
    for (name, service) in changes {
        match service {
            Some(service) => drop(intent.services.insert(name.clone(), service.clone())),
            None => drop(intent.services.remove(name)),
        }
    }
    intent
}

fn no_port(services: &BTreeSet<ServiceName>) -> impl Iterator<Item = Refusal> + '_ {
    services.iter().map(|service| Refusal {
        service: service.clone(),
        reason: "all ports of the proxy's range are taken (--proxy-port-range)".into(),
    })
}

impl Dataplane for Userspace {
    /// Without the right to program the kernel, node ports still work.
    fn probe(&mut self, node: &NodeIntent) -> Result<(), Failure> {
        self.ledger.settle_node(node.clone(), self.settings.clone());
        if self.settings.rules != Rules::None && !self.door.probe(&self.ledger)? {
            warn!(
                "not permitted to program the kernel (CAP_NET_ADMIN): only node ports are served, and all clients are \
                 treated as outside clients"
            );
            self.settings.rules = Rules::None;
            self.settings.cluster_ips = ClusterIps::Redirect;
            self.door = Door::None;
            let families = self.ledger.families().to_vec();
            self.ledger = Ledger::new(&families, node.clone(), self.settings.clone());
        }
        Ok(())
    }

    /// Only the idle time of UDP sessions changes while we run.
    fn configure(&mut self, values: &Values) {
        self.settings.udp_idle = Settings::read(values).udp_idle;
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        let (_, is_new) = self.started()?;
        if is_new {
            self.begin(intent)?;
        } else {
            self.change_node(intent.node.clone())?;
        }
        let added = self.add_own_routes()?;
        let gone = self.ledger.acknowledged().names();
        let gone = gone.filter(|name| !intent.services.contains_key(*name)).map(|name| (name.clone(), None));
        let mut changes: Vec<Change> = gone.collect();
        changes.extend(intent.services.iter().map(|(name, it)| (name.clone(), Some(it.clone()))));
        let (step, unopened) = self.open_listeners(&changes)?;
        // After the frontends: in the queues of sockets that were handed over, clients may wait.
        if self.settings.rules == Rules::Nftables {
            self.open_redirects()?;
        }
        let mut served = intent.clone();
        served.services.retain(|name, _| !step.without_port.contains(name));
        let mut outcome = self.door.start(&served, &self.ledger)?;
        outcome.operations += step.first.len() + added;
        outcome.refused.extend(no_port(&step.without_port));
        self.finish(changes, unopened, &mut outcome)?;
        if let Some(proxy) = &mut self.proxy {
            proxy.taken_over();
        }
        Ok(outcome)
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        let (step, unopened) = self.open_listeners(&changes)?;
        let rules = step.rules.clone();
        let (door, ledger) = (&mut self.door, &self.ledger);
        let mut outcome = {
            let all = || {
                let kept = changes.iter().filter(|(name, _)| !step.without_port.contains(name));
                everything(ledger, kept)
            };
            door.change(rules, ledger, all)?
        };
        outcome.operations += step.first.len();
        outcome.refused.extend(no_port(&step.without_port));
        self.finish(changes, unopened, &mut outcome)?;
        Ok(outcome)
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        let step = self.ledger.plan_node(&node, &self.settings);
        self.add_routes(&step.first)?;
        let failures = self.started()?.0.apply(&step.first);
        for failure in &failures {
            warn!("{}", failure.error);
        }
        self.ledger.settle_node(node, self.settings.clone());
        self.follow_all();
        let (door, ledger) = (&mut self.door, &self.ledger);
        let mut outcome = door.change_node(ledger, || everything(ledger, []))?;
        if let Some(proxy) = &self.proxy {
            proxy.apply(&step.last);
        }
        outcome.operations += step.first.len() + step.last.len();
        Ok(outcome)
    }

    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        Ok(self.ledger.has_node(node, &self.settings))
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.ledger.acknowledged()
    }

    /// Compares what the kernel has. The listeners belong to the running process and are not compared.
    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        self.begin(intent)?;
        let mut ports = self.ledger.ports().clone();
        assign(&mut ports, intent, &self.settings);
        let wanted = render_with(intent, &self.settings, self.ledger.families(), &ports);
        let plan = crate::diff(&self.observe(&wanted)?, &wanted);
        Ok(Preview { text: plan.to_string(), operations: plan.ops().map(ToString::to_string).collect() })
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        let mut removed = self.door.cleanup()?;
        let families = self.ledger.families().to_vec();
        for mut remnant in remnants::find(&families)?.into_iter().filter(|it| it.is_replaced) {
            removed.extend(remnant.chains.cleanup()?);
        }
        for address in self.routes.seen()? {
            self.routes.remove(address)?;
            removed.push(format!("local route to {address}"));
        }
        self.proxy = None;
        self.ledger = Ledger::new(&families, NodeIntent::default(), self.settings.clone());
        Ok(removed)
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

    fn tidies(&mut self) -> Option<&mut dyn Tidies> {
        Some(self)
    }

    fn takes_over(&mut self) -> Option<&mut dyn TakesOver> {
        Some(self)
    }

    fn hands_over(&mut self) -> Option<&mut dyn HandsOver> {
        Some(self)
    }

    fn counts_packets(&self) -> Option<Box<dyn CountsPackets>> {
        Some(Box::new(self.meter.clone()))
    }

    fn counts_traffic(&self) -> Option<Box<dyn CountsTraffic>> {
        Some(Box::new(self.traffic.clone()))
    }

    fn ejects(&self) -> Option<Box<dyn Ejects>> {
        Some(Box::new(self.meter.clone()))
    }

    fn sweeps_connections(&self) -> Option<Box<dyn SweepsConnections>> {
        (self.settings.rules == Rules::Nftables).then(|| capability::sweeper(&self.settings))
    }
}
