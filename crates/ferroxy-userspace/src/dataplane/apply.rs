//! Carries out plans: opens and closes listeners, adds and removes routes. `rules.rs` changes the rules in between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ferroxy_core::{Family, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Change, Failure, Outcome, Refusal};
use ferroxy_proxy::Key;

use super::{Userspace, engine};
use crate::ledger::Step;
use crate::plan::Op;
use crate::render::assign_redirects;
use crate::settings::Rules;

/// How many other ports are tried for a listener if other programs use the chosen ones.
const PORT_ATTEMPTS: usize = 64;

/// A listener that could not be opened.
#[derive(Debug)]
pub(super) struct Unopened {
    key: Key,
    reason: String,
}

impl Userspace {
    /// Opens the listeners that redirected clients arrive at.
    pub(super) fn open_redirects(&mut self) -> Result<(), Failure> {
        for _ in 0..PORT_ATTEMPTS {
            let wanted = self.ledger.scene().redirects();
            let families = self.ledger.families().to_vec();
            let ours = wanted.into_iter().filter(|(_, it)| families.contains(&Family::of(it.address.ip())));
            let ops: Vec<Op> = ours.map(|(key, redirect)| Op::SetRedirect(key, redirect)).collect();
            let failures = self.started()?.0.apply(&ops);
            let Some(first) = failures.first() else { return Ok(()) };
            if !engine::is_in_use(&first.error) {
                return Err(Failure::other(first.error.to_string()));
            }
            failures.iter().for_each(|failure| self.ledger.ports_mut().give_up(&failure.key));
            assign_redirects(self.ledger.ports_mut(), &self.settings);
        }
        Err(Failure::other("no port of the range is free for the proxy's listeners"))
    }

    pub(super) fn add_routes(&mut self, ops: &[Op]) -> Result<usize, Failure> {
        let mut added = 0;
        for op in ops {
            if let Op::AddRoute(address) = op {
                added += usize::from(self.routes.add(*address)?);
            }
        }
        Ok(added)
    }

    /// Adds local routes to the proxy's own addresses.
    pub(super) fn add_own_routes(&mut self) -> Result<usize, Failure> {
        if self.settings.rules != Rules::Nftables {
            return Ok(0);
        }
        let own = self.ledger.families().iter().map(|family| self.settings.proxy().address(*family));
        let ops: Vec<Op> = own.map(Op::AddRoute).collect();
        self.add_routes(&ops)
    }

    /// Opens and changes the listeners that these Services need, before the rules change. If another program uses a port of ours,
    /// another port is taken. Returns the listeners that could not be opened, by Service.
    pub(super) fn open_listeners(
        &mut self,
        changes: &[Change],
    ) -> Result<(Step, BTreeMap<ServiceName, Vec<Unopened>>), Failure> {
        let mut step = self.ledger.plan(changes);
        for attempt in 0.. {
            self.add_routes(&step.first)?;
            let failures = self.started()?.0.apply(&step.first);
            let mut moved = false;
            for failure in &failures {
                if engine::is_in_use(&failure.error) && attempt < PORT_ATTEMPTS {
                    moved |= self.give_up_port(&failure.key, &step);
                }
            }
            if !moved {
                return Ok((step, self.by_service(changes, failures)));
            }
            step = self.ledger.plan(changes);
        }
        Ok((step, BTreeMap::new()))
    }

    /// Whether the listener has a port of our choice: then it gets another one.
    fn give_up_port(&mut self, key: &Key, step: &Step) -> bool {
        let pool = step.first.iter().find_map(|op| match op {
            Op::SetFrontend(of, frontend) if of == key => frontend.routes.first()?.pool.clone(),
            _ => None,
        });
        let Some(pool) = pool else { return false };
        let number = self.ledger.ports().get(&pool);
        // A node port is not of our choice.
        let is_ours = number.is_some_and(|number| key.contains(&format!(":{number}/")));
        if is_ours {
            self.ledger.ports_mut().give_up(&pool);
        }
        is_ours
    }

    fn by_service(
        &self,
        changes: &[Change],
        failures: Vec<ferroxy_proxy::Failure>,
    ) -> BTreeMap<ServiceName, Vec<Unopened>> {
        let mut by_service: BTreeMap<ServiceName, Vec<Unopened>> = BTreeMap::new();
        if failures.is_empty() {
            return by_service;
        }
        for (name, service) in changes.iter().filter_map(|(name, it)| Some((name, it.as_ref()?))) {
            let fragment = self.ledger.scene().fragment(&self.ledger.in_families(service));
            for failure in failures.iter().filter(|it| fragment.frontends.contains_key(&it.key)) {
                let unopened = Unopened { key: failure.key.clone(), reason: failure.error.to_string() };
                by_service.entry(name.clone()).or_default().push(unopened);
            }
        }
        by_service
    }

    /// Closes unreferenced listeners, and records the Services that are in force.
    pub(super) fn finish(
        &mut self,
        changes: Vec<Change>,
        unopened: BTreeMap<ServiceName, Vec<Unopened>>,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let refused: BTreeSet<ServiceName> = outcome.refused.iter().map(|it| it.service.clone()).collect();
        let accepted: Vec<Change> = changes.into_iter().filter(|(name, _)| !refused.contains(name)).collect();
        let last = self.ledger.plan(&accepted).last;
        outcome.operations += last.len();
        if let Some(proxy) = &self.proxy {
            proxy.apply(&last);
        }
        for op in &last {
            if let Op::RemoveRoute(address) = op {
                self.routes.remove(*address)?;
            }
        }
        if self.ledger.acknowledged().node().count_traffic {
            let seen = |service: &Arc<ServiceIntent>| self.ledger.in_families(service);
            self.traffic.follow(accepted.iter().map(|(name, it)| (name, it.as_ref().map(seen))));
        }
        for (name, service) in accepted {
            let failed = unopened.get(&name).into_iter().flatten();
            self.ledger.settle(&name, service, failed.map(|it| it.key.clone()).collect());
        }
        for (service, failed) in unopened {
            if let Some(first) = failed.into_iter().next() {
                outcome.refused.push(Refusal { service, reason: first.reason });
            }
        }
        Ok(())
    }
    /// Follows all Services: counting may be on or off now.
    pub(super) fn follow_all(&self) {
        let in_force = self.ledger.acknowledged();
        let services = in_force.services().filter(|_| in_force.node().count_traffic);
        self.traffic.follow_all(services.map(|(name, it)| (name, self.ledger.in_families(&it))));
    }
}
