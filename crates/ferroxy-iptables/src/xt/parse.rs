//! Parses the text of a rule into a Spec. Understands only rules that we write, as `iptables-save` prints them.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Protocol};

use super::{
    CERTAIN, COMMENT_SIZE, InSet, Interface, Match, OfProtocol, Range, Recent, RecentAction, SET_PARTS,
    STATES, Side, Spec, Target, Terms,
};
use crate::matching::mark_and_mask;
use crate::rule::{whole_address_mask, words};

/// `None` for a rule with anything else in it, or with a set that does not exist.
pub fn parse<'a>(terms: Terms<'_>, text: &'a str) -> Option<Spec<'a>> {
    let (source, destination, input, protocol) = (None, None, None, None);
    let spec = Spec { source, destination, input, protocol, matches: Vec::new(), target: Target::None };
    let mut parser = Parser { terms, spec, negated: false };
    let mut words = words(text);
    while let Some(word) = words.next() {
        match word {
            "!" => parser.negated = true,
            _ => {
                parser.option(word, &mut words)?;
                // Every negation belongs to the option that follows it.
                if std::mem::take(&mut parser.negated) {
                    return None;
                }
            }
        }
    }
    (!parser.negated).then_some(parser.spec)
}

/// The reason, for users, why a rule is not parsed.
pub fn why_unknown(rule: &str) -> &'static str {
    match rule.contains(" --match-set ") {
        true => "Ferroxy does not know how to write this rule, or its set does not exist",
        false => "Ferroxy does not know how to write this rule",
    }
}

struct Parser<'a, 't> {
    terms: Terms<'t>,
    spec: Spec<'a>,
    /// A `!` that no option has taken yet.
    negated: bool,
}

impl<'a> Parser<'a, '_> {
    fn option(&mut self, option: &str, words: &mut dyn Iterator<Item = &'a str>) -> Option<()> {
        match option {
            "-s" => self.spec.source = Some(self.range(words.next()?)?),
            "-d" => self.spec.destination = Some(self.range(words.next()?)?),
            "-i" => self.spec.input = Some(self.interface(words.next()?)?),
            "-p" => {
                let protocol = protocol(words.next()?)?;
                self.spec.protocol = Some(OfProtocol { negated: self.take_negation(), protocol });
            }
            "-m" => {
                let found = self.begin_match(words.next()?, words)?;
                self.spec.matches.push(found);
            }
            "--dport" => match self.spec.matches.last_mut()? {
                Match::Port { destination, .. } => *destination = Some(words.next()?.parse().ok()?),
                _ => return None,
            },
            "-j" => self.spec.target = self.target(words.next()?, words)?,
            "-g" => self.spec.target = Target::Goto(words.next()?),
            _ => return None,
        }
        Some(())
    }

    /// A match with its options, in the order in which they are printed.
    fn begin_match(&mut self, name: &str, words: &mut dyn Iterator<Item = &'a str>) -> Option<Match<'a>> {
        Some(match name {
            "comment" => {
                expect(words, "--comment")?;
                Match::Comment(without_escapes(words.next()?)?)
            }
            "tcp" | "udp" | "sctp" => Match::Port { protocol: protocol(name)?, destination: None },
            "statistic" => {
                ["--mode", "random", "--probability"].into_iter().try_for_each(|it| expect(words, it))?;
                Match::Probability(probability(words.next()?)?)
            }
            "recent" => Match::Recent(self.recent(words)?),
            "mark" => {
                self.expect_option(words, "--mark")?;
                let (value, mask) = mark_and_mask(words.next()?)?;
                Match::Mark { negated: self.take_negation(), value, mask }
            }
            "addrtype" => {
                let side = match self.next_option(words)? {
                    "--src-type" => Side::Source,
                    "--dst-type" => Side::Destination,
                    _ => return None,
                };
                expect(words, "LOCAL")?;
                Match::IsLocal { negated: self.take_negation(), side }
            }
            "conntrack" | "state" => {
                let as_state = name == "state";
                self.expect_option(words, if as_state { "--state" } else { "--ctstate" })?;
                Match::Tracked { states: states(words.next()?)?, negated: self.take_negation(), as_state }
            }
            "set" => {
                self.expect_option(words, "--match-set")?;
                Match::InSet(self.in_set(words.next()?, words.next()?)?)
            }
            "ipvs" => self.balanced(words)?,
            "nfacct" => {
                expect(words, "--nfacct-name")?;
                Match::CountedBy(words.next()?)
            }
            "physdev" => {
                self.expect_option(words, "--physdev-is-in")?;
                Match::CameOverBridge { negated: self.take_negation() }
            }
            _ => return None,
        })
    }

    fn in_set(&mut self, name: &'a str, sides: &str) -> Option<InSet<'a>> {
        let (mut parts, mut sources) = (0, 0);
        for side in sides.split(',') {
            let bit = match side {
                "src" => 1,
                "dst" => 0,
                _ => return None,
            };
            (parts < SET_PARTS).then_some(())?;
            sources |= bit << parts;
            parts += 1;
        }
        let number = self.terms.sets.number(name)?;
        Some(InSet { negated: self.take_negation(), name, number, parts, sources })
    }

    fn balanced(&self, words: &mut dyn Iterator<Item = &'a str>) -> Option<Match<'a>> {
        expect(words, "--vproto")?;
        let protocol = words.next()?.parse().ok()?;
        expect(words, "--vaddr")?;
        let ip: IpAddr = words.next()?.parse().ok()?;
        expect(words, "--vport")?;
        let server = SocketAddr::new(ip, words.next()?.parse().ok()?);
        (Family::of(ip) == self.terms.family).then_some(Match::Balanced { protocol, server })
    }

    fn recent(&self, words: &mut dyn Iterator<Item = &'a str>) -> Option<Recent<'a>> {
        let action = match words.next()? {
            "--set" => RecentAction::Set,
            "--rcheck" => {
                expect(words, "--seconds")?;
                let seconds = words.next()?.parse().ok()?;
                expect(words, "--reap")?;
                RecentAction::Check { seconds }
            }
            _ => return None,
        };
        expect(words, "--name")?;
        let name = words.next()?;
        ["--mask", whole_address_mask(self.terms.family), "--rsource"]
            .into_iter()
            .try_for_each(|it| expect(words, it))?;
        Some(Recent { action, name })
    }

    fn target(&self, name: &'a str, words: &mut dyn Iterator<Item = &'a str>) -> Option<Target<'a>> {
        Some(match name {
            "ACCEPT" => Target::Accept,
            "DROP" => Target::Drop,
            "RETURN" => Target::Return,
            "DNAT" => {
                expect(words, "--to-destination")?;
                let to: SocketAddr = words.next()?.parse().ok()?;
                (Family::of(to.ip()) == self.terms.family).then_some(Target::Dnat(to))?
            }
            "REDIRECT" => {
                expect(words, "--to-ports")?;
                Target::Redirect(words.next()?.parse().ok()?)
            }
            "MARK" => {
                expect(words, "--set-xmark")?;
                let (value, mask) = mark_and_mask(words.next()?)?;
                Target::Mark { value, mask }
            }
            "MASQUERADE" => match words.next() {
                None => Target::Masquerade { fully_random: false },
                Some("--random-fully") => Target::Masquerade { fully_random: true },
                Some(_) => return None,
            },
            "REJECT" => {
                expect(words, "--reject-with")?;
                expect(words, reject_with(self.terms.family))?;
                Target::Reject
            }
            chain => Target::Jump(chain),
        })
    }

    fn range(&mut self, text: &str) -> Option<Range> {
        let net: ipnet::IpNet = text.parse().ok()?;
        let is_usable =
            Family::of(net.addr()) == self.terms.family && net.prefix_len() > 0 && net.trunc() == net;
        let negated = self.take_negation();
        is_usable.then_some(Range { negated, address: net.addr(), prefix: net.prefix_len() })
    }

    fn interface(&mut self, text: &'a str) -> Option<Interface<'a>> {
        let name = text.strip_suffix('+').unwrap_or(text);
        // The kernel's names have up to 15 bytes; in legacy tables the `+` counts, too.
        let is_usable = !name.is_empty() && text.len() <= 15;
        let negated = self.take_negation();
        is_usable.then_some(Interface { negated, name, is_prefix: name.len() < text.len() })
    }

    /// The next word; a `!` before it is remembered.
    fn next_option(&mut self, words: &mut dyn Iterator<Item = &'a str>) -> Option<&'a str> {
        match words.next()? {
            "!" => {
                self.negated = true;
                words.next()
            }
            word => Some(word),
        }
    }

    fn expect_option(&mut self, words: &mut dyn Iterator<Item = &'a str>, option: &str) -> Option<()> {
        (self.next_option(words)? == option).then_some(())
    }

    fn take_negation(&mut self) -> bool {
        std::mem::take(&mut self.negated)
    }
}

pub(super) fn reject_with(family: Family) -> &'static str {
    match family {
        Family::V4 => "icmp-port-unreachable",
        Family::V6 => "icmp6-port-unreachable",
    }
}

fn expect(words: &mut dyn Iterator<Item = &str>, word: &str) -> Option<()> {
    (words.next()? == word).then_some(())
}

fn protocol(name: &str) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|it| it.lowercase() == name)
}

/// The kernel keeps 31 bits of it.
fn probability(text: &str) -> Option<u32> {
    let value: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&value).then(|| (value * CERTAIN).round() as u32)
}

fn states(text: &str) -> Option<u16> {
    text.split(',').try_fold(0, |states, name| {
        let (_, bit) = STATES.into_iter().find(|(known, _)| *known == name)?;
        Some(states | bit)
    })
}

/// Inside of quotes the tool puts a backslash before quotes and backslashes.
fn without_escapes(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('\\') {
        return (text.len() < COMMENT_SIZE).then_some(Cow::Borrowed(text));
    }
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        plain.push(if letter == '\\' { letters.next()? } else { letter });
    }
    (plain.len() < COMMENT_SIZE).then_some(Cow::Owned(plain))
}
