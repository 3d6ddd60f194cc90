//! Finds the iptables tools of this host, their variant and version, and rules of a Kubernetes proxy in the other variant.
//! Runs nothing but `--version` and `-save`.

use std::collections::HashMap;
use std::env;
use std::fmt;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::{Access, access};

use super::process::Program;
use super::{Error, Family, Limits, save};
use crate::text::tool;

/// Searched after PATH, which often lacks them in a service.
const ALSO: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// The tables a Kubernetes proxy writes to.
const TABLES: [&str; 3] = ["nat", "filter", "mangle"];

/// A `-save` and a `-restore` that work on the same rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tools {
    pub family: Family,
    pub variant: Variant,
    pub version: Version,
    pub save: PathBuf,
    pub restore: PathBuf,
}

/// Where the rules are. Both may exist in one kernel, and packets pass both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// In nf_tables.
    NfTables,
    /// In the older `ip_tables`: a table is replaced as a whole, under a lock file.
    Legacy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32, pub u32, pub u32);

/// Chains of a Kubernetes proxy in the variant that is not used. They still see packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    pub family: Family,
    pub variant: Variant,
    pub table: &'static str,
    /// The first one found.
    pub chain: String,
}

impl Tools {
    /// The host's choice: `iptables-save` and `iptables-restore`. Logged when it changed.
    pub fn find(family: Family) -> Result<Tools, Error> {
        let tools = Tools::search(family, "", &search_path())?;
        log_once(&tools);
        Ok(tools)
    }

    /// The tools in one directory.
    pub fn find_in(family: Family, directory: &Path) -> Result<Tools, Error> {
        let tools = Tools::search(family, "", &[directory.to_owned()])?;
        log_once(&tools);
        Ok(tools)
    }

    /// Whether the host has usable tools.
    pub fn are_installed(family: Family) -> bool {
        Tools::search(family, "", &search_path()).is_ok()
    }

    /// A certain variant, whatever the host's choice is.
    pub fn find_variant(family: Family, variant: Variant) -> Result<Tools, Error> {
        Tools::search(family, variant.infix(), &search_path())
    }

    /// Rules of a Kubernetes proxy in the other variant: an administrator changed the host's choice, or two programs disagree. Logs a
    /// warning. `None` also when the other variant is not installed.
    pub fn leftover(&self, limits: &Limits) -> Result<Option<Leftover>, Error> {
        let other = match Tools::find_variant(self.family, self.variant.other()) {
            Ok(other) => other,
            Err(Error::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        for table in TABLES {
            if other.has_table(table)
                && let Some(chain) = other.first_kubernetes_chain(table, limits)?
            {
                let found = Leftover { family: self.family, variant: other.variant, table, chain };
                found.warn();
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn search(family: Family, infix: &str, directories: &[PathBuf]) -> Result<Tools, Error> {
        let prefix = tool(family);
        let save = find_program(&format!("{prefix}{infix}-save"), directories)?;
        let restore = find_program(&format!("{prefix}{infix}-restore"), directories)?;
        let (version, variant) = ask_version(&restore)?;
        let (_, save_variant) = ask_version(&save)?;
        if variant != save_variant {
            let (save, restore) = (save.display().to_string(), restore.display().to_string());
            return Err(Error::MixedVariants { save, save_variant, restore, restore_variant: variant });
        }
        Ok(Tools { family, variant, version, save, restore })
    }

    fn has_table(&self, table: &str) -> bool {
        match self.variant {
            Variant::NfTables => true,
            // Legacy tools create the table that they list, and load its module: list only existing tables.
            Variant::Legacy => legacy_table_exists(self.family, table),
        }
    }

    fn first_kubernetes_chain(&self, table: &str, limits: &Limits) -> Result<Option<String>, Error> {
        let mut found = None;
        save(self, Some(table), limits, &mut |line| match kubernetes_chain(line) {
            Some(chain) => {
                found = Some(chain.to_owned());
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        })?;
        Ok(found)
    }
}

/// In the network namespace of the calling thread. Creates nothing, and loads no module.
fn legacy_table_exists(family: Family, table: &str) -> bool {
    let names = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    // No such file: the module is not loaded, so there are no tables.
    fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == table))
}

impl Leftover {
    /// Chains of the kubelet (KUBE-MARK-DROP and others in old versions, a hint chain today) do not belong to a proxy.
    pub(crate) fn is_of_a_proxy(chain: &str) -> bool {
        const KUBELET: [&str; 4] =
            ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-FIREWALL", "KUBE-MARK-DROP"];
        chain.starts_with("KUBE-") && !KUBELET.contains(&chain)
    }

    pub(crate) fn warn(&self) {
        tracing::warn!("{self}: packets pass these rules, too; remove them, or use that variant");
    }
}

fn kubernetes_chain(line: &str) -> Option<&str> {
    let name = line.strip_prefix(':')?.split_whitespace().next()?;
    Leftover::is_of_a_proxy(name).then_some(name)
}

/// The same tools are logged once; a change is logged again.
fn log_once(tools: &Tools) {
    static LOGGED: Mutex<Option<HashMap<Family, Tools>>> = Mutex::new(None);
    let mut logged = LOGGED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = logged.get_or_insert_default().insert(tools.family, tools.clone());
    if before.as_ref() != Some(tools) {
        let Tools { variant, version, save, restore, .. } = tools;
        tracing::info!(%variant, %version, save = %save.display(), restore = %restore.display(), "iptables tools");
    }
}

fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = env::split_paths(&path).filter(|p| p.is_absolute()).collect();
    directories.extend(ALSO.map(PathBuf::from));
    directories
}

fn find_program(name: &str, directories: &[PathBuf]) -> Result<PathBuf, Error> {
    let candidates = directories.iter().map(|directory| directory.join(name));
    let executable = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    candidates.into_iter().find(executable).ok_or_else(|| {
        let searched: Vec<String> = directories.iter().map(|p| p.display().to_string()).collect();
        Error::Missing { tool: name.to_owned(), searched: searched.join(":") }
    })
}

fn ask_version(path: &Path) -> Result<(Version, Variant), Error> {
    let program =
        Program { path, arguments: &["--version"], limit: Duration::from_secs(60), output: 64 * 1024 };
    let mut output = Vec::new();
    let ended = program.run(&mut std::iter::empty(), &mut |bytes| {
        output.extend_from_slice(bytes);
        ControlFlow::Continue(())
    })?;
    let said = String::from_utf8_lossy(&output).trim().to_owned();
    match parse_version(&said) {
        Some(found) if ended.status == 0 => Ok(found),
        _ => Err(Error::UnknownVersion { tool: path.display().to_string(), said: said + ended.said.trim() }),
    }
}

/// `iptables-save v1.8.9 (nf_tables)`. Tools before 1.8 know of no variants and are legacy.
fn parse_version(said: &str) -> Option<(Version, Variant)> {
    let (_, rest) = said.split_once(" v")?;
    let (numbers, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut numbers = numbers.split('.').map(|number| number.parse().ok());
    let version = Version(numbers.next()??, numbers.next()??, numbers.next().unwrap_or(Some(0))?);
    let variant = match rest.trim() {
        "(nf_tables)" => Variant::NfTables,
        "(legacy)" | "" => Variant::Legacy,
        _ => return None,
    };
    Some((version, variant))
}

impl Variant {
    fn infix(self) -> &'static str {
        match self {
            Variant::NfTables => "-nft",
            Variant::Legacy => "-legacy",
        }
    }

    fn other(self) -> Variant {
        match self {
            Variant::NfTables => Variant::Legacy,
            Variant::Legacy => Variant::NfTables,
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::NfTables => "nf_tables",
            Variant::Legacy => "legacy",
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Leftover { family, variant, table, chain } = self;
        let tools = tool(*family);
        write!(
            f,
            "the {variant} variant of {tools}, which is not used here, has {chain} in its table {table}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let v = |a, b, c| Version(a, b, c);
        for (said, expected) in [
            ("iptables-save v1.8.9 (nf_tables)", Some((v(1, 8, 9), Variant::NfTables))),
            ("ip6tables-restore v1.8.11 (legacy)", Some((v(1, 8, 11), Variant::Legacy))),
            ("iptables-restore v1.6.1", Some((v(1, 6, 1), Variant::Legacy))),
            ("iptables v1.8", Some((v(1, 8, 0), Variant::Legacy))),
            ("iptables v1.8.9 (surprise)", None),
            ("iptables vone.two", None),
            ("bash: iptables: command not found", None),
            ("", None),
        ] {
            assert_eq!(parse_version(said), expected, "{said:?}");
        }
        assert!(v(1, 8, 10) > v(1, 8, 9));
    }

    #[test]
    fn what_the_kubelet_left_is_no_proxys() {
        assert_eq!(kubernetes_chain(":KUBE-SERVICES - [0:0]"), Some("KUBE-SERVICES"));
        for line in
            [":KUBE-IPTABLES-HINT - [0:0]", ":INPUT ACCEPT [0:0]", "-A KUBE-SERVICES -j X", "*nat", ""]
        {
            assert_eq!(kubernetes_chain(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_missing_tool_is_named_with_where_it_was_sought() {
        let error = Tools::search(Family::V6, "", &["/no/such/place".into()]).unwrap_err();
        assert_eq!(error.to_string(), "ip6tables-save is not installed: looked in /no/such/place");
    }
}
