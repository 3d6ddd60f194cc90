//! Rule: how many endpoints one Service port can have. Nobody has that many; a mistake or an attack may.

use super::selection::Selection;
use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::facts::Service;
use crate::intent::Endpoint;

/// Dataplanes count endpoints in sixteen bits.
pub(crate) const LARGEST: usize = u16::MAX as usize;

/// Cuts both choices to what a dataplane can take; the first in their order stay.
pub(crate) fn limit(selection: &mut Selection) {
    selection.beyond = cut(&mut selection.cluster).max(cut(&mut selection.local));
}

fn cut(pool: &mut Vec<Endpoint>) -> usize {
    let beyond = pool.len().saturating_sub(LARGEST);
    pool.truncate(LARGEST);
    beyond
}

pub(crate) fn diagnostic(service: &Service, port: usize, beyond: usize) -> Option<Diagnostic> {
    (beyond > 0).then(|| Diagnostic {
        object: Object::service(&service.name),
        field: format!("spec.ports[{port}]"),
        reason: format!("has more than {LARGEST} endpoints"),
        effect: format!("{beyond} of them get no traffic"),
        cause: Cause::Field,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EndpointSlice, Event, Service as Object, ServicePort, SliceEndpoint, SlicePort};
    use crate::facts::Facts;
    use crate::policy::Policy;
    use crate::resolve;

    #[test]
    fn what_is_too_much_is_left_out_and_said() {
        let mut facts = Facts::new(Policy::default());
        facts.apply(Event::Service(Object {
            namespace: "default".into(),
            name: "web".into(),
            cluster_ip: "10.96.0.80".into(),
            cluster_ips: vec!["10.96.0.80".into()],
            ip_families: vec!["IPv4".into()],
            ports: vec![ServicePort { port: 80, ..ServicePort::default() }],
            ..Object::default()
        }));
        let endpoint = |n: usize| SliceEndpoint {
            addresses: vec![format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255)],
            ..SliceEndpoint::default()
        };
        facts.apply(Event::Slice(EndpointSlice {
            namespace: "default".into(),
            name: "web-1".into(),
            service: Some("web".into()),
            address_type: "IPv4".into(),
            ports: vec![SlicePort { name: Some(String::new()), port: Some(80), ..SlicePort::default() }],
            endpoints: (0..LARGEST + 3).map(endpoint).collect(),
            last_change: None,
        }));
        let (intent, diagnostics) = resolve::all(&facts);
        let service = intent.services.values().next().expect("it is still served");
        assert_eq!(service.ports[0].cluster.len(), LARGEST);
        let expected =
            "Service default/web: spec.ports[0]: has more than 65535 endpoints; 3 of them get no traffic";
        assert!(diagnostics.iter().any(|diagnostic| diagnostic.to_string() == expected), "{diagnostics:?}");
    }
}
