//! The chains of treatments: picking an endpoint, masquerading, traffic policy Local, session affinity.

use ferroxy_core::intent::LocalDetector;

use super::Program;
use crate::chain::{ChainId, Kind, Pool, Treatment};
use crate::element::{Scope, SetId};
use crate::rule::{Field, Rule, RuleWriter, frontend_fields, recalled_frontend_fields};

/// A client of a Service port, whose number is in the packet's priority.
const CLIENT: [Field; 2] = [Field::Saddr, Field::Priority];

impl Program<'_> {
    /// The rules of a treatment's chain.
    pub(super) fn treat(&self, treatment: Treatment) -> Vec<Rule> {
        let Treatment { kind, scope, .. } = treatment;
        let masquerade = || self.rule().set_mark(self.settings.masquerade_mark).done();
        let goto = |kind| self.rule().goto(&ChainId::Treat(treatment.with(kind)).to_string()).done();
        match kind {
            Kind::Pick(pool) => self.pick(treatment, pool),
            Kind::External => vec![masquerade(), goto(Kind::Pick(Pool::Main))],
            Kind::ExternalLocal => self.near_or_local(treatment.with(Kind::Pick(Pool::Main))),
            Kind::Sticky(pool) => {
                let port = self.rule().put_priority_from(frontend_fields(scope), SetId::StickyPorts(scope));
                let known = self.rule().put_destination_from(&CLIENT, SetId::Affinity);
                let recall = ChainId::Recall(scope, pool).to_string();
                vec![port.done(), known.jump(&recall).done(), goto(Kind::Pick(pool))]
            }
            Kind::StickyExternal => vec![masquerade(), goto(Kind::Sticky(Pool::Main))],
            Kind::StickyExternalLocal => self.near_or_local(treatment.with(Kind::Sticky(Pool::Main))),
        }
    }

    /// Picks one of `count` endpoints. The rules after the first are for packets that looked the frontend up before endpoints left.
    fn pick(&self, treatment: Treatment, pool: Pool) -> Vec<Rule> {
        let Treatment { scope, count, part, .. } = treatment;
        let endpoints = SetId::Endpoints(scope, part);
        let mut rules = vec![self.rule().clear_priority().pick(count, pool, scope, endpoints).done()];
        if count > 1 {
            rules.push(
                self.rule().pick(1, pool, scope, endpoints).done_with("endpoints were removed meanwhile"),
            );
        }
        if (pool, scope) == (Pool::Main, Scope::Address) {
            rules.push(self.sole_endpoint_rule().done_with("only one endpoint is left"));
        }
        rules
    }

    pub(super) fn sole_endpoint_rule(&self) -> RuleWriter {
        self.rule().translate_to(frontend_fields(Scope::Address), SetId::SoleEndpoints)
    }

    /// External traffic policy Local does not apply to clients inside the cluster: pods reach all endpoints, and so does this host,
    /// masqueraded. All others get the treatment for endpoints on this node; without one the packet stays untranslated, and
    /// the `unserved` chains drop it.
    fn near_or_local(&self, near: Treatment) -> Vec<Rule> {
        let chain = ChainId::Treat(near).to_string();
        let mut rules = Vec::new();
        if let Some(detector) = &self.intent.local_detector {
            rules.push(from_pod(self.rule(), detector).goto(&chain).done_with("pods may go anywhere"));
        }
        let from_host = || self.rule().is_local(Field::Saddr);
        let masqueraded = self.translated_here().is_local(Field::Saddr);
        rules.push(masqueraded.set_mark(self.settings.masquerade_mark).done());
        rules.push(from_host().goto(&chain).done_with("this host may go anywhere"));
        let (key, map) = (frontend_fields(near.scope), SetId::LocalFrontends(near.scope));
        rules.push(self.rule().treat(key, map, SetId::Treatments(Pool::Local)).done());
        rules.push(self.rule().clear_priority().done());
        rules
    }

    /// The packet's destination is now the remembered endpoint. If that is no longer an endpoint of the frontend, its entry is
    /// deleted and the destination restored, and the rule that follows the jump picks another.
    pub(super) fn recall(&self, scope: Scope, pool: Pool) -> Vec<Rule> {
        let endpoints = match pool {
            Pool::Main => SetId::StickyEndpoints(scope),
            Pool::Local => SetId::StickyLocalEndpoints(scope),
        };
        let frontend = recalled_frontend_fields(scope);
        let remembered = [frontend, &[Field::Daddr]].concat();
        vec![
            self.rule().dispatch(&remembered, endpoints).done(),
            self.rule().forget(&CLIENT, SetId::Affinity).done(),
            self.rule().restore_destination().done(),
        ]
    }
}

fn from_pod(rule: RuleWriter, detector: &LocalDetector) -> RuleWriter {
    match detector {
        LocalDetector::SourceIn(net) => rule.address_in(Field::Saddr, *net),
        LocalDetector::Interface(name) => rule.interface(name),
        LocalDetector::InterfacePrefix(prefix) => rule.interface(&format!("{prefix}*")),
    }
}
