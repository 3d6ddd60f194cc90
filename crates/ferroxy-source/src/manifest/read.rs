//! Reads the objects in the text of one manifest. Does not use the file system, and never panics: it is fuzzed.

use ferroxy_core::{Cause, Diagnostic, Object as Subject, ObjectKind};
use serde_json::Value;
use tracing::debug;

use super::document::{self, Document, Unreadable};
use super::list::{EachItem, Outline};
use super::{MAX_DEPTH, MAX_OBJECTS};
use crate::object::{Kind, Object};
use crate::wire::field::{Field, Note, Notes};
use crate::wire::room::MOST_ENTRIES;
use crate::wire::{self, Decoded};

/// Reads a manifest. `name` is its origin: diagnostics show it, and `.json` at its end makes it JSON.
/// Objects come in the order of the text; of two with the same name, both.
pub fn read_str(name: &str, text: &str) -> (Vec<Object>, Vec<Diagnostic>) {
    let mut objects = Vec::new();
    let reading = read(name, text, &mut |object| objects.push(object));
    (objects, reading.diagnostics)
}

/// The problems of a text.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) diagnostics: Vec<Diagnostic>,
    /// A part of the text cannot be read: it may contain objects that are missing here.
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
            effect: "the objects in it are ignored".to_owned(),
            cause: Cause::SourceIncomplete,
        });
    }
}

pub(super) fn file(name: &str) -> Subject {
    Subject { kind: ObjectKind::File, name: name.to_owned() }
}

/// Reads a manifest and passes on each object as it is read: all at once would take a lot of memory.
pub(super) fn read(name: &str, text: &str, each: &mut dyn FnMut(Object)) -> Reading {
    let mut reader = Reader { name, each, count: 0, reading: Reading::default(), full: false };
    if name.ends_with(".json") {
        document::json(text).for_each(|document| match document {
            Ok(document) => reader.document(&document),
            Err((number, unreadable)) => reader.unreadable(number, unreadable),
        });
    } else {
        document::yaml(text).for_each(|document| reader.document(&document));
    }
    reader.reading
}

struct Reader<'a> {
    name: &'a str,
    each: &'a mut dyn FnMut(Object),
    /// How many objects there were so far.
    count: usize,
    reading: Reading,
    /// There are more objects than the limit; this was reported.
    full: bool,
}

/// A value that should be an object, with the kind that the list around it states.
struct Item<'a> {
    value: &'a Value,
    /// `document 2`, `document 2, items[7]`
    place: String,
    api_version: &'a str,
    kind: &'a str,
}

impl Reader<'_> {
    fn document(&mut self, document: &Document<'_>) {
        let read = if document.is_large() { self.large(document) } else { self.whole(document) };
        if let Err(unreadable) = read {
            self.unreadable(document.number, unreadable);
        }
    }

    fn unreadable(&mut self, number: usize, Unreadable { at, reason }: Unreadable) {
        let place = match at {
            Some((line, column)) => format!("document {number}, line {line} column {column}"),
            None => format!("document {number}"),
        };
        self.reading.lost(self.name, place, reason);
    }

    fn whole(&mut self, document: &Document<'_>) -> Result<(), Unreadable> {
        let (value, place) = (document.parse()?, format!("document {}", document.number));
        self.item(Item { value: &value, place, api_version: "", kind: "" }, 0);
        Ok(())
    }

    /// A large list is parsed twice: for its outline, which also shows that all of it can be parsed, and then item by
    /// item.
    fn large(&mut self, document: &Document<'_>) -> Result<(), Unreadable> {
        let Field::Is(Outline { kind: Field::Is(kind), api_version, items: Field::Is(_) }) =
            document.parse()?
        else {
            return self.whole(document);
        };
        let Some(kind) = kind.strip_suffix("List") else { return self.whole(document) };
        let api_version = if let Field::Is(text) = api_version { text } else { String::new() };
        document.parse_with(EachItem(|i, value: Value| {
            let place = format!("document {}, items[{i}]", document.number);
            self.item(Item { value: &value, place, api_version: &api_version, kind }, 1);
        }))
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
            Some(_) if self.count >= MAX_OBJECTS => self.too_many(item),
            Some(kind) => self.decode(item, kind),
            None if is_another_version(api_version, kind) => {
                let reason = match api_version {
                    "" => "is missing".to_owned(),
                    other => format!("{other:?} is not a supported version"),
                };
                self.reading.diagnostics.push(Diagnostic {
                    object: file(self.name),
                    field: format!("{}, apiVersion", item.place),
                    reason,
                    effect: format!("this {kind} is ignored"),
                    cause: Cause::SourceIncomplete,
                });
            }
            None => debug!(file = self.name, at = item.place, api_version, kind, "skipped: kind is not used"),
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
                    effect: "the field is treated as absent".to_owned(),
                    cause: Cause::Field,
                };
                self.reading.diagnostics.extend(notes.finish().into_iter().map(diagnostic));
                self.count += 1;
                (self.each)(object);
            }
            Ok(Decoded::LeftOut(_)) => {
                debug!(file = self.name, at = item.place, "skipped because of its labels")
            }
            Ok(Decoded::Nameless) => self.reading.lost(
                self.name,
                format!("{}, metadata.name", item.place),
                format!("this {} has no name", kind.as_str()),
            ),
            Ok(Decoded::TooManyEntries(_)) => self.reading.lost(
                self.name,
                item.place.clone(),
                format!("the lists of this {} have more than {MOST_ENTRIES} entries", kind.as_str()),
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

/// One of our kinds, but without a version, or of an unknown version.
fn is_another_version(api_version: &str, kind: &str) -> bool {
    let groups = match api_version.split_once('/') {
        Some((group, _)) => vec![group],
        None if api_version.is_empty() => vec!["", "discovery.k8s.io", "networking.k8s.io"],
        None => vec![""],
    };
    groups.into_iter().any(|group| wire::kind_in_group(group, kind).is_some())
}

#[cfg(test)]
mod tests {
    use super::super::LARGE_BYTES;
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

    fn incomplete(text: &str) -> bool {
        read("a.yaml", text, &mut drop).incomplete
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

    /// One object with too many entries is left out; what is beside it is read. In YAML and JSON, as a document and in a list.
    #[test]
    fn an_object_with_too_many_entries_is_left_out() {
        let object = |name: &str, entries: usize| {
            let addresses = vec!["\"1::\""; entries].join(",");
            format!(
                r#"{{"kind":"Service","apiVersion":"v1","metadata":{{"name":"{name}"}},"spec":{{"externalIPs":[{addresses}]}}}}"#
            )
        };
        let (huge, large, web) =
            (object("huge", MOST_ENTRIES + 1), object("large", MOST_ENTRIES), object("web", 0));
        let list = format!(r#"{{"kind":"List","apiVersion":"v1","items":[{huge},{large},{web}]}}"#);
        let why = format!("the lists of this Service have more than {MOST_ENTRIES} entries");
        for (name, text, place) in [
            ("a.yaml", format!("{huge}\n---\n{large}\n---\n{web}\n"), "document 1"),
            ("a.json", format!("{huge}\n{large}\n{web}\n"), "document 1"),
            ("a.yaml", list.clone(), "document 1, items[0]"),
            ("a.json", list, "document 1, items[0]"),
        ] {
            let (objects, diagnostics) = read_str(name, &text);
            let names: Vec<&str> = objects.iter().map(|object| object.key().name.as_str()).collect();
            assert_eq!(names, ["large", "web"], "{name}");
            let expected = format!("File {name}: {place}: {why}; the objects in it are ignored");
            assert_eq!(diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
            assert!(diagnostics.iter().all(|it| it.cause == Cause::SourceIncomplete));
        }
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
        let expected = ["File a.yaml: document 1, apiVersion: is missing; this Service is ignored"];
        assert_eq!(shown("a.yaml", "{kind: Service, metadata: {name: a}}"), expected);
        for (version, kind) in [("v2", "Service"), ("discovery.k8s.io/v1beta1", "EndpointSlice")] {
            let expected = format!(
                "File a.yaml: document 1, apiVersion: {version:?} is not a supported version; \
                 this {kind} is ignored"
            );
            let text = format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: a}}}}");
            assert_eq!(shown("a.yaml", &text), [expected]);
        }
    }

    #[test]
    fn a_broken_document_is_named_by_place_and_leaves_its_neighbours() {
        let text = "{kind: Node, apiVersion: v1, metadata: {name: a}}\n---\nkind: [\n---\n\
                    {kind: Node, apiVersion: v1, metadata: {name: b}}\n";
        assert!(incomplete(text));
        let names: Vec<Key> = read_str("a.yaml", text).0.iter().map(Object::key).cloned().collect();
        assert_eq!(names.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let shown = shown("a.yaml", text);
        assert_eq!(shown.len(), 1);
        assert!(shown[0].starts_with("File a.yaml: document 2, line "), "{shown:?}");
        assert!(shown[0].ends_with("; the objects in it are ignored"), "{shown:?}");
    }

    #[test]
    fn a_wrong_field_is_named_and_counts_as_absent() {
        let text = "{kind: Service, apiVersion: v1, metadata: {name: a}, spec: {clusterIP: [1]}}";
        let expected = [
            "Service default/a: spec.clusterIP: must be text, but is a list; the field is treated as absent",
        ];
        assert_eq!(shown("a.yaml", text), expected);
        assert!(!incomplete(text));
    }

    #[test]
    fn a_diagnostic_says_by_its_type_whether_objects_may_be_missing() {
        let cause = |text: &str| read_str("a.yaml", text).1[0].cause;
        for text in ["kind: [", "{kind: Service, apiVersion: v1}", "{kind: Service, metadata: {name: a}}"] {
            assert_eq!(cause(text), Cause::SourceIncomplete, "{text}");
        }
        let wrong_field = "{kind: Service, apiVersion: v1, metadata: {name: a}, spec: {clusterIP: [1]}}";
        assert_eq!(cause(wrong_field), Cause::Field);
    }

    #[test]
    fn an_object_without_a_name_is_lost() {
        let expected = [
            "File a.yaml: document 1, metadata.name: this Service has no name; the objects in it are ignored",
        ];
        assert_eq!(shown("a.yaml", "{kind: Service, apiVersion: v1}"), expected);
        assert!(incomplete("{kind: Service, apiVersion: v1}"));
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

    /// The same text, so long that it is read item by item.
    fn made_large(text: &str) -> String {
        text.replacen('{', &format!("{{{}", " ".repeat(LARGE_BYTES)), 1)
    }

    #[test]
    fn large_documents_mean_what_small_ones_mean() {
        let service = r#"{"kind": "Service", "apiVersion": "v1", "metadata": {"name": "a"}}"#;
        let node = r#"{"metadata": {"name": "b"}, "spec": 7}"#;
        let nested = format!(r#"{{"kind": "NodeList", "apiVersion": "v1", "items": [{node}, 8]}}"#);
        let texts = [
            format!(r#"{{"kind": "List", "apiVersion": "v1", "items": [{service}, {nested}, null]}}"#),
            format!(r#"{{"apiVersion": "v1", "items": [{service}, {nested}], "kind": "List"}}"#),
            format!(r#"{{"items": [{node}, {node}, {service}], "kind": "NodeList", "apiVersion": "v1"}}"#),
            format!(r#"{{"items": [{node}, {service}], "kind": "NodeList"}}"#),
            format!(r#"{{"items": [{service}], "kind": "Gadget", "apiVersion": "v1"}}"#),
            format!(r#"{{"items": [{service}]}}"#),
            format!(r#"{{"kind": "List", "items": {service}}}"#),
            r#"{"kind": "ServiceList", "apiVersion": "v1", "items": [{}]}"#.to_owned(),
            r#"{"kind": ["List"], "items": [1]}"#.to_owned(),
            service.to_owned(),
            format!(r#"[{service}]"#),
        ];
        for text in texts {
            for name in ["a.json", "a.yaml"] {
                assert_eq!(read_str(name, &made_large(&text)), read_str(name, &text), "{name}: {text}");
            }
        }
    }

    #[test]
    fn of_a_large_list_that_is_broken_nothing_is_seen() {
        let text = r#"{"kind": "NodeList", "apiVersion": "v1", "items": [{"metadata": {"name": "b"}}, {]}"#;
        for name in ["a.json", "a.yaml"] {
            let (objects, diagnostics) = read_str(name, &made_large(text));
            assert_eq!((objects.len(), diagnostics.len()), (0, 1), "{diagnostics:?}");
        }
    }
}
