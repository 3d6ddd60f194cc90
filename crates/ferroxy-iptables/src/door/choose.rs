//! Chooses how to read and write rules: by `iptables.program`, the tools that the host has installed, and its kernel.

use std::path::{Path, PathBuf};

use ferroxy_core::Family;
use ferroxy_dataplane::Settings;
use ferroxy_netlink::nftables::Connection;
use ferroxy_netlink::xtables;

use super::Door;
use super::nft::nft_family;
use crate::settings::PROGRAM;
use crate::state::TableName;
use crate::tool::{Error, Tools, Variant, Version};

/// Chains that the kubelet creates in the variant that the host uses, so that other programs can detect the variant.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
/// Earlier versions of the nft variant cannot read the form in which we write ports and marks.
const READS_OUR_RULES: Version = Version(1, 8, 8);

/// The value of `iptables.program`.
#[derive(Debug, PartialEq, Eq)]
enum Program {
    /// No program, unless the host's tools would not understand our rules.
    Auto,
    Builtin,
    Tool,
    /// The tools in this directory.
    In(PathBuf),
}

impl Program {
    fn parse(text: &str) -> Program {
        match text {
            "" | "auto" => Program::Auto,
            "builtin" => Program::Builtin,
            "tool" => Program::Tool,
            path => Program::In(path.into()),
        }
    }
}

impl Door {
    /// Opens the rules as `iptables.program` configures, in the variant that the host uses.
    pub fn open(family: Family, settings: &Settings) -> Result<Door, Error> {
        match Program::parse(&settings.text(&PROGRAM)) {
            Program::Tool => Ok(Door::tool(Tools::find(family)?)),
            Program::In(directory) => Ok(Door::tool(Tools::find_in(family, directory_of(&directory))?)),
            Program::Builtin => Door::builtin(family),
            Program::Auto => match Tools::find(family) {
                Ok(tools) => Door::beside(tools),
                Err(Error::Missing { .. }) => Door::builtin(family),
                Err(error) => Err(error),
            },
        }
    }

    /// Writes rules without the tools if this version of the tools can read our rules.
    fn beside(tools: Tools) -> Result<Door, Error> {
        let family = tools.family;
        match (tools.variant, tools.version >= READS_OUR_RULES) {
            (Variant::NfTables, true) => {
                tracing::info!(?family, "writing iptables rules over netlink, in the format of iptables-nft");
                Door::nf_tables(family)
            }
            (Variant::NfTables, false) => {
                tracing::info!(?family, version = %tools.version, "running iptables-nft: it is too old to read the rules that Ferroxy writes over netlink");
                Ok(Door::tool(tools))
            }
            (Variant::Legacy, _) => {
                tracing::info!(?family, "writing iptables rules through socket options, into legacy tables");
                Door::legacy(family)
            }
        }
    }

    fn builtin(family: Family) -> Result<Door, Error> {
        match variant_in_kernel(family)? {
            Variant::NfTables => Door::nf_tables(family),
            Variant::Legacy => Door::legacy(family),
        }
    }
}

/// A path may also name one of the tools.
fn directory_of(path: &Path) -> &Path {
    if path.is_file() { path.parent().unwrap_or(path) } else { path }
}

/// The variant with the kubelet's hint chains. Without hints: legacy if only legacy tables have chains, otherwise nf_tables.
fn variant_in_kernel(family: Family) -> Result<Variant, Error> {
    let mut connection = Connection::open()?;
    let (mut has_hint, mut has_chains) = (false, false);
    connection.all_chains(nft_family(family), &mut |table, chain, _| {
        has_chains |= TableName::parse(table).is_some();
        has_hint |= table == TableName::Mangle.as_str() && HINTS.contains(&chain);
    })?;
    if has_hint {
        return Ok(Variant::NfTables);
    }
    let (has_legacy_hint, has_legacy_chains) = match look_at_legacy(family) {
        Err(error) if error.is_not_permitted() => {
            tracing::warn!(
                "{error}: cannot see whether the host uses legacy iptables; assuming that it does not"
            );
            (false, false)
        }
        other => other?,
    };
    let is_legacy = has_legacy_hint || (has_legacy_chains && !has_chains);
    Ok(if is_legacy { Variant::Legacy } else { Variant::NfTables })
}

fn look_at_legacy(family: Family) -> Result<(bool, bool), Error> {
    let (mut has_hint, mut has_chains) = (false, false);
    for name in xtables::tables(nft_family(family))? {
        let Some(table) = TableName::parse(&name) else { continue };
        let found = xtables::Connection::open(nft_family(family))?.read(&name)?;
        has_chains |= found.chains().next().is_some();
        has_hint |= table == TableName::Mangle && found.chains().any(|chain| HINTS.contains(&chain));
    }
    Ok((has_hint, has_chains))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_word_or_a_path() {
        assert_eq!(Program::parse("auto"), Program::Auto);
        assert_eq!(Program::parse(""), Program::Auto);
        assert_eq!(Program::parse("builtin"), Program::Builtin);
        assert_eq!(Program::parse("tool"), Program::Tool);
        assert_eq!(Program::parse("/opt/sbin"), Program::In("/opt/sbin".into()));
        assert_eq!(directory_of(Path::new("/etc/passwd")), Path::new("/etc"));
        assert_eq!(directory_of(Path::new("/etc")), Path::new("/etc"));
    }
}
