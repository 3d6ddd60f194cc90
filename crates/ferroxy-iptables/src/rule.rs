//! The words of a rule: writes them as `iptables-save` prints them, and splits a rule into words.

use std::fmt;
use std::net::IpAddr;

use ferroxy_core::Family;
use ferroxy_core::intent::LocalDetector;

/// ` -m comment --comment "…"`. Names have no characters that need escaping (see core's `facts`), but can be longer than a
/// comment in the kernel.
#[derive(Debug)]
pub struct Comment(String);

impl Comment {
    /// The kernel's buffer has 256 bytes, including the terminating zero.
    const LONGEST: usize = 255;

    pub fn new(text: fmt::Arguments<'_>) -> Comment {
        let mut text = text.to_string();
        text.truncate(text.floor_char_boundary(Self::LONGEST));
        Comment(text)
    }
}

impl fmt::Display for Comment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-m comment --comment \"{}\"", self.0)
    }
}

/// One address as a range: `10.96.0.80/32`.
#[derive(Debug, Clone, Copy)]
pub struct Host(pub IpAddr);

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = if self.0.is_ipv4() { 32 } else { 128 };
        write!(f, "{}/{bits}", self.0)
    }
}

/// The match of "from a pod" or "not from a pod": it has two possible places in a rule.
#[derive(Debug, Default)]
pub struct Sender {
    /// Before the destination.
    pub source: String,
    /// After it.
    pub interface: String,
}

impl Sender {
    pub fn is_pod(detector: &LocalDetector) -> Sender {
        match detector {
            // `iptables-save` does not print 0.0.0.0/0.
            LocalDetector::SourceIn(range) if range.prefix_len() == 0 => Sender::default(),
            LocalDetector::SourceIn(range) => Sender { source: format!("-s {range} "), ..Sender::default() },
            LocalDetector::Interface(name) => {
                Sender { interface: format!("-i {name} "), ..Sender::default() }
            }
            LocalDetector::InterfacePrefix(prefix) => {
                Sender { interface: format!("-i {prefix}+ "), ..Sender::default() }
            }
        }
    }

    pub fn is_not_pod(detector: &LocalDetector) -> Sender {
        if let LocalDetector::SourceIn(range) = detector {
            return Sender { source: format!("! -s {range} "), ..Sender::default() };
        }
        let Sender { interface, .. } = Sender::is_pod(detector);
        Sender { interface: format!("! {interface}"), ..Sender::default() }
    }
}

/// The probability with which the first of `remaining` endpoints is picked, as `iptables-save` prints it.
///
/// The original writes ten decimals, the kernel keeps 31 bits of them, and `iptables-save` prints eleven decimals of that.
pub fn probability(remaining: usize) -> String {
    const UNIT: f64 = 2_147_483_648.0;
    let written = (1e10 / remaining.max(1) as f64).round() / 1e10;
    format!("{:.11}", (written * UNIT).round() / UNIT)
}

/// `-m recent` compares whole addresses.
pub fn whole_address_mask(family: Family) -> &'static str {
    match family {
        Family::V4 => "255.255.255.255",
        Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    }
}

/// The words of a rule, without quotes. Escapes inside quotes stay: our rules have none.
pub fn words(rule: &str) -> impl Iterator<Item = &str> {
    let mut rest = rule;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(' ');
        if rest.is_empty() {
            return None;
        }
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => split_at_quote(quoted),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        rest = after;
        Some(word)
    })
}

/// The chain or target of a rule.
pub fn target(rule: &str) -> Option<&str> {
    let mut words = words(rule);
    // A word in quotes can look like an option; only a comment is ever quoted, and it follows its own option.
    while let Some(word) = words.next() {
        match word {
            "-j" | "-g" => return words.next(),
            "--comment" => drop(words.next()),
            _ => {}
        }
    }
    None
}

/// Splits after the first quote that is not escaped.
fn split_at_quote(text: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !escaped => return (&text[..at], &text[at + 1..]),
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_printed_as_the_kernel_keeps_them() {
        let recorded = [
            (1, "1.00000000000"),
            (2, "0.50000000000"),
            (3, "0.33333333349"),
            (5, "0.20000000019"),
            (7, "0.14285714272"),
            (12, "0.08333333349"),
            (101, "0.00990098994"),
            (1000, "0.00100000016"),
        ];
        for (remaining, text) in recorded {
            assert_eq!(probability(remaining), text);
        }
    }

    #[test]
    fn comments_fit_into_the_kernel() {
        let comment = Comment::new(format_args!("{}", "x".repeat(300))).to_string();
        assert_eq!(comment.len(), "-m comment --comment \"\"".len() + 255);
        assert_eq!(
            Comment::new(format_args!("default/web cluster IP")).to_string(),
            "-m comment --comment \"default/web cluster IP\""
        );
    }

    #[test]
    fn words_know_quotes() {
        let found: Vec<&str> = words(r#"-m comment --comment "a \"b\" -j X" -j  DROP"#).collect();
        assert_eq!(found, ["-m", "comment", "--comment", r#"a \"b\" -j X"#, "-j", "DROP"]);
        assert_eq!(words("\"open").collect::<Vec<_>>(), ["open"]);
        assert_eq!(words("").count(), 0);
    }

    #[test]
    fn the_target_is_not_looked_for_in_comments() {
        assert_eq!(target(r#"-m comment --comment "-j X" -j KUBE-SERVICES"#), Some("KUBE-SERVICES"));
        assert_eq!(target(r#"-m comment --comment -j -j KUBE-SERVICES"#), Some("KUBE-SERVICES"));
        assert_eq!(target("-p tcp"), None);
        assert_eq!(target("-p tcp -j"), None);
    }

    #[test]
    fn senders() {
        let range = |text: &str| LocalDetector::SourceIn(text.parse().unwrap());
        assert_eq!(Sender::is_pod(&range("10.0.0.0/8")).source, "-s 10.0.0.0/8 ");
        assert_eq!(Sender::is_not_pod(&range("10.0.0.0/8")).source, "! -s 10.0.0.0/8 ");
        assert_eq!(Sender::is_pod(&range("0.0.0.0/0")).source, "");
        assert_eq!(Sender::is_not_pod(&LocalDetector::Interface("cbr0".into())).interface, "! -i cbr0 ");
        assert_eq!(Sender::is_pod(&LocalDetector::InterfacePrefix("cb".into())).interface, "-i cb+ ");
    }
}
