//! The original's JSON: `{"ts":<milliseconds>,"caller":"sweep.rs:42","msg":"…","v":0,…}`; errors have no `v`. A warning
//! looks like an info there; here it has `"level":"warn"`.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::fields::Fields;
use super::{levels, place};

pub(super) struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        #[allow(clippy::disallowed_methods, reason = "for people")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let file = place::short(metadata.file().unwrap_or("???"));
        let caller = format!("{file}:{}", metadata.line().unwrap_or(1));
        let fields = Fields::of(event);
        write!(out, r#"{{"ts":{}.{:03}"#, now.as_millis(), now.subsec_micros() % 1000)?;
        pair(&mut out, "caller", &caller.into())?;
        pair(&mut out, "msg", &fields.message.into())?;
        match *metadata.level() {
            Level::ERROR => {}
            Level::WARN => {
                pair(&mut out, "v", &0.into())?;
                pair(&mut out, "level", &"warn".into())?;
            }
            _ => pair(&mut out, "v", &levels::verbosity_of(metadata).into())?,
        }
        for (name, value) in &fields.pairs {
            pair(&mut out, name, value)?;
        }
        writeln!(out, "}}")
    }
}

/// Written one by one, because a mapping would sort them.
fn pair(out: &mut Writer<'_>, name: &str, value: &Value) -> fmt::Result {
    write!(out, ",{}:{value}", Value::from(name))
}
