//! The part of `metadata` that a proxy reads.

use std::fmt;

use ferroxy_core::foreign;
use ferroxy_core::policy::is_kept_annotation;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::field::{Field, Labels, Notes, Whole, mappings};
use super::time;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    name: Field<String>,
    namespace: Field<String>,
    labels: Field<Labels>,
    creation_timestamp: Field<String>,
    deletion_timestamp: Field<String>,
    resource_version: Field<Whole>,
    annotations: Field<Annotations>,
}

/// Annotations can be long (`kubectl apply` keeps the whole manifest in one): only those we read are kept.
#[derive(Debug, Default)]
struct Annotations {
    last_change: Field<String>,
    /// The annotations that [`is_kept_annotation`] names.
    ours: Vec<(String, Field<String>)>,
}

pub(crate) const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";
pub(crate) const LAST_CHANGE_FIELD: &str =
    "metadata.annotations[endpoints.kubernetes.io/last-change-trigger-time]";

/// Tenants write annotations, so only this many of ours are read.
pub(crate) const MOST: usize = 16;

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Annotations, D::Error> {
        from.deserialize_map(AnnotationsVisitor)
    }
}

struct AnnotationsVisitor;

impl<'de> Visitor<'de> for AnnotationsVisitor {
    type Value = Annotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
        let mut annotations = Annotations::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == LAST_CHANGE {
                annotations.last_change = map.next_value()?;
            } else if is_kept_annotation(&key)
                && key.len() <= foreign::LONGEST
                && annotations.ours.len() < MOST
            {
                annotations.ours.push((key, map.next_value()?));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(annotations)
    }
}

mappings!(Metadata, Annotations);

/// Takes `metadata.resourceVersion`, which is not part of the object but its position in a watch.
pub(super) fn take_version(metadata: &mut Field<Metadata>) -> Option<String> {
    let Field::Is(metadata) = metadata else { return None };
    match std::mem::take(&mut metadata.resource_version) {
        Field::Is(Whole(version)) if !version.is_empty() => Some(version),
        _ => None,
    }
}

/// The fields of `metadata`.
#[derive(Debug)]
pub(super) struct Identity {
    /// Never empty.
    pub(super) name: String,
    /// `default` if the object has none. Cluster-wide kinds ignore it.
    pub(super) namespace: String,
    /// Seconds since 1970.
    pub(super) created: Option<i64>,
    pub(super) deleting: bool,
    labels: Labels,
    annotations: Field<Annotations>,
}

impl Identity {
    /// `None` when there is no name.
    pub(super) fn read(metadata: Field<Metadata>, notes: &mut Notes) -> Option<Identity> {
        let metadata = metadata.take(format_args!("metadata"), notes)?;
        let name = metadata.name.take(format_args!("metadata.name"), notes)?;
        let namespace =
            metadata.namespace.take(format_args!("metadata.namespace"), notes).unwrap_or_default();
        let created = metadata.creation_timestamp.take(format_args!("metadata.creationTimestamp"), notes);
        let deleted = metadata.deletion_timestamp.take(format_args!("metadata.deletionTimestamp"), notes);
        (!name.is_empty()).then(|| Identity {
            name,
            namespace: if namespace.is_empty() { "default".to_owned() } else { namespace },
            created: created.and_then(|text| time::seconds(&text, "metadata.creationTimestamp", notes)),
            deleting: deleted.is_some(),
            labels: metadata.labels.take(format_args!("metadata.labels"), notes).unwrap_or_default(),
            annotations: metadata.annotations,
        })
    }

    /// Our annotations, with their values.
    pub(super) fn annotations(&mut self, notes: &mut Notes) -> Vec<(String, String)> {
        let annotations =
            std::mem::take(&mut self.annotations).take(format_args!("metadata.annotations"), notes);
        let mut ours: Vec<(String, String)> = Vec::new();
        for (key, value) in annotations.into_iter().flat_map(|it| it.ours) {
            let value = value.take(format_args!("metadata.annotations[{key}]"), notes);
            ours.push((key, value.unwrap_or_default()));
        }
        ours
    }

    /// When the change happened that led to this state of a slice, in nanoseconds since 1970.
    pub(super) fn last_change(&mut self, notes: &mut Notes) -> Option<i64> {
        let annotations =
            std::mem::take(&mut self.annotations).take(format_args!("metadata.annotations"), notes)?;
        let text = annotations.last_change.take(format_args!("{LAST_CHANGE_FIELD}"), notes)?;
        time::nanoseconds(&text, LAST_CHANGE_FIELD, notes)
    }

    /// The value of a label. A value of the wrong type is noted and counts as absent.
    pub(super) fn label(&mut self, key: &str, notes: &mut Notes) -> Option<String> {
        self.labels.remove(key)?.take(format_args!("metadata.labels[{key}]"), notes)
    }
}
