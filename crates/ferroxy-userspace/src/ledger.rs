//! What is in force, and the Plan for a change of some Services.
//!
//! Pure. The cost of a Plan is the size of the change: the changed Services are rendered twice (as they are, as they must be)
//! and compared; no other Service is looked at. A change is recorded after the engine and the kernel have accepted it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Acknowledged, Change};
use ferroxy_proxy::Key;

use crate::diff::compare;
use crate::fragment::{Fragment, Scene, ports_of};
use crate::plan::{Op, Plan};
use crate::portals;
use crate::ports::Ports;
use crate::render::assign_redirects;
use crate::settings::{Rules, Settings};

#[derive(Debug)]
pub struct Ledger {
    families: Vec<Family>,
    settings: Settings,
    ports: Ports,
    acknowledged: Acknowledged,
    /// Listeners that the engine could not open: they are tried again with the next change of the Service.
    failed: BTreeMap<ServiceName, BTreeSet<Key>>,
}

/// A Plan for the engine, and the changes for the rules. The kernel may refuse one Service and accept another: then the
/// accepted Services are planned again, to find the listeners that are unreferenced.
#[derive(Debug, Default)]
pub struct Step {
    /// Before the rules change.
    pub first: Vec<Op>,
    /// Only the Services whose rules differ.
    pub rules: Vec<Change>,
    /// After the rules have changed.
    pub last: Vec<Op>,
    /// Services that need more ports than there are.
    pub without_port: BTreeSet<ServiceName>,
}

/// Both halves of a Service, in force or wanted.
#[derive(Debug, Default)]
struct Rendered {
    fragment: Fragment,
    routes: BTreeSet<IpAddr>,
}

impl Ledger {
    pub fn new(families: &[Family], node: NodeIntent, settings: Settings) -> Ledger {
        let ports = Ports::new(settings.ports.clone());
        let acknowledged = Acknowledged::new(node);
        let mut ledger =
            Ledger { families: families.to_vec(), settings, ports, acknowledged, failed: BTreeMap::new() };
        assign_redirects(&mut ledger.ports, &ledger.settings);
        ledger
    }

    pub fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    pub fn ports_mut(&mut self) -> &mut Ports {
        &mut self.ports
    }

    pub fn scene(&self) -> Scene<'_> {
        Scene { node: self.acknowledged.node(), settings: &self.settings, ports: &self.ports }
    }

    /// Whether node and settings are in force.
    pub fn has_node(&self, node: &NodeIntent, settings: &Settings) -> bool {
        self.acknowledged.node() == node && self.settings == *settings
    }

    /// The step from what is in force to these Services. Assigns ports.
    pub fn plan(&mut self, changes: &[Change]) -> Step {
        let mut step = Step::default();
        let services: Vec<_> =
            changes.iter().filter_map(|(name, _)| self.acknowledged.service(name)).collect();
        let before = self.rendered(&services);
        let before = self.without_failed(before, changes.iter().map(|(name, _)| name));
        for (name, service) in changes.iter().filter_map(|(name, wanted)| Some((name, wanted.as_ref()?))) {
            let wanted = self.in_families(service);
            let keys = ports_of(&wanted, &self.settings);
            if !self.ports.assign_all(&keys) {
                step.without_port.insert(name.clone());
            }
        }
        let wanted = changes.iter().filter(|(name, _)| !step.without_port.contains(name));
        let after = self.rendered(wanted.filter_map(|(_, service)| service.as_ref()));
        let kept = step.without_port.clone();
        self.compare(before, after, &kept, &mut step);
        step.rules = changes
            .iter()
            .filter(|(name, _)| !step.without_port.contains(name))
            .filter_map(|(name, wanted)| self.rule_change(name, wanted.as_ref()))
            .collect();
        step
    }

    /// The step that changes the node, for all Services. The rules are not part of it.
    pub fn plan_node(&mut self, node: &NodeIntent, settings: &Settings) -> Step {
        let services: Vec<_> = self.acknowledged.services().map(|(_, service)| service).collect();
        let names: Vec<_> = self.acknowledged.names().cloned().collect();
        let before = self.without_failed(self.rendered(&services), &names);
        let scene = Scene { node, settings, ports: &self.ports };
        let after = self.rendered_in(&scene, &services);
        let mut step = Step::default();
        self.compare(before, after, &BTreeSet::new(), &mut step);
        step
    }

    pub fn settle_node(&mut self, node: NodeIntent, settings: Settings) {
        self.acknowledged.set_node(node);
        self.settings = settings;
    }

    /// Records that this Service is in force, except for listeners that could not be opened.
    pub fn settle(&mut self, name: &ServiceName, service: Option<Arc<ServiceIntent>>, failed: BTreeSet<Key>) {
        let wanted: BTreeSet<Key> = match &service {
            Some(service) => ports_of(&self.in_families(service), &self.settings).into_iter().collect(),
            None => BTreeSet::new(),
        };
        self.acknowledged.set_service(name, service);
        self.ports.keep_only(name, &wanted);
        match failed.is_empty() {
            true => drop(self.failed.remove(name)),
            false => drop(self.failed.insert(name.clone(), failed)),
        }
    }

    /// The part of a Service in the families that this host has.
    pub fn in_families(&self, service: &ServiceIntent) -> ServiceIntent {
        let mut service = service.clone();
        service.ports.retain(|port| self.families.contains(&port.family));
        service.cluster_ips.retain(|address| self.families.contains(&Family::of(*address)));
        service
    }

    fn rendered<'s>(&self, services: impl IntoIterator<Item = &'s Arc<ServiceIntent>>) -> Rendered {
        self.rendered_in(&self.scene(), services)
    }

    fn rendered_in<'s>(
        &self,
        scene: &Scene<'_>,
        services: impl IntoIterator<Item = &'s Arc<ServiceIntent>>,
    ) -> Rendered {
        let mut all = Rendered::default();
        for service in services {
            let service = self.in_families(service);
            let fragment = scene.fragment(&service);
            all.fragment.pools.extend(fragment.pools);
            all.fragment.frontends.extend(fragment.frontends);
            all.routes.extend(scene.routes(&service));
        }
        all
    }

    fn without_failed<'n>(
        &self,
        mut rendered: Rendered,
        names: impl IntoIterator<Item = &'n ServiceName>,
    ) -> Rendered {
        for key in names.into_iter().filter_map(|name| self.failed.get(name)).flatten() {
            rendered.fragment.frontends.remove(key);
        }
        rendered
    }

    /// `kept`: Services that stay as they are.
    fn compare(&self, before: Rendered, mut after: Rendered, kept: &BTreeSet<ServiceName>, step: &mut Step) {
        let kept: Vec<_> = kept.iter().filter_map(|name| self.acknowledged.service(name)).collect();
        let stays = self.rendered(&kept);
        after.fragment.pools.extend(stays.fragment.pools);
        after.fragment.frontends.extend(stays.fragment.frontends);
        after.routes.extend(stays.routes);
        let mut plan = Plan::default();
        plan.before_rules.extend(after.routes.difference(&before.routes).map(|it| Op::AddRoute(*it)));
        compare(before.fragment.listening(), after.fragment.listening(), &mut plan);
        plan.after_rules.extend(before.routes.difference(&after.routes).map(|it| Op::RemoveRoute(*it)));
        step.first = plan.before_rules;
        step.last = plan.after_rules;
    }

    /// The Service as the rules get to see it, if it differs from what they see now.
    fn rule_change(&self, name: &ServiceName, wanted: Option<&Arc<ServiceIntent>>) -> Option<Change> {
        let (scene, old) = (self.scene(), self.acknowledged.service(name));
        match self.settings.rules {
            Rules::Nftables => {
                let seen = |service: &Arc<ServiceIntent>| scene.for_rules(&self.in_families(service));
                let (old, new) = (old.as_ref().map(seen), wanted.map(seen));
                (old != new).then(|| (name.clone(), new.map(Arc::new)))
            }
            Rules::Iptables => {
                let written = |service: Option<&Arc<ServiceIntent>>| {
                    let services = service.map(|it| (name.clone(), it.clone())).into_iter().collect();
                    let alone = Intent { node: scene.node.clone(), services };
                    portals::render(&alone, &scene, &self.families)
                };
                (written(old.as_ref()) != written(wanted)).then(|| (name.clone(), wanted.cloned()))
            }
            Rules::None => None,
        }
    }
}
