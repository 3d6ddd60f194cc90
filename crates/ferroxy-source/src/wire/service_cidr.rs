//! `networking.k8s.io/v1` ServiceCIDR: the ranges cluster IPs come from.

use ferroxy_core::event;
use serde::Deserialize;

use super::field::{Field, Notes, mappings};
use super::metadata::{Identity, Metadata};
use super::{Decoded, Wire};
use crate::object::Object;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceCidr {
    metadata: Field<Metadata>,
    spec: Field<Spec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    cidrs: Field<Vec<Field<String>>>,
}

mappings!(Spec);

impl Wire for ServiceCidr {
    fn metadata(&mut self) -> &mut Field<Metadata> {
        &mut self.metadata
    }

    fn read(self, notes: &mut Notes) -> Decoded {
        let Some(identity) = Identity::read(self.metadata, notes) else { return Decoded::Nameless };
        let spec = self.spec.take(format_args!("spec"), notes).unwrap_or_default();
        let cidrs = spec.cidrs.texts(format_args!("spec.cidrs"), notes);
        Decoded::Object(Object::service_cidr(event::ServiceCidr { name: identity.name, cidrs }))
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Event;
    use serde_json::json;

    use super::*;
    use crate::object::Kind;

    #[test]
    fn ranges_in_order_and_wrong_ones_noted() {
        let mut notes = Notes::default();
        let value =
            json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16", 7, "fd00::/112"]}});
        let decoded = super::super::decode(Kind::ServiceCidr, value, &mut notes).unwrap();
        let Decoded::Object(object) = decoded else { panic!("{decoded:?}") };
        let Event::ServiceCidr(cidr) = object.into() else { panic!() };
        assert_eq!(
            (cidr.name.as_str(), cidr.cidrs),
            ("kubernetes", vec!["10.96.0.0/16".into(), "fd00::/112".into()])
        );
        assert_eq!(notes.0[0].field, "spec.cidrs[1]");
    }
}
