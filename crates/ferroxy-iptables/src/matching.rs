//! Takes rules apart word by word: the conditions, and the target if they hold. The caller decides what a condition means.

use ferroxy_core::{Origin, Packet};

use crate::rule::words;

/// What follows `-j`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'r> {
    pub name: &'r str,
    pub option: Option<&'r str>,
    pub value: Option<&'r str>,
}

/// The target, if all conditions of the rule hold. `holds` gets each option and takes the option's values from the words
/// that follow. If it returns `None`, for an unknown option, the rule does not match.
pub fn target_if<'r>(
    rule: &'r str,
    mut holds: impl FnMut(&str, &mut dyn Iterator<Item = &'r str>) -> Option<bool>,
) -> Option<Target<'r>> {
    let mut words = words(rule);
    let mut negated = false;
    while let Some(word) = words.next() {
        let holds = match word {
            "!" => {
                negated = true;
                continue;
            }
            "-j" => {
                return Some(Target { name: words.next()?, option: words.next(), value: words.next() });
            }
            _ => holds(word, &mut words)?,
        };
        if holds == negated {
            return None;
        }
        negated = false;
    }
    None
}

/// `-i eth0`, `-i cali+`
pub fn came_in_on(packet: &Packet, wanted: &str) -> bool {
    match (&packet.origin, wanted.strip_suffix('+')) {
        (Origin::Host, _) => false,
        (Origin::Interface(name), Some(prefix)) => name.starts_with(prefix),
        (Origin::Interface(name), None) => name == wanted,
    }
}

/// `0x4000/0x4000`
pub fn mark_and_mask(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    match text.split_once('/') {
        Some((mark, mask)) => Some((number(mark)?, number(mask)?)),
        None => Some((number(text)?, u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_leads_to_its_target_when_everything_holds() {
        let about = |rule: &'static str| {
            target_if(rule, |option, words| match option {
                "-p" => Some(words.next()? == "tcp"),
                "-m" => words.next().map(|_| true),
                _ => None,
            })
        };
        let masquerade = Target { name: "MARK", option: Some("--set-xmark"), value: Some("0x1/0x1") };
        assert_eq!(about("-p tcp -m tcp -j MARK --set-xmark 0x1/0x1"), Some(masquerade));
        assert_eq!(about("-p udp -j ACCEPT"), None);
        assert_eq!(about("! -p udp -p tcp -j ACCEPT").map(|target| target.name), Some("ACCEPT"));
        assert_eq!(about("! -p tcp -j ACCEPT"), None);
        assert_eq!(about("-p tcp --strange 1 -j ACCEPT"), None);
        assert_eq!(about("-p tcp"), None);
    }

    #[test]
    fn marks() {
        assert_eq!(mark_and_mask("0x4000/0x8000"), Some((0x4000, 0x8000)));
        assert_eq!(mark_and_mask("0x1"), Some((1, u32::MAX)));
        assert_eq!(mark_and_mask("1/2"), None);
    }
}
