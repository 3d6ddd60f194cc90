//! What an event holds, taken apart: the message and its keys with values. Formats put it together again.

use std::error::Error;
use std::fmt::Debug;

use serde_json::Value;
use tracing::Event;
use tracing::field::{Field, Visit};

#[derive(Debug, Default)]
pub(super) struct Fields {
    pub(super) message: String,
    /// In the order in which they were written.
    pub(super) pairs: Vec<(&'static str, Value)>,
}

impl Fields {
    pub(super) fn of(event: &Event<'_>) -> Fields {
        let mut fields = Fields::default();
        event.record(&mut fields);
        fields
    }

    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        // klog's name for it.
        let name = if field.name() == "error" { "err" } else { field.name() };
        self.pairs.push((name, value.into()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" { self.message = text } else { self.put(field, text) }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" { self.message = value.to_owned() } else { self.put(field, value) }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.put(field, value.to_string());
    }
}
