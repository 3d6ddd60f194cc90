//! The capabilities of nftables mode.

use std::sync::Arc;

use ferroxy_core::{Family, Intent, ServiceIntent};
use ferroxy_dataplane::capability::Notify;
use ferroxy_dataplane::capability::leftovers::{Established, InForce, Leftovers};
use ferroxy_dataplane::{
    Changed, Failure, Outcome, Persists, Programmed, Repair, TakesOver, Tidies, Verifies, Watches,
};
use ferroxy_netfilter::leftovers::{self, Own};
use ferroxy_netfilter::tables::{self, KUBE_PROXY, kernel_family};
use ferroxy_netfilter::{failure, successor, watch};

use super::Nftables;
use super::apply::{ApplyError, apply};
use super::early::EarlyLook;
use super::observe::observe;
use crate::TABLE;
use crate::diff::Unknown;
use crate::element::SetId;
use crate::place;
use crate::render::elements;

/// How many operations of a repair are shown.
const EXAMPLES: usize = 3;

impl Persists for Nftables {
    fn is_cold(&mut self) -> Result<bool, Failure> {
        for family in &self.families {
            let chains = self.connection.chains(kernel_family(*family), TABLE).map_err(failure::of)?;
            if chains.iter().any(|chain| chain.hook.is_some()) {
                return Ok(false);
            }
        }
        Ok(tables::of_kube_proxy(&mut self.connection).map_err(failure::of)?.is_empty())
    }

    fn look_ahead(&mut self) {
        self.early = EarlyLook::begin();
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.unknown = if keep { Unknown::Keep } else { Unknown::Remove };
    }

    fn programmed(&mut self, _: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        let seen = observe(&mut self.connection).map_err(failure::of)?;
        if !seen.is_in_force() {
            return Ok(Programmed::Nothing);
        }
        let (mut right, mut wanted) = (0, 0);
        elements(&place::onto_kernel(&seen, service), &mut |family, element| {
            if let Some(table) = seen.tables.get(&family) {
                wanted += 1;
                let entry = table.get(element.set, &element.key);
                right += usize::from(entry.is_some_and(|entry| entry.is_same(&element)));
            }
        });
        Ok(Programmed::Parts { right, wanted })
    }
}

impl Verifies for Nftables {
    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        self.localhost.retry();
        let now = self.generation()?;
        Ok(self.generation.compare(now))
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        // Read before the tables: a change while they are listed must be noticed by the next comparison.
        let elsewhere = self.generation.elsewhere();
        let generation = self.connection.generation();
        let seen = observe(&mut self.connection).map_err(failure::of)?;
        let plan = self.ledger.plan_repair(seen, self.unknown);
        let receipt = apply(&mut self.connection, &plan)?;
        self.generation.expect(generation.unwrap_or_default(), elsewhere);
        self.generation.committed(receipt.commits);
        let examples = plan.ops().take(EXAMPLES).map(ToString::to_string).collect();
        Ok(Repair { receipt, operations: plan.len(), examples, unrepaired: None })
    }
}

impl Watches for Nftables {
    fn watch(&mut self, notify: Notify) -> Result<(), Failure> {
        let mut listener = self.generation.listener();
        let watch = watch::watch(move |notice| listener.receive(notice), notify)?;
        watch.ignorer.ignore(self.connection.port_id()).map_err(failure::of)?;
        self.watch = Some(watch);
        Ok(())
    }
}

impl Tidies for Nftables {
    fn tidy(&mut self) -> Result<Outcome, Failure> {
        let outcome = self.remove_unused();
        self.committed(outcome)
    }
}

impl Nftables {
    fn remove_unused(&mut self) -> Result<Outcome, ApplyError> {
        let mut outcome = Outcome::default();
        // Services that cannot be read may use it.
        if self.unknown == Unknown::Keep {
            return Ok(outcome);
        }
        let plan = self.ledger.plan_tidy();
        self.commit(&plan.changes, &mut outcome)?;
        // Nothing leads to the chains now: even if the kernel refuses to remove one, it cannot be used again as it is.
        self.ledger.settle_tidy();
        self.commit(&plan.tidy, &mut outcome)?;
        Ok(outcome)
    }
}

impl TakesOver for Nftables {
    /// The tables of kube-proxy that `start` replaced are reported first.
    fn remove_leftovers(&mut self, in_force: InForce, established: Established) -> Leftovers {
        let own = match in_force {
            InForce::Yes => Some(Own::Nftables),
            InForce::No => None,
        };
        let mut left = leftovers::remove(own, established);
        let replaced = self.replaced.drain(..).map(|family| tables::describe(family, KUBE_PROXY));
        left.removed.splice(0..0, replaced);
        left
    }

    fn not_replaced(&mut self) -> Result<Vec<Family>, Failure> {
        let mut alone = Vec::new();
        for family in Family::ALL {
            let own = SetId::ClusterIps.name();
            if successor::has_elements(&mut self.connection, family, TABLE, own).map_err(failure::of)?
                && !successor::serves(&mut self.connection, family).map_err(failure::of)?
            {
                alone.push(family);
            }
        }
        Ok(alone)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use ferroxy_core::Family;
    use ferroxy_dataplane::Dataplane;
    use ferroxy_lab::{Capability, Namespace, require};

    use super::*;
    use crate::settings::Settings;

    /// For a test that hangs.
    const FOREVER: Duration = Duration::from_secs(600);

    fn nft(namespace: &Namespace, script: &str) {
        let done = namespace.run(|| Command::new("nft").arg(script).output()).unwrap().unwrap();
        assert!(done.status.success(), "{script}: {done:?}");
    }

    #[test]
    fn commits_of_others_elsewhere_need_no_verification() {
        if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::NftTool]) {
            return;
        }
        let namespace = Namespace::new("elsewhere").unwrap();
        let (sender, notified) = mpsc::channel();
        let mut dataplane = namespace
            .run(|| {
                let mut dataplane = Nftables::open(&[Family::V4], Settings::default()).unwrap();
                dataplane.watch(Box::new(move |reason| sender.send(reason).is_ok())).unwrap();
                dataplane.start(&Intent::default()).unwrap();
                dataplane
            })
            .unwrap();
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Nothing);

        for script in ["add table ip other", "add chain ip other ferroxy", "delete table ip other"] {
            nft(&namespace, script);
        }
        while dataplane.generation.elsewhere() < 3 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Elsewhere);
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Nothing, "it was reported");
        assert!(notified.try_recv().is_err(), "no notification");

        nft(&namespace, "add chain ip ferroxy strange");
        assert_eq!(notified.recv_timeout(FOREVER), Ok("another program changed table ferroxy"));
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Ours);
        assert!(dataplane.verify().unwrap().operations > 0);
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Nothing);
    }
}
