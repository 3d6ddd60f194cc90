//! The settings of a mode: which fields of the configuration file it reads, and their values. Reading files is not done here.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;

/// A field of the configuration file that a mode reads. Several modes may read the same field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field {
    /// With its block: `nftables.masqueradeBit`.
    pub name: &'static str,
    pub kind: Kind,
    /// The flag that sets it. Several fields may share one.
    pub flag: Option<Flag>,
    /// A running agent applies a change; otherwise it needs a restart.
    pub is_live: bool,
    /// The configuration file of the current kube-proxy has it. Other fields are written only if their value is not the
    /// default.
    pub is_of_the_original: bool,
}

impl Field {
    /// How often a mode verifies what is in force, as modes of kube-proxy have it.
    pub const fn sync_period(name: &'static str, flag: &'static str) -> Field {
        let default = Duration::from_secs(30);
        let kind = Kind::Duration { default, default_in_file: None, zero: Zero::Refused };
        Field::period(name, kind, flag, "Verify the rules at least this often")
    }

    /// How often a mode applies changes.
    pub const fn min_sync_period(name: &'static str, flag: &'static str) -> Field {
        let default = Duration::from_secs(1);
        let kind = Kind::Duration { default, default_in_file: None, zero: Zero::DefaultInFile };
        Field::period(name, kind, flag, "Apply changes at most this often")
    }

    const fn period(name: &'static str, kind: Kind, flag: &'static str, help: &'static str) -> Field {
        let flag = Flag { name: flag, help, value_name: "DURATION" };
        Field { name, kind, flag: Some(flag), is_live: true, is_of_the_original: true }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flag {
    /// Without the dashes: `masquerade-all`.
    pub name: &'static str,
    pub help: &'static str,
    /// The placeholder for the value in `--help`: `NAME`.
    pub value_name: &'static str,
}

/// Type, default and range of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Truth {
        default: bool,
    },
    Number {
        default: i64,
        least: i64,
        most: i64,
    },
    Text {
        default: &'static str,
    },
    Duration {
        default: Duration,
        /// The default in the configuration file, if it is not the default of the flag.
        default_in_file: Option<Duration>,
        zero: Zero,
    },
    /// A list of IP ranges; empty by default.
    Cidrs,
    /// One of these words.
    Choice {
        default: &'static str,
        among: &'static [&'static str],
    },
    /// A range of ports, as text ([`ports`]); empty by default.
    Ports,
}

/// `a-b`, `a` or `a+n`, ends included. `None` for values that leave the choice to the program: an empty text, `0` and
/// `0-0`.
pub fn ports(text: &str) -> Result<Option<RangeInclusive<u16>>, String> {
    let port = |text: &str| {
        text.trim().parse::<u16>().map_err(|_| "is not a range of ports (`a-b`, `a`, `a+n`)".to_owned())
    };
    let text = text.trim();
    let (first, last) = match (text.split_once('-'), text.split_once('+')) {
        _ if text.is_empty() => return Ok(None),
        (Some((first, last)), _) => (port(first)?, port(last)?),
        (None, Some((first, more))) => {
            let (first, more) = (port(first)?, port(more)?);
            (first, first.checked_add(more).ok_or("ends beyond port 65535")?)
        }
        (None, None) => (port(text)?, port(text)?),
    };
    match (first, last) {
        (0, 0) => Ok(None),
        (0, _) => Err("begins with port 0".to_owned()),
        _ if first > last => Err("ends before it begins".to_owned()),
        _ => Ok(Some(first..=last)),
    }
}

/// What a duration of zero means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zero {
    /// A value like any other.
    Allowed,
    /// In a file, the default; as a flag, a value.
    DefaultInFile,
    /// In a file, the default; as a flag, an error.
    Refused,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Truth(bool),
    Number(i64),
    Text(String),
    Duration(Duration),
    Cidrs(Vec<IpNet>),
}

impl Kind {
    /// The value if nothing is configured: the default of the flag.
    pub fn default(&self) -> Value {
        match *self {
            Kind::Truth { default } => Value::Truth(default),
            Kind::Number { default, .. } => Value::Number(default),
            Kind::Text { default } => Value::Text(default.to_owned()),
            Kind::Duration { default, .. } => Value::Duration(default),
            Kind::Cidrs => Value::Cidrs(Vec::new()),
            Kind::Choice { default, .. } => Value::Text(default.to_owned()),
            Kind::Ports => Value::Text(String::new()),
        }
    }
}

/// Checked values of a mode's fields. A field that has no value here has its default. If the type does not match, the
/// typed functions return false, zero or an empty value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
}

impl Settings {
    pub fn set(&mut self, field: &Field, value: Value) {
        self.values.insert(field.name, value);
    }

    pub fn get(&self, field: &Field) -> Value {
        self.values.get(field.name).cloned().unwrap_or_else(|| field.kind.default())
    }

    pub fn truth(&self, field: &Field) -> bool {
        matches!(self.get(field), Value::Truth(true))
    }

    /// 0 for a field that is no number.
    pub fn number(&self, field: &Field) -> i64 {
        if let Value::Number(number) = self.get(field) { number } else { 0 }
    }

    pub fn text(&self, field: &Field) -> String {
        if let Value::Text(text) = self.get(field) { text } else { String::new() }
    }

    pub fn duration(&self, field: &Field) -> Duration {
        if let Value::Duration(duration) = self.get(field) { duration } else { Duration::ZERO }
    }

    pub fn cidrs(&self, field: &Field) -> Vec<IpNet> {
        if let Value::Cidrs(cidrs) = self.get(field) { cidrs } else { Vec::new() }
    }
}

impl FromIterator<(&'static str, Value)> for Settings {
    fn from_iter<I: IntoIterator<Item = (&'static str, Value)>>(values: I) -> Settings {
        Settings { values: values.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIT: Field = Field {
        name: "test.bit",
        kind: Kind::Number { default: 14, least: 0, most: 31 },
        flag: None,
        is_live: true,
        is_of_the_original: true,
    };

    #[test]
    fn a_range_of_ports_is_read_as_the_original_does() {
        for empty in ["", "0", "0-0", " "] {
            assert_eq!(ports(empty), Ok(None), "{empty:?}");
        }
        let some = [("80-82", 80..=82), ("80", 80..=80), ("80+2", 80..=82), (" 1 - 65535 ", 1..=65535)];
        for (text, range) in some {
            assert_eq!(ports(text), Ok(Some(range)), "{text:?}");
        }
        for wrong in ["x", "2-1", "0-5", "65535+1", "1-65536", "-", "80-"] {
            assert!(ports(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_field_without_a_value_has_its_default() {
        let mut settings = Settings::default();
        assert_eq!(settings.number(&BIT), 14);
        settings.set(&BIT, Value::Number(3));
        assert_eq!((settings.number(&BIT), settings.truth(&BIT)), (3, false));
    }
}
