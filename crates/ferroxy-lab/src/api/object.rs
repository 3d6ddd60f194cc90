//! One object as the server stores it: JSON text with a resource version, and the few values that selectors need. Other
//! fields are not parsed, so objects with invalid fields can be served, too.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::kind::Kind;
use super::protobuf;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Empty for kinds without namespaces.
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

/// A number that grows with every change of any object. Clients must treat it as opaque text.
pub type Version = u64;

#[derive(Debug)]
pub(super) struct Object {
    pub kind: Kind,
    pub key: Key,
    pub labels: BTreeMap<String, String>,
    /// For the field selector `spec.clusterIP`.
    pub cluster_ip: String,
    /// `{"kind":"Service","apiVersion":"v1","metadata":{…,"resourceVersion":"7"},…}`: always in this order.
    text: Bytes,
    /// The position of the version in `text`.
    version_at: Range<usize>,
    /// The object in protobuf, written when it is first needed.
    message: OnceLock<Bytes>,
}

/// Why the server cannot store an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("not JSON with metadata: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0:?} is no kind this server knows")]
    Kind(String),
    #[error("a {0} without metadata.name")]
    Unnamed(Kind),
}

/// The fields of a JSON object, their values as they are written.
type Fields<'a> = BTreeMap<&'a str, &'a RawValue>;

impl Object {
    /// Reads an object and sets this version; its own version is ignored.
    pub fn read(json: &[u8], version: Version) -> Result<Object, ObjectError> {
        let mut fields: Fields<'_> = serde_json::from_slice(json)?;
        let kind = read_kind(&mut fields)?;
        let mut metadata: Fields<'_> = read(fields.remove("metadata"))?;
        metadata.remove("resourceVersion");
        let key = read_key(kind, &mut metadata)?;
        let labels = metadata.get("labels").map(|labels| read_labels(labels)).unwrap_or_default();
        let cluster_ip = fields.get("spec").map(|spec| read_cluster_ip(spec)).unwrap_or_default();

        let mut text = Vec::with_capacity(json.len() + 96);
        text.extend_from_slice(head(kind).as_bytes());
        text.extend_from_slice(b"\"metadata\":{\"name\":");
        serde_json::to_writer(&mut text, &key.name)?;
        if kind.namespaced() {
            text.extend_from_slice(b",\"namespace\":");
            serde_json::to_writer(&mut text, &key.namespace)?;
        }
        write_fields(&mut text, &metadata)?;
        text.extend_from_slice(b",\"resourceVersion\":\"");
        let version_at = text.len();
        text.extend_from_slice(version.to_string().as_bytes());
        let version_at = version_at..text.len();
        text.extend_from_slice(b"\"}");
        write_fields(&mut text, &fields)?;
        text.push(b'}');
        Ok(Object { kind, key, labels, cluster_ip, text: text.into(), version_at, message: OnceLock::new() })
    }

    /// The whole object, as in the answer to a GET and in events.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// The object in protobuf, without an envelope, as in lists.
    pub fn message(&self) -> &Bytes {
        let write = || protobuf::object(self.kind, &serde_json::from_slice(&self.text).unwrap_or_default());
        self.message.get_or_init(|| write().into())
    }

    /// As an item of a list, where API servers omit `kind` and `apiVersion`; without the opening brace.
    pub fn fields_in_list(&self) -> &[u8] {
        self.text.get(head(self.kind).len()..).unwrap_or_default()
    }

    /// The object in its DELETED event: its last state with the version of the deletion.
    pub fn text_with_version(&self, version: Version) -> Bytes {
        let mut text = BytesMut::with_capacity(self.text.len() + 4);
        text.extend_from_slice(&self.text[..self.version_at.start]);
        text.extend_from_slice(version.to_string().as_bytes());
        text.extend_from_slice(&self.text[self.version_at.end..]);
        text.freeze()
    }
}

fn head(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => r#"{"kind":"Service","apiVersion":"v1","#,
        Kind::EndpointSlice => r#"{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","#,
        Kind::Node => r#"{"kind":"Node","apiVersion":"v1","#,
        Kind::ServiceCidr => r#"{"kind":"ServiceCIDR","apiVersion":"networking.k8s.io/v1","#,
        Kind::Event => r#"{"kind":"Event","apiVersion":"events.k8s.io/v1","#,
        Kind::Pod => r#"{"kind":"Pod","apiVersion":"v1","#,
        Kind::Secret => r#"{"kind":"Secret","apiVersion":"v1","#,
    }
}

fn read_kind(fields: &mut Fields<'_>) -> Result<Kind, ObjectError> {
    fields.remove("apiVersion");
    let name: String = read(fields.remove("kind"))?;
    Kind::from_name(&name).ok_or(ObjectError::Kind(name))
}

/// The default namespace is `default`, as in `kubectl`.
fn read_key(kind: Kind, metadata: &mut Fields<'_>) -> Result<Key, ObjectError> {
    let name: String = read(metadata.remove("name"))?;
    if name.is_empty() {
        return Err(ObjectError::Unnamed(kind));
    }
    let namespace: String = read(metadata.remove("namespace"))?;
    match (kind.namespaced(), namespace.is_empty()) {
        (false, _) => Ok(Key::new("", name)),
        (true, true) => Ok(Key::new("default", name)),
        (true, false) => Ok(Key::new(namespace, name)),
    }
}

/// A missing field has the default of its type.
fn read<'a, T: Deserialize<'a> + Default>(field: Option<&'a RawValue>) -> Result<T, ObjectError> {
    field.map_or(Ok(T::default()), |field| Ok(serde_json::from_str(field.get())?))
}

/// Labels of the wrong type count as none, here and below: tests create such objects on purpose.
fn read_labels(labels: &RawValue) -> BTreeMap<String, String> {
    serde_json::from_str(labels.get()).unwrap_or_default()
}

fn read_cluster_ip(spec: &RawValue) -> String {
    #[derive(Deserialize)]
    struct Spec {
        #[serde(rename = "clusterIP", default)]
        cluster_ip: String,
    }
    serde_json::from_str(spec.get()).map(|spec: Spec| spec.cluster_ip).unwrap_or_default()
}

/// Writes a comma before each field.
fn write_fields(text: &mut Vec<u8>, fields: &Fields<'_>) -> Result<(), ObjectError> {
    for (name, value) in fields {
        text.push(b',');
        serde_json::to_writer(&mut *text, name)?;
        text.push(b':');
        text.extend_from_slice(value.get().as_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(json: Value, version: Version) -> Object {
        Object::read(json.to_string().as_bytes(), version).unwrap()
    }

    fn parsed(text: &[u8]) -> Value {
        serde_json::from_slice(text).unwrap()
    }

    #[test]
    fn an_object_keeps_its_fields_and_gets_its_version() {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}, "resourceVersion": "1"},
            "spec": {"clusterIP": "10.96.0.80", "ports": [{"port": 80}]}, "status": {"loadBalancer": {}},
        });
        let object = read(service.clone(), 77);
        let mut expected = service;
        expected["metadata"]["resourceVersion"] = "77".into();
        assert_eq!(parsed(object.text()), expected);
        assert_eq!((object.kind, &object.key), (Kind::Service, &Key::new("shop", "web")));
        assert_eq!(object.cluster_ip, "10.96.0.80");
        assert_eq!(object.labels.get("a").map(String::as_str), Some("b"));

        expected["metadata"]["resourceVersion"] = "1000".into();
        assert_eq!(parsed(&object.text_with_version(1000)), expected);
    }

    #[test]
    fn a_list_item_has_neither_kind_nor_api_version() {
        for kind in Kind::ALL {
            let object = read(json!({"kind": kind.name(), "metadata": {"name": "x"}}), 5);
            let whole = parsed(object.text());
            assert_eq!(whole["kind"], kind.name());
            assert_eq!(whole["apiVersion"], kind.api_version());
            let item = parsed(&[b"{", object.fields_in_list()].concat());
            assert_eq!(item["metadata"]["resourceVersion"], "5");
            assert_eq!(item.get("kind").or(item.get("apiVersion")), None);
        }
    }

    #[test]
    fn a_namespace_is_filled_in_where_there_must_be_one() {
        assert_eq!(read(json!({"kind": "Service", "metadata": {"name": "x"}}), 1).key.namespace, "default");
        assert_eq!(read(json!({"kind": "Node", "metadata": {"name": "x"}}), 1).key.namespace, "");
    }

    #[test]
    fn nonsense_in_fields_is_kept_and_nonsense_in_names_is_refused() {
        let odd = json!({"kind": "Service", "metadata": {"name": "x", "labels": 7}, "spec": "eighty"});
        assert_eq!(parsed(read(odd, 1).text())["spec"], "eighty");
        for (json, complaint) in [
            (r#"{"kind":"Ingress","metadata":{"name":"x"}}"#, "\"Ingress\" is no kind"),
            (r#"{"metadata":{"name":"x"}}"#, "\"\" is no kind"),
            (r#"{"kind":"Service","metadata":{}}"#, "without metadata.name"),
            (r#"{"kind":"Service"}"#, "without metadata.name"),
            (r#"{"kind":"#, "not JSON"),
        ] {
            let error = Object::read(json.as_bytes(), 1).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
