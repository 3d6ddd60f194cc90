//! Selects a variant of the iptables tools by a folder of program names, without changing the host; and reads the output of
//! the tools.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use ferroxy_lab::Namespace;
use tempfile::TempDir;

use super::Done;

#[derive(Debug)]
pub struct Iptables {
    variant: &'static str,
    folder: TempDir,
}

impl Iptables {
    pub fn nft() -> Iptables {
        Iptables::of("nft")
    }

    pub fn legacy() -> Iptables {
        Iptables::of("legacy")
    }

    fn of(variant: &'static str) -> Iptables {
        let folder = tempfile::tempdir().unwrap();
        for family in ["iptables", "ip6tables"] {
            for what in ["save", "restore"] {
                let name = format!("{family}-{variant}-{what}");
                let places = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
                let program =
                    places.iter().map(|place| Path::new(place).join(&name)).find(|path| path.exists());
                let program = program.unwrap_or_else(|| panic!("{name} is needed"));
                symlink(program, folder.path().join(format!("{family}-{what}"))).unwrap();
            }
        }
        Iptables { variant, folder }
    }

    /// A PATH to use instead of the host's own.
    pub fn path(&self) -> OsString {
        let mut path = OsString::from(self.folder.path());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path
    }

    /// The output of `iptables-save` and `ip6tables-save`, without counters and comment lines.
    pub fn save(&self, node: &Namespace) -> Vec<String> {
        let mut lines = Vec::new();
        for family in ["iptables", "ip6tables"] {
            let command = format!("{family}-{}-save", self.variant);
            let done = Done::of(node.run(|| Command::new(&command).output()).unwrap().unwrap());
            assert_eq!(done.code, 0, "{command}: {}", done.stderr);
            let content = done.stdout.lines().filter(|line| !line.starts_with('#'));
            lines.extend(content.map(without_counters));
        }
        lines
    }

    /// The user's chains and all rules, without those that the kubelet has as well.
    pub fn rules(&self, node: &Namespace) -> Vec<String> {
        let is_content =
            |line: &String| line.starts_with("-A") || line.starts_with(':') && line.ends_with(" -");
        let lines = self.save(node).into_iter().filter(is_content);
        lines.filter(|line| !line.contains("KUBE-FIREWALL")).collect()
    }

    /// One command of IPv4's tool: `-t nat -F`.
    pub fn command(&self, node: &Namespace, arguments: &str) {
        let mut command = Command::new(format!("iptables-{}", self.variant));
        command.args(["-w", "10"]).args(arguments.split(' '));
        let done = Done::of(node.run(|| command.output()).unwrap().unwrap());
        assert_eq!(done.code, 0, "{arguments}: {}", done.stderr);
    }
}

/// `:KUBE-SERVICES - [12:345]`
fn without_counters(line: &str) -> String {
    let declaration = line.strip_prefix(':').and_then(|_| line.rsplit_once(" ["));
    declaration.map_or(line, |(declaration, _)| declaration).to_owned()
}
