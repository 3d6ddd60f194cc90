//! The capabilities of kernelspace mode.
//!
//! HNS announces endpoints and networks, and its own end; it announces nothing about load balancers. So their ids are listed
//! every `syncPeriod`, and a share of them is read again each time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ferroxy_core::{Intent, ServiceIntent};
use ferroxy_dataplane::capability::leftovers::{Established, InForce, Leftovers};
use ferroxy_dataplane::capability::{Notify, RefusalCount};
use ferroxy_dataplane::{
    Changed, CountsRefusals, Failure, Persists, Programmed, Repair, SignsOfLife, TakesOver, Verifies, Watches,
};
use ferroxy_hcn::Kind;
use tracing::warn;

use super::announcements::Announcements;
use super::{Error, Kernelspace, Life};
use crate::plan::Plan;
use crate::render::fragment;
use crate::state::Frontend;
use crate::text;

impl Persists for Kernelspace {
    fn is_cold(&mut self) -> Result<bool, Failure> {
        let node = self.ledger.node().clone();
        self.look_at_everything(&node)?;
        Ok(self.mirror.balancers.values().all(|seen| !seen.is_own && !seen.is_unclaimed))
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.keep_unknown = keep;
    }

    /// Parts are load balancers and endpoints.
    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        let surroundings = self.refresh(&intent.node)?;
        let wanted = fragment(service, &intent.node, &surroundings);
        let seen = self.mirror.state(&wanted);
        if seen.is_empty() {
            return Ok(Programmed::Nothing);
        }
        let balancers = wanted.balancers.iter().filter(|(at, it)| seen.balancers.get(at) == Some(it)).count();
        let endpoints = wanted
            .endpoints
            .iter()
            .filter(|(ip, it)| seen.endpoints.get(ip) == Some(it) || self.mirror.is_of_others(**ip));
        Ok(Programmed::Parts {
            right: balancers + endpoints.count(),
            wanted: wanted.balancers.len() + wanted.endpoints.len(),
        })
    }
}

impl Verifies for Kernelspace {
    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        Ok(Changed::Ours)
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        let before = self.hcn.calls();
        let node = self.ledger.node().clone();
        self.refresh(&node)?;
        let (plan, missing) = self.plan_to_keep();
        let applied = self.carry_out(&plan)?;
        for (at, ip) in &missing {
            warn!(
                "{}: HNS has no endpoint for the pod {ip} of this node: it gets no traffic",
                text::frontend(at)
            );
        }
        let wanted = self.wanted();
        for ip in self.mirror.stuck(&wanted) {
            warn!("the endpoint {ip} is outdated, and stays: a load balancer of another program names it");
        }
        let remaining = if plan.is_empty() { Plan::default() } else { self.plan_all(wanted).0 };
        let because = applied.refused.first().map(|(op, error)| format!("{op}: {error}"));
        Ok(Repair {
            receipt: self.receipt(before),
            operations: plan.len(),
            examples: examples(&plan),
            unrepaired: (!remaining.is_empty())
                .then(|| because.unwrap_or_else(|| examples(&remaining).join("; "))),
        })
    }
}

/// The first operations, for people.
fn examples(plan: &Plan) -> Vec<String> {
    plan.ops().iter().take(3).map(ToString::to_string).collect()
}

impl Watches for Kernelspace {
    fn watch(&mut self, notify: Notify) -> Result<(), Failure> {
        self.announcements = Some(Announcements::new(notify));
        self.listen();
        Ok(())
    }
}

impl CountsRefusals for Kernelspace {
    fn refusals(&self) -> Vec<RefusalCount> {
        self.failures.read()
    }
}

impl SignsOfLife for Kernelspace {
    fn show_life(&mut self, alive: Box<dyn Fn() + Send>) {
        self.life = Some(Life { alive, shown: Instant::now() });
    }
}

impl TakesOver for Kernelspace {
    /// kube-proxy's load balancers at our frontends are adopted or replaced as soon as they are seen. This removes its other load
    /// balancers, and only those that no other program can have made.
    fn remove_leftovers(&mut self, in_force: InForce, _: Established) -> Leftovers {
        if in_force == InForce::No {
            return self.remove_all_leftovers();
        }
        let mut leftovers = Leftovers::default();
        if self.is_certain && !self.keep_unknown {
            let wanted: BTreeSet<Frontend> =
                self.mirror.frontends().filter(|at| self.ledger.owner(at).is_some()).copied().collect();
            self.delete_leftovers(|at| wanted.contains(at), &mut leftovers);
        }
        leftovers
    }
}

impl Kernelspace {
    pub(super) fn delete_leftovers(
        &mut self,
        is_wanted: impl Fn(&Frontend) -> bool,
        leftovers: &mut Leftovers,
    ) {
        for (id, at) in self.mirror.leftovers(is_wanted) {
            let words = format!("load balancer {}", text::frontend(&at));
            match self.hcn.delete(Kind::LoadBalancer, id) {
                Ok(()) => {
                    self.mirror.forget_balancer(id);
                    leftovers.removed.push(words);
                }
                Err(error) => leftovers.failed.push(format!("{words}: {error}")),
            }
        }
    }

    pub(super) fn listen(&mut self) {
        if let Some(announcements) = &mut self.announcements {
            announcements.listen(&mut self.hcn);
        }
    }

    fn look_at_everything(&mut self, node: &ferroxy_core::NodeIntent) -> Result<(), Error> {
        match self.look(node) {
            // `is_cold` is called before the node is known.
            Err(Error::NoNodeIp | Error::NoMac(_)) => Ok(()),
            other => other,
        }
    }
}
