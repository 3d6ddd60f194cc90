//! Applies a Plan: adds addresses, opens and closes sockets, removes addresses. Failures are reported; the rest is in force.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use ferroxy_dataplane::Failure;
use ferroxy_proxy::{Change, Key};
use tracing::warn;

use super::Winuserspace;
use super::journal::MOST;
use crate::plan::{Op, Plan};
use crate::state::{State, needed_address};

/// The result of a Plan.
#[derive(Debug, Default)]
pub(super) struct Applied {
    pub operations: usize,
    pub addresses: BTreeMap<IpAddr, String>,
    pub frontends: BTreeMap<Key, String>,
    /// An address could not be removed: it is tried again by verification.
    pub is_left: bool,
}

impl Applied {
    /// Why a part of this Service is not in force.
    pub(super) fn reason(&self, fragment: &State) -> Option<String> {
        let of_address = fragment.addresses.iter().find_map(|ip| self.addresses.get(ip));
        let of_frontend = || fragment.frontends.keys().find_map(|key| self.frontends.get(key));
        of_address.or_else(of_frontend).cloned()
    }
}

impl Winuserspace {
    pub(super) fn carry_out(&mut self, plan: &Plan) -> Result<Applied, Failure> {
        let mut applied = Applied::default();
        self.add_addresses(plan.added().collect(), &mut applied);
        self.change_engine(plan, &mut applied)?;
        self.remove_addresses(plan.removed().collect(), &mut applied);
        let failed = applied.addresses.len() + applied.frontends.len();
        applied.operations = plan.len().saturating_sub(failed);
        Ok(applied)
    }

    fn add_addresses(&mut self, wanted: Vec<IpAddr>, applied: &mut Applied) {
        if wanted.is_empty() {
            return;
        }
        let mut fail = |ip: IpAddr, error: &io::Error| {
            applied.addresses.insert(ip, format!("cannot add the address {ip}: {error}"));
        };
        // Addresses that were ours before stay ours even if this attempt fails: they return when an interface comes up again.
        let is_new = |ip: &&IpAddr| !self.journal.ours().contains(ip);
        let new: BTreeSet<IpAddr> = wanted.iter().filter(is_new).copied().collect();
        // An address that the journal does not have must not be added: it would never be removed.
        let beyond: BTreeSet<IpAddr> = match self.journal.remember(&wanted) {
            Ok(beyond) => beyond.into_iter().collect(),
            Err(error) => {
                wanted.iter().for_each(|ip| fail(*ip, &error));
                return;
            }
        };
        let too_many = io::Error::other(format!("this host has {MOST} addresses of Services already"));
        beyond.iter().for_each(|ip| fail(*ip, &too_many));
        let mut not_ours = Vec::new();
        for ip in wanted.into_iter().filter(|ip| !beyond.contains(ip)) {
            match self.interface.add(ip) {
                Ok(true) => drop(self.in_force.addresses.insert(ip)),
                Ok(false) => {
                    self.in_force.addresses.insert(ip);
                    not_ours.push(ip);
                }
                Err(error) => {
                    fail(ip, &error);
                    not_ours.push(ip);
                }
            }
        }
        not_ours.retain(|ip| new.contains(ip));
        self.remember_less(&not_ours);
    }

    fn change_engine(&mut self, plan: &Plan, applied: &mut Applied) -> Result<(), Failure> {
        let mut change = plan.change();
        change.frontends.retain(|key, frontend| {
            let needed = frontend.as_ref().and_then(|it| needed_address(key, it));
            let missing = needed.and_then(|ip| applied.addresses.get(&ip));
            if let Some(reason) = missing {
                applied.frontends.insert(key.clone(), reason.clone());
            }
            missing.is_none()
        });
        if !change.is_empty() {
            for failure in self.started()?.apply(change).failures {
                applied.frontends.insert(failure.key, failure.error.to_string());
            }
        }
        for op in plan.ops() {
            match op {
                Op::SetPool(key, pool) => drop(self.in_force.pools.insert(key.clone(), pool.clone())),
                Op::RemovePool(key) => drop(self.in_force.pools.remove(key)),
                Op::SetFrontend(key, _) if applied.frontends.contains_key(key) => {
                    self.in_force.frontends.remove(key);
                }
                Op::SetFrontend(key, it) => drop(self.in_force.frontends.insert(key.clone(), it.clone())),
                Op::RemoveFrontend(key) => drop(self.in_force.frontends.remove(key)),
                Op::AddAddress(_) | Op::RemoveAddress(_) => {}
            }
        }
        Ok(())
    }

    /// Removes only addresses of ours: an address that the host had before stays.
    pub(super) fn remove_addresses(&mut self, unwanted: Vec<IpAddr>, applied: &mut Applied) {
        let (ours, mut gone): (Vec<IpAddr>, Vec<IpAddr>) =
            unwanted.into_iter().partition(|ip| self.journal.ours().contains(ip));
        for ip in &gone {
            self.in_force.addresses.remove(ip);
        }
        let removed = self.interface.remove(&ours);
        for (ip, removed) in ours.into_iter().zip(removed) {
            match removed {
                Ok(()) => {
                    self.in_force.addresses.remove(&ip);
                    gone.push(ip);
                }
                Err(error) => {
                    warn!("cannot remove the address {ip}: {error}");
                    applied.addresses.insert(ip, format!("cannot remove the address {ip}: {error}"));
                    applied.is_left = true;
                }
            }
        }
        self.remember_less(&gone);
    }

    /// An error is only logged: if the file names too many addresses, the next look compares them with the host's.
    pub(super) fn remember_less(&mut self, addresses: &[IpAddr]) {
        if let Err(error) = self.journal.forget(addresses) {
            warn!("cannot write which addresses are ours: {error}");
        }
    }

    /// Removes our addresses if they are on another interface than the configured one. The next Plan adds them again.
    pub(super) fn leave_other_interface(&mut self) -> Result<(), Failure> {
        if self.journal.interface() == self.interface.name() {
            return Ok(());
        }
        let ours: Vec<IpAddr> = self.journal.ours().iter().copied().collect();
        let mut applied = Applied::default();
        self.remove_addresses(ours, &mut applied);
        if let Some(reason) = applied.addresses.into_values().next() {
            return Err(Failure::other(reason));
        }
        let name = self.interface.name().to_owned();
        self.journal.set_interface(&name);
        Ok(())
    }

    /// Stops listening, without a Plan: for cleanup.
    pub(super) fn close_everything(&mut self) {
        let Some(engine) = &self.engine else { return };
        let mut change = Change::default();
        self.in_force.frontends.keys().for_each(|key| drop(change.frontends.insert(key.clone(), None)));
        self.in_force.pools.keys().for_each(|key| drop(change.pools.insert(key.clone(), None)));
        engine.apply(change);
        self.in_force = State { addresses: BTreeSet::clone(&self.in_force.addresses), ..State::default() };
    }
}
