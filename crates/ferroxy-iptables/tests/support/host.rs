//! A host for tests of the running dataplane, in a network namespace of its own. Needs root.

use ferroxy_core::{Family, Intent};
use ferroxy_dataplane::{Change, Dataplane, Outcome};
use ferroxy_iptables::tool::{Limits, Tools, Variant, fingerprint, restore, save_text};
use ferroxy_iptables::{Iptables, State, TableName, text};
use ferroxy_lab::{Capability, Namespace, require};

const VARIANTS: [Variant; 2] = [Variant::NfTables, Variant::Legacy];

/// A host of one variant, with rules of others, and our dataplane.
pub struct Host {
    pub variant: Variant,
    pub tools: Vec<Tools>,
    pub dataplane: Iptables,
}

/// Rules of others, in the built-in chains that have our jumps, in both families.
pub const FOREIGN: &str = "*filter\n:MINE - [0:0]\n-A INPUT -p icmp -j MINE\n-A FORWARD -j MINE\n-A MINE -j RETURN\nCOMMIT\n\
                       *nat\n:MINE - [0:0]\n-A PREROUTING -j MINE\n-A POSTROUTING -j MINE\nCOMMIT\n\
                       *mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n";

/// Runs `test` with each variant, each in a fresh namespace.
pub fn with_hosts(test: impl Fn(&mut Host) + Sync) {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for variant in VARIANTS {
        Namespace::new("iptables").unwrap().run(|| test(&mut Host::new(variant))).unwrap();
    }
}

impl Host {
    fn new(variant: Variant) -> Host {
        let tools: Vec<Tools> = Family::ALL
            .map(|family| Tools::find_variant(family, variant).expect("both variants of iptables are needed"))
            .into();
        let dataplane = Iptables::with_tools(tools.clone(), Limits::default());
        let host = Host { variant, tools, dataplane };
        for tools in &host.tools {
            restore(tools, FOREIGN, &Limits::default()).unwrap();
        }
        host
    }

    /// A new dataplane, as after a restart.
    pub fn restart(&mut self) {
        self.dataplane = Iptables::with_tools(self.tools.clone(), Limits::default());
    }

    pub fn start(&mut self, intent: &Intent) -> Outcome {
        let outcome = self.dataplane.start(intent).unwrap();
        assert_eq!(outcome.refused, []);
        outcome
    }

    pub fn change(&mut self, changes: Vec<Change>) -> Outcome {
        self.dataplane.change(changes).unwrap()
    }

    /// Changes IPv4 rules as another program does.
    pub fn edit(&self, input: &str) {
        restore(&self.tools[0], input, &Limits::default()).unwrap();
    }

    pub fn save(&self) -> Vec<String> {
        self.tools.iter().map(|tools| save_text(tools, None, &Limits::default()).unwrap()).collect()
    }

    pub fn state(&self) -> State {
        let mut state = State::default();
        for (family, saved) in Family::ALL.into_iter().zip(self.save()) {
            state.tables.extend(text::parse(family, &saved).tables);
        }
        state
    }

    pub fn wanted(&self) -> String {
        self.dataplane.ledger().state().to_string()
    }

    /// Differs after every write of anybody.
    pub fn generation(&self) -> String {
        let look = |family, table: TableName| fingerprint(family, self.variant, table.as_str()).unwrap();
        let all = Family::ALL.map(|family| TableName::ALL.map(|table| look(family, table)));
        format!("{all:?}")
    }
}
