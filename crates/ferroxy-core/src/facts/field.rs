//! Validation of single fields: text or a wide number becomes a value, or the reason why it is invalid. Not whole objects.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::diagnostic::{Cause, Diagnostic, Object, more};
pub(crate) use crate::foreign::quoted;
use crate::name::{Family, Protocol};

/// Collects the Diagnostics of one object.
#[derive(Debug)]
pub(super) struct Notes {
    object: Object,
    diagnostics: Vec<Diagnostic>,
    left_out: usize,
}

/// The most Diagnostics per object; further ones are only counted.
pub(super) const MOST_PER_OBJECT: usize = 20;

impl Notes {
    pub(super) fn about(object: Object) -> Notes {
        Notes { object, diagnostics: Vec::new(), left_out: 0 }
    }

    pub(super) fn add(
        &mut self,
        field: impl fmt::Display,
        reason: impl fmt::Display,
        effect: impl fmt::Display,
    ) {
        self.add_as(Cause::Field, field, reason, effect);
    }

    pub(super) fn add_as(
        &mut self,
        cause: Cause,
        field: impl fmt::Display,
        reason: impl fmt::Display,
        effect: impl fmt::Display,
    ) {
        if self.diagnostics.len() == MOST_PER_OBJECT {
            self.left_out += 1;
            return;
        }
        self.diagnostics.push(Diagnostic {
            object: self.object.clone(),
            field: field.to_string(),
            reason: reason.to_string(),
            effect: effect.to_string(),
            cause,
        });
    }

    /// Returns the value, or adds a Diagnostic with the reason.
    pub(super) fn keep<T>(
        &mut self,
        read: Result<T, String>,
        field: impl fmt::Display,
        effect: impl fmt::Display,
    ) -> Option<T> {
        read.map_err(|reason| self.add(field, reason, effect)).ok()
    }

    pub(super) fn finish(mut self) -> Box<[Diagnostic]> {
        if self.left_out > 0 {
            self.diagnostics.push(more(self.object, self.left_out));
        }
        self.diagnostics.into()
    }
}

/// An address as the API spells it. Forms that Go's old parser accepts (leading zeros, IPv4-mapped IPv6) are rejected, as
/// Kubernetes does: two parsers may read two different hosts from one such text.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    let Ok(address) = text.parse::<IpAddr>() else {
        return Err(format!("{} is not an IP address", quoted(text)));
    };
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("{} is an IPv4 address written as IPv6", quoted(text)))
        }
        _ => Ok(address),
    }
}

/// An address that may send or receive Service traffic. The API rejects special-purpose addresses, too.
pub(super) fn ordinary_address(text: &str) -> Result<IpAddr, String> {
    let address = address(text)?;
    let special = if address.is_unspecified() {
        "the unspecified address"
    } else if address.is_loopback() {
        "a loopback address"
    } else if address.is_multicast() {
        "a multicast address"
    } else if is_link_local(address) {
        "a link-local address"
    } else {
        return Ok(address);
    };
    Err(format!("{address} is {special}"))
}

pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// A CIDR; host bits are cleared, as kube-proxy does.
pub(super) fn range(text: &str) -> Result<IpNet, String> {
    let unreadable = || format!("{} is not a CIDR", quoted(text));
    let (start, _) = text.split_once('/').ok_or_else(unreadable)?;
    address(start)?;
    text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| unreadable())
}

pub(super) fn port(number: i64) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("{number} is not a valid port (1 to 65535)"))
}

/// Empty means TCP, as the API's default.
pub(super) fn protocol(text: &str) -> Result<Protocol, String> {
    if text.is_empty() {
        return Ok(Protocol::Tcp);
    }
    Protocol::parse(text)
        .ok_or_else(|| format!("{} is not a supported protocol (TCP, UDP, SCTP)", quoted(text)))
}

pub(super) fn family(text: &str) -> Result<Family, String> {
    Family::ALL
        .into_iter()
        .find(|family| family.to_string() == text)
        .ok_or_else(|| format!("{} is not an IP family (IPv4, IPv6)", quoted(text)))
}

/// Names are used in comments of kernel objects and in logs, so only characters that the API allows are accepted.
pub(super) fn name(text: &str, longest: usize) -> Result<&str, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if text.len() > longest {
        Err(format!("{} is longer than {longest} characters", quoted(text)))
    } else if !text.chars().all(allowed) {
        Err(format!("{} contains characters that are not allowed in a name", quoted(text)))
    } else {
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_kubernetes_refuses_are_refused() {
        for bad in
            ["", "010.0.0.1", "10.0.0.01", "10.0.0", "10.0.0.1 ", "::ffff:10.0.0.1", "fe80::1%eth0", "x"]
        {
            assert!(address(bad).is_err(), "{bad}");
        }
        assert_eq!(address("10.0.0.1"), Ok("10.0.0.1".parse().unwrap()));
        assert_eq!(address("FD00::A"), Ok("fd00::a".parse().unwrap()));
    }

    #[test]
    fn special_addresses_are_not_ordinary() {
        for bad in ["0.0.0.0", "::", "127.0.0.9", "::1", "224.0.0.1", "ff02::1", "169.254.1.1", "fe80::1"] {
            assert!(address(bad).is_ok() && ordinary_address(bad).is_err(), "{bad}");
        }
        assert!(ordinary_address("203.0.113.1").is_ok());
    }

    #[test]
    fn ranges_lose_their_host_bits() {
        assert_eq!(range("10.1.2.3/8"), Ok("10.0.0.0/8".parse().unwrap()));
        for bad in ["10.0.0.0", "10.0.0.0/33", "010.0.0.0/8", "::ffff:10.0.0.0/104", "/8", "10.0.0.0/"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ports_are_sixteen_bits_and_not_zero() {
        assert_eq!(port(65535), Ok(65535));
        for bad in [0, -1, 65536, i64::MAX, i64::MIN] {
            assert!(port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_cannot_carry_quotes_or_novels() {
        assert_eq!(name("web-1.a_B", 63), Ok("web-1.a_B"));
        assert!(name("web\"; flush ruleset", 63).is_err());
        assert!(name(&"a".repeat(64), 63).is_err());
        assert!(quoted(&"\n".repeat(1000)).len() < 200);
    }

    #[test]
    fn endless_mistakes_are_counted_not_kept() {
        let mut notes = Notes::about(Object::service("a/b"));
        for i in 0..1000 {
            notes.add(i, "wrong", "skipped");
        }
        let diagnostics = notes.finish();
        assert_eq!(diagnostics.len(), MOST_PER_OBJECT + 1);
        assert_eq!(diagnostics[MOST_PER_OBJECT].reason, "and 980 more");
    }
}
