//! The part of `metadata` that a proxy reads.

use serde::Deserialize;

use super::field::{Field, Labels, Notes, mappings};
use super::time;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    name: Field<String>,
    namespace: Field<String>,
    labels: Field<Labels>,
    creation_timestamp: Field<String>,
    deletion_timestamp: Field<String>,
}

mappings!(Metadata);

/// `metadata`, taken apart.
#[derive(Debug)]
pub(super) struct Identity {
    /// Never empty.
    pub(super) name: String,
    /// `default` when the object does not say. Cluster-wide kinds do not look at it.
    pub(super) namespace: String,
    /// Seconds since 1970.
    pub(super) created: Option<i64>,
    pub(super) deleting: bool,
    labels: Labels,
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
        })
    }

    /// The value of a label; a label that is there with a value of the wrong type is noted and counts as absent.
    pub(super) fn label(&mut self, key: &str, notes: &mut Notes) -> Option<String> {
        self.labels.remove(key)?.take(format_args!("metadata.labels[{key}]"), notes)
    }
}
