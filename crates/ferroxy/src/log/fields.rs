//! The parts of an event: the message and its keys with values. Each format composes its lines from them.

use std::error::Error;
use std::fmt::Debug;

use serde_json::Value;
use tracing::Event;
use tracing::field::{Field, Visit};

/// The most bytes of a message or a value that are logged: tenants may have written it.
const MOST_BYTES: usize = 4096;

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

    fn put_text(&mut self, field: &Field, mut text: String) {
        shorten(&mut text);
        if field.name() == "message" { self.message = text } else { self.put(field, text) }
    }

    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        // klog's name for it.
        let name = if field.name() == "error" { "err" } else { field.name() };
        self.pairs.push((name, value.into()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put_text(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field, value.to_owned());
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
        self.put_text(field, value.to_string());
    }
}

fn shorten(text: &mut String) {
    if text.len() > MOST_BYTES {
        let cut = text.len() - text.floor_char_boundary(MOST_BYTES);
        text.truncate(text.floor_char_boundary(MOST_BYTES));
        text.push_str(&format!("… ({cut} more bytes)"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut text = "ä".repeat(MOST_BYTES);
        text.insert(0, 'x');
        shorten(&mut text);
        assert!(text.starts_with("xä") && text.ends_with(&format!("ä… ({} more bytes)", MOST_BYTES + 2)));
        let mut short = "x".repeat(MOST_BYTES);
        shorten(&mut short);
        assert_eq!(short.len(), MOST_BYTES);
    }
}
