//! The version of HNS, and what it can do.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    pub const fn new(major: u32, minor: u32) -> Version {
        Version { major, minor }
    }

    /// The newest version whose behaviour is known. It has all features.
    pub const NEWEST: Version = Version::new(16, 0);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        let number = |text: &str| text.parse::<u32>().ok();
        text.split_once('.')
            .and_then(|(major, minor)| Some(Version::new(number(major)?, number(minor)?)))
            .ok_or_else(|| format!("`{text}` is not a version"))
    }
}

/// What a version can do, as far as a proxy uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// The second version of the API: without it there are no load balancers.
    pub v2: bool,
    /// Direct server return.
    pub dsr: bool,
    pub dual_stack: bool,
    pub session_affinity: bool,
    /// A load balancer can be changed in place.
    pub modify: bool,
}

impl From<Version> for Features {
    fn from(version: Version) -> Features {
        let at_least = |major, minor| version >= Version::new(major, minor);
        Features {
            v2: at_least(9, 2),
            // Version 10 was branched before 9.3.
            dsr: at_least(10, 2) || (at_least(9, 3) && !at_least(10, 0)),
            dual_stack: at_least(11, 10),
            session_affinity: at_least(12, 0),
            modify: at_least(15, 5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: &str, expected: [bool; 5]) {
        let features = Features::from(version.parse::<Version>().unwrap());
        let Features { v2, dsr, dual_stack, session_affinity, modify } = features;
        assert_eq!([v2, dsr, dual_stack, session_affinity, modify], expected, "{version}");
    }

    #[test]
    fn features_follow_from_the_version() {
        check("9.1", [false, false, false, false, false]);
        check("9.2", [true, false, false, false, false]);
        check("9.3", [true, true, false, false, false]);
        check("9.5", [true, true, false, false, false]);
        check("10.1", [true, false, false, false, false]);
        check("10.2", [true, true, false, false, false]);
        check("11.9", [true, true, false, false, false]);
        check("11.10", [true, true, true, false, false]);
        check("12.0", [true, true, true, true, false]);
        check("15.4", [true, true, true, true, false]);
        check("15.5", [true; 5]);
        check("16.0", [true; 5]);
    }
}
