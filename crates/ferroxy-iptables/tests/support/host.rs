//! A host for tests of the running dataplane, in a network namespace of its own. Needs root.

use ferroxy_core::{Family, Intent};
use ferroxy_dataplane::{Change, Dataplane, Outcome};
use ferroxy_iptables::door::Door;
use ferroxy_iptables::tool::{Limits, Tools, Variant, fingerprint, restore, save_text};
use ferroxy_iptables::{Iptables, State, TableName, text};
use ferroxy_lab::{Capability, Namespace, require};

/// Who writes the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    Tool(Variant),
    /// Over netlink, or through the socket options of the legacy variant.
    Builtin(Variant),
}

pub const WRITERS: [Writer; 4] = [
    Writer::Tool(Variant::NfTables),
    Writer::Builtin(Variant::NfTables),
    Writer::Tool(Variant::Legacy),
    Writer::Builtin(Variant::Legacy),
];

/// A host of one variant, with rules of others, and our dataplane.
pub struct Host {
    pub writer: Writer,
    pub variant: Variant,
    pub tools: Vec<Tools>,
    pub dataplane: Iptables,
}

/// Rules of others, in the built-in chains that have our jumps, in both families.
pub const FOREIGN: &str = "*filter\n:MINE - [0:0]\n-A INPUT -p icmp -j MINE\n-A FORWARD -j MINE\n-A MINE -j RETURN\nCOMMIT\n\
                       *nat\n:MINE - [0:0]\n-A PREROUTING -j MINE\n-A POSTROUTING -j MINE\nCOMMIT\n\
                       *mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n";

/// Runs `test` with each writer, each in a fresh namespace.
pub fn with_hosts(test: impl Fn(&mut Host) + Sync) {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for writer in WRITERS {
        Namespace::new("iptables").unwrap().run(|| test(&mut Host::new(writer))).unwrap();
    }
}

impl Writer {
    pub fn variant(self) -> Variant {
        match self {
            Writer::Tool(variant) | Writer::Builtin(variant) => variant,
        }
    }

    pub fn dataplane(self, limits: Limits) -> Iptables {
        let door = |family| match self {
            Writer::Tool(variant) => Door::tool(tools_of(family, variant)),
            Writer::Builtin(variant) => door_of(family, variant),
        };
        Iptables::through(Family::ALL.map(door).into(), limits)
    }
}

pub fn door_of(family: Family, variant: Variant) -> Door {
    match variant {
        Variant::NfTables => Door::nf_tables(family),
        Variant::Legacy => Door::legacy(family),
    }
    .unwrap()
}

pub fn tools_of(family: Family, variant: Variant) -> Tools {
    Tools::find_variant(family, variant).expect("both variants of iptables are needed")
}

impl Host {
    pub fn new(writer: Writer) -> Host {
        let variant = writer.variant();
        let tools: Vec<Tools> = Family::ALL.map(|family| tools_of(family, variant)).into();
        let host = Host { writer, variant, tools, dataplane: writer.dataplane(Limits::default()) };
        for tools in &host.tools {
            restore(tools, FOREIGN, &Limits::default()).unwrap();
        }
        host
    }

    /// A new dataplane, as after a restart.
    pub fn restart(&mut self) {
        self.dataplane = self.writer.dataplane(Limits::default());
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

    /// Differs after every write of any program.
    pub fn generation(&self) -> String {
        let look = |family, table: TableName| fingerprint(family, self.variant, table.as_str()).unwrap();
        let all = Family::ALL.map(|family| TableName::ALL.map(|table| look(family, table)));
        format!("{all:?}")
    }
}
