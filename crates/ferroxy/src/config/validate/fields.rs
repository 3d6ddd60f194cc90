//! The checks of fields that tables describe, those of modes and our own: type, range, and that
//! no `minSyncPeriod` exceeds its `syncPeriod`.

use ferroxy_dataplane::{Field, Kind, Mode, PeriodFields, Settings, Value as Setting, Zero, ports};
use serde_json::Value;

use super::Check;
use crate::config::fields::{Written, table};
use crate::config::{duration, reads};
use crate::modes::Modes;

impl Check {
    /// Checks all fields of the tables. Problems count only where the configured mode reads the field.
    pub(super) fn fields(
        &mut self,
        written: &Written,
        modes: Modes,
        mode: Option<&'static Mode>,
    ) -> Settings {
        let mut values = Settings::default();
        for field in table(modes) {
            let value = written.get(field.name).unwrap_or(&Value::Null);
            let checked = self.only_if(reads(modes, mode, field.name), |check| check.field(field, value));
            values.set(field, checked);
        }
        for pair in modes.periods() {
            self.only_if(reads(modes, mode, pair.min_sync.name), |check| check.periods(pair, &values));
        }
        values
    }

    fn field(&mut self, field: &Field, value: &Value) -> Setting {
        let text = || value.as_str().unwrap_or_default().to_owned();
        match field.kind {
            Kind::Truth { default } => Setting::Truth(value.as_bool().unwrap_or(default)),
            Kind::Number { least, most, .. } => {
                Setting::Number(self.number(field.name, value.as_i64(), least, most))
            }
            Kind::Text { .. } => Setting::Text(text()),
            Kind::Duration { zero: Zero::Refused, .. } => {
                Setting::Duration(self.positive(field.name, Some(text())))
            }
            Kind::Duration { .. } => Setting::Duration(self.duration(field.name, Some(text()))),
            Kind::Cidrs => {
                let texts = value.as_array().into_iter().flatten().filter_map(Value::as_str).enumerate();
                let cidr = |(i, text)| self.cidr(&format!("{}[{i}]", field.name), text);
                Setting::Cidrs(texts.filter_map(cidr).collect())
            }
            Kind::Choice { default, among } => {
                let written = text();
                if !among.contains(&written.as_str()) {
                    self.problem(field.name, format!("`{written}` is none of {}", among.join(", ")));
                    return Setting::Text(default.to_owned());
                }
                Setting::Text(written)
            }
            Kind::Ports => {
                let written = text();
                match ports(&written) {
                    Ok(_) => Setting::Text(written),
                    Err(reason) => {
                        self.problem(field.name, format!("`{written}` {reason}"));
                        Setting::Text(String::new())
                    }
                }
            }
        }
    }

    fn periods(&mut self, fields: PeriodFields, values: &Settings) {
        let (sync, min_sync) = (values.duration(fields.sync), values.duration(fields.min_sync));
        if min_sync > sync && !sync.is_zero() {
            let name = fields.sync.name.rsplit('.').next().unwrap_or_default();
            let (min_sync, sync) = (duration::format(min_sync), duration::format(sync));
            self.problem(fields.min_sync.name, format!("{min_sync} is longer than {name}, {sync}"));
        }
    }
}
