//! The text of one manifest to the objects in it. Does not touch the file system, and never panics: it is fuzzed.

use ferroxy_core::{Diagnostic, Object as Subject};
use serde_json::Value;
use tracing::debug;

use super::document::{self, Document, Unreadable};
use super::{MAX_DEPTH, MAX_OBJECTS};
use crate::object::{Kind, Object};
use crate::wire::field::{Note, Notes};
use crate::wire::{self, Decoded};

/// Reads a manifest. The name is where it came from: diagnostics show it, and `.json` at its end makes it JSON.
/// Objects come in the order of the text, two of the same name both.
pub fn read_str(name: &str, text: &str) -> (Vec<Object>, Vec<Diagnostic>) {
    let reading = read(name, text);
    (reading.objects, reading.diagnostics)
}

#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) objects: Vec<Object>,
    pub(super) diagnostics: Vec<Diagnostic>,
    /// Something in the text could not be read at all: there may be objects in it that are not seen here.
    pub(super) incomplete: bool,
}

impl Reading {
    /// Nothing could be read.
    pub(super) fn refused(name: &str, field: &str, reason: String) -> Reading {
        let mut reading = Reading::default();
        reading.lost(name, field.to_owned(), reason);
        reading
    }

    fn lost(&mut self, name: &str, field: String, reason: String) {
        self.incomplete = true;
        self.diagnostics.push(Diagnostic {
            object: file(name),
            field,
            reason,
            effect: "the objects in it are not seen".to_owned(),
        });
    }
}

pub(super) fn file(name: &str) -> Subject {
    Subject { kind: "File", name: name.to_owned() }
}

pub(super) fn read(name: &str, text: &str) -> Reading {
    let mut reader = Reader { name, reading: Reading::default(), full: false };
    if name.ends_with(".json") {
        document::json(text).for_each(|document| reader.document(document));
    } else {
        document::yaml(text).for_each(|document| reader.document(document));
    }
    reader.reading
}

struct Reader<'a> {
    name: &'a str,
    reading: Reading,
    /// There were more objects than we take; that has been said.
    full: bool,
}

/// A value that should be an object, and what the list around it said about its kind.
struct Item<'a> {
    value: &'a Value,
    /// `document 2`, `document 2, items[7]`
    place: String,
    api_version: &'a str,
    kind: &'a str,
}

impl Reader<'_> {
    fn document(&mut self, document: Document) {
        let place = format!("document {}", document.number);
        match document.content {
            Ok(value) => self.item(Item { value: &value, place, api_version: "", kind: "" }, 0),
            Err(Unreadable { at: Some((line, column)), reason }) => {
                self.reading.lost(self.name, format!("{place}, line {line} column {column}"), reason);
            }
            Err(Unreadable { at: None, reason }) => self.reading.lost(self.name, place, reason),
        }
    }

    fn item(&mut self, item: Item<'_>, depth: usize) {
        let text =
            |field: &str| item.value.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let kind = text("kind").unwrap_or(item.kind);
        let api_version = text("apiVersion").unwrap_or(item.api_version);
        let entries = item.value.get("items").and_then(Value::as_array);
        match (kind.strip_suffix("List"), entries) {
            (Some(of), Some(entries)) if depth < MAX_DEPTH => {
                for (i, value) in entries.iter().enumerate() {
                    let place = format!("{}, items[{i}]", item.place);
                    self.item(Item { value, place, api_version, kind: of }, depth + 1);
                }
            }
            _ => self.object(&item, api_version, kind),
        }
    }

    fn object(&mut self, item: &Item<'_>, api_version: &str, kind: &str) {
        let known = wire::known_kind(api_version, kind);
        match known {
            Some(_) if self.reading.objects.len() >= MAX_OBJECTS => self.too_many(item),
            Some(kind) => self.decode(item, kind),
            None if api_version.is_empty() && is_one_of_ours(kind) => {
                self.reading.diagnostics.push(Diagnostic {
                    object: file(self.name),
                    field: format!("{}, apiVersion", item.place),
                    reason: "is missing".to_owned(),
                    effect: format!("this {kind} is not seen"),
                });
            }
            None => debug!(file = self.name, at = item.place, api_version, kind, "not a kind a proxy reads"),
        }
    }

    fn decode(&mut self, item: &Item<'_>, kind: Kind) {
        let mut notes = Notes::default();
        match wire::decode(kind, item.value, &mut notes) {
            Ok(Decoded::Object(object)) => {
                let subject = object.key().subject();
                let diagnostic = |note: Note| Diagnostic {
                    object: subject.clone(),
                    field: note.field,
                    reason: note.reason,
                    effect: "it is treated as absent".to_owned(),
                };
                self.reading.diagnostics.extend(notes.0.into_iter().map(diagnostic));
                self.reading.objects.push(object);
            }
            Ok(Decoded::LeftOut) => debug!(file = self.name, at = item.place, "left out by its labels"),
            Ok(Decoded::Nameless) => self.reading.lost(
                self.name,
                format!("{}, metadata.name", item.place),
                format!("this {} has no name", kind.as_str()),
            ),
            Err(error) => self.reading.lost(self.name, item.place.clone(), error.to_string()),
        }
    }

    fn too_many(&mut self, item: &Item<'_>) {
        if !self.full {
            self.full = true;
            let reason = format!("the file holds more than {MAX_OBJECTS} objects");
            self.reading.lost(self.name, item.place.clone(), reason);
        }
    }
}

fn is_one_of_ours(kind: &str) -> bool {
    [Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::Slice].iter().any(|known| known.as_str() == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Key;

    fn keys(text: &str) -> Vec<String> {
        let (objects, diagnostics) = read_str("a.yaml", text);
        assert_eq!(diagnostics, []);
        objects.iter().map(|object| object.key().subject().to_string()).collect()
    }

    fn shown(name: &str, text: &str) -> Vec<String> {
        read_str(name, text).1.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_four_kinds_of_many_documents() {
        let text = "
{kind: Service, apiVersion: v1, metadata: {name: web}}
---
{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, metadata: {name: web-1, namespace: shop}}
---
{kind: Node, apiVersion: v1, metadata: {name: ka}}
---
{kind: ServiceCIDR, apiVersion: networking.k8s.io/v1, metadata: {name: kubernetes}}
";
        let expected =
            ["Service default/web", "EndpointSlice shop/web-1", "Node ka", "ServiceCIDR kubernetes"];
        assert_eq!(keys(text), expected);
    }

    #[test]
    fn lists_of_every_spelling() {
        let list = "
kind: List
apiVersion: v1
items:
- {kind: Service, apiVersion: v1, metadata: {name: a}}
- {kind: ServiceList, apiVersion: v1, items: [{metadata: {name: b}}]}
---
{kind: EndpointSliceList, apiVersion: discovery.k8s.io/v1, items: [{metadata: {name: c}}]}
---
{kind: ServiceList, apiVersion: v1, items: []}
";
        assert_eq!(keys(list), ["Service default/a", "Service default/b", "EndpointSlice default/c"]);
    }

    #[test]
    fn what_is_not_ours_is_passed_over() {
        for text in [
            "{kind: Deployment, apiVersion: apps/v1, metadata: {name: a}}",
            "{kind: Service, apiVersion: serving.knative.dev/v1, metadata: {name: a}}",
            "{kind: KubeProxyConfiguration, apiVersion: kubeproxy.config.k8s.io/v1alpha1}",
            "{probes: [], healthCheckNodePorts: {}}",
            "[1, 2, 3]",
            "just text",
            "kind: 7",
            "",
        ] {
            assert_eq!(keys(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn our_kinds_without_a_version_are_pointed_out() {
        let expected = ["File a.yaml: document 1, apiVersion: is missing; this Service is not seen"];
        assert_eq!(shown("a.yaml", "{kind: Service, metadata: {name: a}}"), expected);
    }

    #[test]
    fn a_broken_document_is_named_by_place_and_leaves_its_neighbours() {
        let text = "{kind: Node, apiVersion: v1, metadata: {name: a}}\n---\nkind: [\n---\n\
                    {kind: Node, apiVersion: v1, metadata: {name: b}}\n";
        let reading = read("a.yaml", text);
        assert!(reading.incomplete);
        let names: Vec<Key> = reading.objects.iter().map(Object::key).collect();
        assert_eq!(names.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let shown = shown("a.yaml", text);
        assert_eq!(shown.len(), 1);
        assert!(shown[0].starts_with("File a.yaml: document 2, line "), "{shown:?}");
        assert!(shown[0].ends_with("; the objects in it are not seen"), "{shown:?}");
    }

    #[test]
    fn a_wrong_field_is_named_and_counts_as_absent() {
        let text = "{kind: Service, apiVersion: v1, metadata: {name: a}, spec: {clusterIP: [1]}}";
        let expected =
            ["Service default/a: spec.clusterIP: must be text, but is a list; it is treated as absent"];
        assert_eq!(shown("a.yaml", text), expected);
        assert!(!read("a.yaml", text).incomplete);
    }

    #[test]
    fn an_object_without_a_name_is_lost() {
        let expected = [
            "File a.yaml: document 1, metadata.name: this Service has no name; the objects in it are not seen",
        ];
        assert_eq!(shown("a.yaml", "{kind: Service, apiVersion: v1}"), expected);
        assert!(read("a.yaml", "{kind: Service, apiVersion: v1}").incomplete);
    }

    #[test]
    fn json_by_name() {
        let (objects, diagnostics) =
            read_str("a.json", r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"ka"}}"#);
        assert_eq!((objects.len(), diagnostics.len()), (1, 0));
        assert_eq!(
            shown("a.json", "{,")[0].split(';').next(),
            Some("File a.json: document 1, line 1 column 2: key must be a string")
        );
    }
}
