//! Logs diagnostics: each one when it appears, and again only if it disappeared in between.

use std::collections::{BTreeSet, HashMap};

use ferroxy_core::{Diagnostic, ObjectKind, ServiceName};
use tracing::{info, warn};

#[derive(Debug, Default)]
pub(super) struct Reports {
    of_services: HashMap<ServiceName, BTreeSet<Diagnostic>>,
    of_source: BTreeSet<Diagnostic>,
    of_node: BTreeSet<Diagnostic>,
    of_others: BTreeSet<Diagnostic>,
}

impl Reports {
    /// The diagnostics of everything but the source.
    pub(super) fn all(&mut self, found: Vec<Diagnostic>) {
        let mut by_service: HashMap<ServiceName, Vec<Diagnostic>> = HashMap::new();
        let (mut node, mut others) = (Vec::new(), Vec::new());
        for diagnostic in found {
            match (diagnostic.object.kind, ServiceName::parse(&diagnostic.object.name)) {
                (ObjectKind::Service, Some(name)) => by_service.entry(name).or_default().push(diagnostic),
                (ObjectKind::Node, _) => node.push(diagnostic),
                _ => others.push(diagnostic),
            }
        }
        by_service.into_iter().for_each(|(name, found)| self.service(&name, found));
        self.node(node);
        log_what_is_new(&mut self.of_others, others);
    }

    pub(super) fn service(&mut self, name: &ServiceName, found: Vec<Diagnostic>) {
        let mut known = self.of_services.remove(name).unwrap_or_default();
        log_what_is_new(&mut known, found);
        if !known.is_empty() {
            self.of_services.insert(name.clone(), known);
        }
    }

    pub(super) fn source(&mut self, found: Vec<Diagnostic>) {
        if found.is_empty() && !self.of_source.is_empty() {
            let api_server = self.of_source.iter().find(|it| it.object.kind == ObjectKind::ApiServer);
            match api_server.map(|it| &it.object) {
                Some(object) => info!("{object}: all watches are established again"),
                None => info!("all manifests can be read again"),
            }
        }
        log_what_is_new(&mut self.of_source, found);
    }

    pub(super) fn node(&mut self, found: Vec<Diagnostic>) {
        log_what_is_new(&mut self.of_node, found);
    }
}

fn log_what_is_new(known: &mut BTreeSet<Diagnostic>, found: Vec<Diagnostic>) {
    let found: BTreeSet<Diagnostic> = found.into_iter().collect();
    found.difference(known).for_each(|diagnostic| warn!("{diagnostic}"));
    *known = found;
}

#[cfg(test)]
mod tests {
    use ferroxy_core::{Cause, Diagnostic, Object, ObjectKind};

    use crate::agent::is_whole;

    #[test]
    fn a_source_is_whole_unless_a_diagnostic_says_that_objects_may_be_missing() {
        let diagnostic = |kind, cause| Diagnostic {
            object: Object { kind, name: "it".into() },
            field: "Services".into(),
            reason: "one object cannot be used".into(),
            effect: "it is ignored".into(),
            cause,
        };
        assert!(is_whole(&[]));
        assert!(is_whole(&[diagnostic(ObjectKind::Service, Cause::Field)]));
        assert!(is_whole(&[diagnostic(ObjectKind::ApiServer, Cause::SourceStale)]));
        for kind in [ObjectKind::File, ObjectKind::ApiServer] {
            assert!(!is_whole(&[diagnostic(kind, Cause::SourceIncomplete)]), "{kind}");
        }
    }
}
