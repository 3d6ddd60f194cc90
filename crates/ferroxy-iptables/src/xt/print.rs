//! Prints a Spec as text, as `iptables-save` prints it after the name of the chain.

use std::fmt;

use ferroxy_core::Family;

use super::parse::reject_with;
use super::{
    CERTAIN, InSet, Interface, Match, OfProtocol, Range, Recent, RecentAction, STATES, Side, Spec, Target,
};
use crate::rule::whole_address_mask;

/// The text of a rule that we cannot read, for States and for users. The handle makes it unique, and it keeps its target.
pub fn unknown(handle: u64, target: Option<&str>) -> String {
    match target {
        Some(target) => format!("-m unknown --handle {handle} -j {target}"),
        None => format!("-m unknown --handle {handle}"),
    }
}

impl Spec<'_> {
    /// The text of the rule in this family.
    pub fn display(&self, family: Family) -> impl fmt::Display {
        fmt::from_fn(move |f| self.print(family, f))
    }

    fn print(&self, family: Family, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        if let Some(range) = &self.source {
            print_range(f, &mut space, "-s", range)?;
        }
        if let Some(range) = &self.destination {
            print_range(f, &mut space, "-d", range)?;
        }
        if let Some(Interface { negated, name, is_prefix }) = self.input {
            let plus = if is_prefix { "+" } else { "" };
            write!(f, "{space}{}-i {name}{plus}", not(negated))?;
            space = " ";
        }
        if let Some(OfProtocol { negated, protocol }) = self.protocol {
            write!(f, "{space}{}-p {protocol}", not(negated))?;
            space = " ";
        }
        for found in &self.matches {
            f.write_str(space)?;
            print_match(f, family, found)?;
            space = " ";
        }
        print_target(f, space, family, &self.target)
    }
}

fn not(negated: bool) -> &'static str {
    if negated { "! " } else { "" }
}

fn print_range(f: &mut fmt::Formatter<'_>, space: &mut &str, option: &str, range: &Range) -> fmt::Result {
    let Range { negated, address, prefix } = range;
    write!(f, "{space}{}{option} {address}/{prefix}", not(*negated))?;
    *space = " ";
    Ok(())
}

fn print_match(f: &mut fmt::Formatter<'_>, family: Family, found: &Match<'_>) -> fmt::Result {
    match found {
        Match::Comment(text) => {
            f.write_str("-m comment --comment ")?;
            print_quoted(f, text)
        }
        Match::Port { protocol, destination: None } => write!(f, "-m {protocol}"),
        Match::Port { protocol, destination: Some(port) } => write!(f, "-m {protocol} --dport {port}"),
        Match::Probability(probability) => {
            let probability = f64::from(*probability) / CERTAIN;
            write!(f, "-m statistic --mode random --probability {probability:.11}")
        }
        Match::Recent(Recent { action, name }) => {
            match action {
                RecentAction::Set => f.write_str("-m recent --set")?,
                RecentAction::Check { seconds } => {
                    write!(f, "-m recent --rcheck --seconds {seconds} --reap")?;
                }
            }
            write!(f, " --name {name} --mask {} --rsource", whole_address_mask(family))
        }
        Match::Mark { negated, value, mask } => {
            write!(f, "-m mark {}--mark ", not(*negated))?;
            if *mask == u32::MAX { write!(f, "{value:#x}") } else { write!(f, "{value:#x}/{mask:#x}") }
        }
        Match::IsLocal { negated, side: Side::Source } => {
            write!(f, "-m addrtype {}--src-type LOCAL", not(*negated))
        }
        Match::IsLocal { negated, side: Side::Destination } => {
            write!(f, "-m addrtype {}--dst-type LOCAL", not(*negated))
        }
        Match::Tracked { negated, states, as_state } => {
            let (name, option) = if *as_state { ("state", "state") } else { ("conntrack", "ctstate") };
            write!(f, "-m {name} {}--{option} ", not(*negated))?;
            let names = STATES.iter().filter(|(_, bit)| states & bit != 0).map(|(name, _)| *name);
            names
                .enumerate()
                .try_for_each(|(index, name)| write!(f, "{}{name}", if index > 0 { "," } else { "" }))
        }
        Match::InSet(InSet { negated, name, number: _, parts, sources }) => {
            write!(f, "-m set {}--match-set {name} ", not(*negated))?;
            (0..*parts).try_for_each(|part| {
                let comma = if part > 0 { "," } else { "" };
                write!(f, "{comma}{}", if sources >> part & 1 == 1 { "src" } else { "dst" })
            })
        }
        Match::Balanced { protocol, server } => {
            let (ip, port) = (server.ip(), server.port());
            write!(f, "-m ipvs --vproto {protocol} --vaddr {ip} --vport {port}")
        }
        // The tool prints two spaces.
        Match::CountedBy(name) => write!(f, "-m nfacct --nfacct-name  {name}"),
        Match::CameOverBridge { negated } => write!(f, "-m physdev {}--physdev-is-in", not(*negated)),
    }
}

fn print_target(f: &mut fmt::Formatter<'_>, space: &str, family: Family, target: &Target<'_>) -> fmt::Result {
    match target {
        Target::None => Ok(()),
        Target::Accept => write!(f, "{space}-j ACCEPT"),
        Target::Drop => write!(f, "{space}-j DROP"),
        Target::Return => write!(f, "{space}-j RETURN"),
        Target::Jump(chain) => write!(f, "{space}-j {chain}"),
        Target::Goto(chain) => write!(f, "{space}-g {chain}"),
        Target::Dnat(to) => write!(f, "{space}-j DNAT --to-destination {to}"),
        Target::Redirect(port) => write!(f, "{space}-j REDIRECT --to-ports {port}"),
        Target::Mark { value, mask } => write!(f, "{space}-j MARK --set-xmark {value:#x}/{mask:#x}"),
        Target::Masquerade { fully_random: true } => write!(f, "{space}-j MASQUERADE --random-fully"),
        Target::Masquerade { fully_random: false } => write!(f, "{space}-j MASQUERADE"),
        Target::Reject => write!(f, "{space}-j REJECT --reject-with {}", reject_with(family)),
    }
}

/// In quotes, unless it is one plain word.
fn print_quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !text.is_empty() && text.bytes().all(is_plain) {
        return f.write_str(text);
    }
    if !text.contains(['"', '\\', '\'']) {
        return write!(f, "\"{text}\"");
    }
    f.write_str("\"")?;
    for letter in text.chars() {
        if matches!(letter, '"' | '\\' | '\'') {
            f.write_str("\\")?;
        }
        fmt::Write::write_char(f, letter)?;
    }
    f.write_str("\"")
}
