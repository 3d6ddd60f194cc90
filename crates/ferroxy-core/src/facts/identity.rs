//! Which objects exist: checks their names, and removes objects that a complete list does not contain.

use std::collections::BTreeSet;

use super::{Facts, MOST_DIAGNOSTICS, Touched, field};
use crate::diagnostic::{Cause, Diagnostic, Object, ObjectKind};

/// Longest object name that the API accepts.
pub(super) const LONGEST_NAME: usize = 253;

impl Facts {
    /// Removes all objects of this kind except those with these names.
    pub(super) fn keep_only(&mut self, kind: ObjectKind, names: &BTreeSet<Box<str>>) -> Touched {
        let mut touched = Touched::default();
        let is_gone = |name: &str| !names.contains(name);
        match kind {
            ObjectKind::Service => {
                let known = self.services.keys().filter(|name| is_gone(name.as_str()));
                for name in known.cloned().collect::<Vec<_>>() {
                    touched.merge(self.replace_service(&name, None));
                }
            }
            ObjectKind::EndpointSlice => {
                for name in self.slices.names().filter(|name| is_gone(name)).collect::<Vec<_>>() {
                    touched.merge(self.replace_slice(&name, None));
                }
            }
            ObjectKind::Node => {
                let known = self.nodes.keys().filter(|name| is_gone(name));
                for name in known.cloned().collect::<Vec<_>>() {
                    touched.merge(self.replace_node(name, None));
                }
            }
            ObjectKind::ServiceCidr => {
                let known = self.service_cidrs.keys().filter(|name| is_gone(name));
                for name in known.cloned().collect::<Vec<_>>() {
                    touched.merge(self.replace_service_cidr(name, None));
                }
            }
            ObjectKind::ApiServer | ObjectKind::File => {}
        }
        self.forget_nameless(kind, names);
        touched
    }

    fn forget_nameless(&mut self, kind: ObjectKind, names: &BTreeSet<Box<str>>) {
        if self.nameless.keys().any(|object| object.kind == kind) {
            let object = |name: &str| {
                let (namespace, name) = name.split_once('/').unwrap_or(("", name));
                nameless_object(kind, namespace, name)
            };
            let listed: BTreeSet<Object> = names.iter().map(|name| object(name)).collect();
            self.nameless.retain(|object, _| object.kind != kind || listed.contains(object));
        }
    }

    /// `namespace/name` if both are valid; otherwise a Diagnostic is kept until the object is deleted.
    pub(super) fn name(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Option<String> {
        match read_name(namespace, name) {
            Ok(full) => Some(full),
            Err((field, reason)) => {
                let object = nameless_object(kind, namespace, name);
                let diagnostic = Diagnostic {
                    object: object.clone(),
                    field: field.to_owned(),
                    reason,
                    effect: "the object is skipped".to_owned(),
                    cause: Cause::Field,
                };
                if self.nameless.len() < MOST_DIAGNOSTICS {
                    self.nameless.insert(object, diagnostic);
                }
                None
            }
        }
    }

    pub(super) fn name_gone(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Option<String> {
        let full = read_name(namespace, name).ok();
        if full.is_none() {
            self.nameless.remove(&nameless_object(kind, namespace, name));
        }
        full
    }
}

fn read_name(namespace: &str, name: &str) -> Result<String, (&'static str, String)> {
    for (field, text) in [("metadata.namespace", namespace), ("metadata.name", name)] {
        if text.is_empty() {
            return Err((field, "it is empty".to_owned()));
        }
        field::name(text, LONGEST_NAME).map_err(|reason| (field, reason))?;
    }
    Ok(format!("{namespace}/{name}"))
}

fn nameless_object(kind: ObjectKind, namespace: &str, name: &str) -> Object {
    Object { kind, name: format!("{}/{}", field::quoted(namespace), field::quoted(name)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};
    use crate::policy::Policy;

    fn service(name: &str) -> Event {
        let (namespace, name) = ("default".into(), name.into());
        Event::Service(event::Service { namespace, name, ..Default::default() })
    }

    fn slice(name: &str) -> Event {
        let (namespace, name) = ("default".into(), name.into());
        let (service, address_type) = (Some("web".into()), "IPv4".into());
        Event::Slice(event::EndpointSlice { namespace, name, service, address_type, ..Default::default() })
    }

    fn listed(kind: ObjectKind, names: &[&str]) -> Event {
        Event::Listed { kind, names: names.iter().map(|name| (*name).into()).collect() }
    }

    #[test]
    fn what_a_complete_list_does_not_contain_is_gone() {
        let mut facts = Facts::new(Policy::default());
        let cidr = |name: &str| event::ServiceCidr { name: name.into(), ..Default::default() };
        let node = |name: &str| event::Node { name: name.into(), ..Default::default() };
        let all = [service("web"), service("api"), service("quote\""), slice("web-1"), slice("web-2")];
        all.into_iter().for_each(|event| drop(facts.apply(event)));
        for name in ["one", "two"] {
            facts.apply(Event::Node(node(name)));
            facts.apply(Event::ServiceCidr(cidr(name)));
        }
        assert_eq!(facts.nameless.len(), 1);

        let touched = facts.apply(listed(ObjectKind::Service, &["default/web", "default/quote\""]));
        assert_eq!(touched.services.iter().map(|name| name.name()).collect::<Vec<_>>(), ["api"]);
        assert_eq!((facts.counts().services, facts.counts().slices, facts.nameless.len()), (1, 2, 1));
        let touched = facts.apply(listed(ObjectKind::EndpointSlice, &["default/web-2", "default/new"]));
        assert_eq!(touched.services.iter().map(|name| name.name()).collect::<Vec<_>>(), ["web"]);
        assert_eq!(facts.counts().slices, 1);
        facts.apply(listed(ObjectKind::Node, &["two"]));
        facts.apply(listed(ObjectKind::ServiceCidr, &[]));
        assert_eq!((facts.nodes.len(), facts.service_cidrs.len()), (1, 0));
        facts.apply(listed(ObjectKind::Service, &["default/web"]));
        assert!(facts.nameless.is_empty());
        assert!(facts.apply(listed(ObjectKind::Service, &["default/web"])).is_empty());
    }
}
