//! The host's real iptables tools, nft and legacy, each test in a network namespace of its own: what is restored is saved back,
//! failures are reported, and nothing hangs. Needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test should stop at once"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferroxy_iptables::tool::{
    Attendant, Error, Family, Fingerprint, Limits, Refusal, Tools, Variant, fingerprint, restore,
    restore_attended, save_text, sysctl,
};
use ferroxy_lab::{Capability, Namespace, require};
use ferroxy_netlink::nftables::{Monitor, Notice};
use rustix::fs::{FlockOperation, flock};

const VARIANTS: [Variant; 2] = [Variant::NfTables, Variant::Legacy];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Runs `test` with each variant and family, each in a fresh namespace.
fn with_tools(test: impl Fn(&Tools) + Sync) {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for variant in VARIANTS {
        for family in FAMILIES {
            let tools = Tools::find_variant(family, variant).expect("both variants of iptables are needed");
            Namespace::new("tool").unwrap().run(|| test(&tools)).unwrap();
        }
    }
}

fn with_variant(variant: Variant, test: impl Fn(&Tools) + Sync) {
    with_tools(|tools| {
        if tools.variant == variant && tools.family == Family::V4 {
            test(tools);
        }
    });
}

fn refusal(result: Result<impl std::fmt::Debug, Error>) -> Refusal {
    match result {
        Err(Error::Refused(refusal)) => *refusal,
        other => panic!("not a refusal: {other:?}"),
    }
}

/// Chains with their rules, in order; tables, counters and comments do not count.
fn chains(saved: &str) -> BTreeMap<String, Vec<String>> {
    let mut chains = BTreeMap::new();
    for line in saved.lines() {
        if let Some(declared) = line.strip_prefix(':') {
            chains.insert(declared.split(' ').next().unwrap().to_owned(), Vec::new());
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let (name, rule) = rule.split_once(' ').unwrap();
            chains.get_mut(name).unwrap().push(rule.to_owned());
        }
    }
    chains
}

/// Rules for this many Services with this many endpoints each, as the original writes them; and jumps to them.
fn cluster(services: usize, endpoints: usize) -> String {
    let mut text = String::from("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n");
    let each = |put: &mut dyn FnMut(usize, usize)| {
        (0..services).for_each(|s| (0..endpoints).for_each(|e| put(s, e)));
    };
    (0..services).for_each(|s| writeln!(text, ":KUBE-SVC-{s:016} - [0:0]").unwrap());
    each(&mut |s, e| writeln!(text, ":KUBE-SEP-{s:011}-{e:04} - [0:0]").unwrap());
    text += "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n";
    for s in 0..services {
        let name = format!(
            "-m comment --comment \"ns/svc-{s}:http cluster IP\" -p tcp -m tcp --dport {}",
            1 + s % 65535
        );
        writeln!(text, "-A KUBE-SERVICES {name} -j KUBE-SVC-{s:016}").unwrap();
    }
    each(&mut |s, e| {
        let left = endpoints - e;
        let chance = format!("-m statistic --mode random --probability {:.10} ", 1.0 / left as f64);
        let chance = if left > 1 { &chance } else { "" };
        writeln!(text, "-A KUBE-SVC-{s:016} {chance}-j KUBE-SEP-{s:011}-{e:04}").unwrap();
    });
    each(&mut |s, e| {
        let port = 1 + (s * endpoints + e) % 65535;
        let name = format!("-A KUBE-SEP-{s:011}-{e:04}");
        writeln!(text, "{name} -p tcp -m tcp --sport {port} -j KUBE-MARK-MASQ").unwrap();
        writeln!(text, "{name} -p tcp -m tcp -j DNAT --to-destination :{port}").unwrap();
    });
    text + "-I PREROUTING -j KUBE-SERVICES\n-I OUTPUT -j KUBE-SERVICES\nCOMMIT\n"
}

#[test]
fn what_is_restored_is_saved_back() {
    with_tools(|tools| {
        let text = cluster(20, 3);
        let receipt = restore(tools, &text, &Limits::default()).unwrap();
        assert_eq!((receipt.runs, receipt.commits), (1, 1));
        assert_eq!((receipt.bytes, receipt.lines), (text.len(), text.lines().count()));
        assert_eq!(receipt.waited, Duration::ZERO);
        let found = chains(&save_text(tools, Some("nat"), &Limits::default()).unwrap());
        assert_eq!(found["KUBE-SERVICES"].len(), 20);
        assert_eq!(found["PREROUTING"], ["-j KUBE-SERVICES"]);
        assert_eq!(found["KUBE-SEP-00000000007-0002"].len(), 2);
        assert!(save_text(tools, None, &Limits::default()).unwrap().contains("KUBE-SEP-00000000007-0002"));
    });
}

#[test]
fn portions_end_where_the_whole_ends() {
    with_tools(|tools| {
        if tools.variant == Variant::Legacy {
            return;
        }
        let plain = Namespace::new("plain").unwrap();
        let saved = || chains(&save_text(tools, Some("nat"), &Limits::default()).unwrap());
        // 2,100 chains: enough for two portions. Then most of them are removed.
        let (large, small) = (cluster(300, 6), cluster(10, 6));
        let (before, after) = (chains(&large), chains(&small));
        let gone: Vec<&String> = before.keys().filter(|name| !after.contains_key(*name)).collect();
        let mut less =
            small.replace("-I PREROUTING -j KUBE-SERVICES\n-I OUTPUT -j KUBE-SERVICES\nCOMMIT\n", "");
        gone.iter().for_each(|name| writeln!(less, ":{name} - [0:0]").unwrap());
        gone.iter().for_each(|name| writeln!(less, "-X {name}").unwrap());
        less += "COMMIT\n";
        for (text, expected) in [(&large, 4), (&less, 7)] {
            let receipt = restore(tools, text, &Limits::default()).unwrap();
            assert_eq!(receipt.commits, expected);
            let whole = plain.run(|| {
                let input = PathBuf::from(format!("/proc/self/fd/{}", memory_file(text)));
                let status = Command::new(&tools.restore).arg("--noflush").arg(input).status().unwrap();
                assert!(status.success());
                saved()
            });
            assert_eq!(saved(), whole.unwrap());
        }
        assert_eq!(saved().keys().filter(|name| name.starts_with("KUBE-S")).count(), 1 + 10 * 7);
    });
}

/// An anonymous file that is the input of a tool, for a tool that this test starts itself.
fn memory_file(text: &str) -> i32 {
    use std::os::fd::IntoRawFd;
    let fd = rustix::fs::memfd_create("input", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::io::write(&fd, text.as_bytes()).map(|written| assert_eq!(written, text.len())).unwrap();
    rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).unwrap();
    fd.into_raw_fd()
}

#[test]
fn a_refused_table_is_left_as_it_was_and_the_line_is_named() {
    with_tools(|tools| {
        let text = "*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD -j ACCEPT\nCOMMIT\n\
                    *nat\n:KUBE-SVC-GOOD - [0:0]\n:KUBE-SVC-BAD - [0:0]\n-A KUBE-SVC-GOOD -j RETURN\n\
                    -A KUBE-SVC-BAD -m nosuchmatch -j RETURN\nCOMMIT\n";
        let refusal = refusal(restore(tools, text, &Limits::default()));
        assert_eq!(refusal.chain.as_deref(), Some("KUBE-SVC-BAD"));
        assert_eq!(refusal.line.as_deref(), Some("-A KUBE-SVC-BAD -m nosuchmatch -j RETURN"));
        assert!(refusal.said.contains("nosuchmatch") && !refusal.said.contains("Try"), "{}", refusal.said);
        let saved = save_text(tools, None, &Limits::default()).unwrap();
        assert!(saved.contains("-A KUBE-FORWARD -j ACCEPT"), "the table before it is in force");
        assert!(!saved.contains("KUBE-SVC"), "nothing of the refused table is in force: {saved}");
    });
}

#[test]
fn what_the_kernel_refuses_is_not_taken_for_the_lock() {
    with_variant(Variant::NfTables, |tools| {
        let text = "*nat\n:KUBE-SVC-A - [0:0]\n:KUBE-SEP-A - [0:0]\n-A KUBE-SVC-A -j KUBE-SEP-A\n-X KUBE-SEP-A\nCOMMIT\n";
        let refusal = refusal(restore(tools, text, &Limits::default()));
        assert_eq!(refusal.status, 4, "the same status as for the lock");
        assert_eq!(refusal.chain.as_deref(), Some("KUBE-SEP-A"));
        assert!(refusal.said.contains("Device or resource busy"), "{}", refusal.said);
        assert!(!save_text(tools, Some("nat"), &Limits::default()).unwrap().contains("KUBE"));
    });
}

#[test]
fn a_jump_to_nowhere_names_the_rule() {
    with_tools(|tools| {
        let text =
            "*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j RETURN\n-A KUBE-SVC-A -j KUBE-SEP-GONE\nCOMMIT\n";
        let refusal = refusal(restore(tools, text, &Limits::default()));
        assert_eq!(refusal.line.as_deref(), Some("-A KUBE-SVC-A -j KUBE-SEP-GONE"), "{refusal}");
    });
}

#[test]
fn a_failure_in_a_late_portion_leaves_the_earlier_ones() {
    with_variant(Variant::NfTables, |tools| {
        let text =
            cluster(600, 4).replace("-j DNAT --to-destination :2400\n", "-j DNAT --to-destination bad\n");
        let refusal = refusal(restore(tools, &text, &Limits::default()));
        assert_eq!(refusal.chain.as_deref(), Some("KUBE-SEP-00000000599-0003"), "{refusal}");
        let found = chains(&save_text(tools, Some("nat"), &Limits::default()).unwrap());
        assert!(found.contains_key("KUBE-SVC-0000000000000000"));
        assert!(!found.contains_key("KUBE-SVC-0000000000000599"));
        assert!(!found.contains_key("KUBE-SERVICES"), "nothing leads there yet");
    });
}

#[test]
fn a_lock_that_is_not_given_back_is_reported() {
    with_variant(Variant::Legacy, |tools| {
        let lock = OpenOptions::new().append(true).create(true).open("/run/xtables.lock").unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let limits = Limits { lock: Duration::from_secs(1), attempts: 2, ..Limits::default() };
        let text = "*nat\n:KUBE-SVC-A - [0:0]\nCOMMIT\n";
        match restore(tools, text, &limits) {
            Err(Error::Locked { runs: 2, waited, .. }) => {
                assert!(waited >= Duration::from_secs(2), "{waited:?}")
            }
            other => panic!("{other:?}"),
        }
        let keeper = GivesBackAt(AtomicU32::new(2), Mutex::new(Some(lock)));
        let receipt = restore_attended(tools, text, &Limits { attempts: 10, ..limits }, &keeper).unwrap();
        assert!(receipt.runs >= 2, "{receipt:?}");
        assert!(receipt.waited >= Duration::from_secs(1), "{receipt:?}");
        assert!(save_text(tools, Some("nat"), &limits).unwrap().contains("KUBE-SVC-A"));
    });
}

/// Holds the lock until the tool is started for the nth time.
struct GivesBackAt(AtomicU32, Mutex<Option<File>>);

impl Attendant for GivesBackAt {
    fn started(&self, _process: u32) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            drop(self.1.lock().unwrap().take());
        }
    }
}

/// A tool that is a shell script. (Not written by the test: a file that another test's child still holds open for writing
/// cannot be run.)
fn fake(name: &str) -> Tools {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fake").join(name);
    let tools = Tools::find_variant(Family::V4, Variant::NfTables).unwrap();
    Tools { save: path.clone(), restore: path, ..tools }
}

#[test]
fn a_hung_tool_is_killed() {
    let tools = fake("hung");
    let limits = Limits { run: Duration::from_millis(300), ..Limits::default() };
    assert!(matches!(restore(&tools, "*nat\nCOMMIT\n", &limits), Err(Error::TimedOut { .. })));
    assert!(matches!(save_text(&tools, None, &limits), Err(Error::TimedOut { .. })));
}

#[test]
fn the_attendant_is_called_while_a_tool_runs() {
    #[derive(Default)]
    struct Counting(AtomicU32, AtomicU32);
    impl Attendant for Counting {
        fn started(&self, process: u32) {
            assert_eq!(self.0.swap(process, Ordering::Relaxed), 0);
        }
        fn waiting(&self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let counting = Counting::default();
    let limits = Limits { run: Duration::from_millis(2500), ..Limits::default() };
    let outcome = restore_attended(&fake("hung"), "*nat\nCOMMIT\n", &limits, &counting);
    assert!(matches!(outcome, Err(Error::TimedOut { .. })));
    assert_ne!(counting.0.into_inner(), 0);
    assert!(counting.1.into_inner() >= 2, "once a second");
}

#[test]
fn a_flood_is_cut_off_and_a_large_output_is_not() {
    let tools = fake("flood");
    let limits = Limits { output: 1_000_000, ..Limits::default() };
    let cut = save_text(&tools, None, &limits);
    assert!(matches!(cut, Err(Error::TooMuchOutput { .. })), "{:.200}", format!("{cut:?}"));
    assert_eq!(save_text(&tools, None, &Limits::default()).unwrap().len(), 20_000_001);
}

#[test]
fn a_failing_save_says_why() {
    let tools = fake("failing");
    let error = save_text(&tools, Some("nat"), &Limits::default()).unwrap_err().to_string();
    assert!(error.ends_with("failed with status 3: Table does not exist"), "{error}");
}

#[test]
fn rules_in_the_other_variant_are_noticed() {
    with_tools(|tools| {
        assert_eq!(tools.leftover(&Limits::default()).unwrap(), None);
        let hint = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
        restore(tools, hint, &Limits::default()).unwrap();
        let text = "*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT\n";
        restore(tools, text, &Limits::default()).unwrap();
        assert_eq!(
            tools.leftover(&Limits::default()).unwrap(),
            None,
            "these are in the variant that is used"
        );
        let other = VARIANTS.into_iter().find(|variant| *variant != tools.variant).unwrap();
        let other = Tools::find_variant(tools.family, other).unwrap();
        let found = other.leftover(&Limits::default()).unwrap().unwrap();
        assert_eq!(
            (found.variant, found.table, found.chain.as_str()),
            (tools.variant, "filter", "KUBE-SERVICES")
        );
    });
}

#[test]
fn looking_for_rules_makes_no_legacy_table() {
    with_variant(Variant::NfTables, |tools| {
        assert_eq!(tools.leftover(&Limits::default()).unwrap(), None);
        assert_eq!(fingerprint(Family::V4, Variant::Legacy, "nat").unwrap(), Fingerprint::Absent);
        assert_eq!(fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap_or_default(), "");
    });
}

#[test]
fn a_flush_changes_the_fingerprint_and_nothing_else_does() {
    with_tools(|tools| {
        let look = || fingerprint(tools.family, tools.variant, "nat").unwrap();
        restore(tools, &cluster(5, 2), &Limits::default()).unwrap();
        let before = look();
        assert_ne!(before, Fingerprint::Absent);
        save_text(tools, Some("nat"), &Limits::default()).unwrap();
        assert_eq!(look(), before);
        restore(tools, "*nat\n:KUBE-SEP-00000000000-0000 - [0:0]\nCOMMIT\n", &Limits::default()).unwrap();
        assert_ne!(look(), before);
    });
}

#[test]
fn the_generation_rises_by_our_commits() {
    with_variant(Variant::NfTables, |tools| {
        let look = || match fingerprint(tools.family, tools.variant, "nat").unwrap() {
            Fingerprint::Generation(generation) => generation,
            other => panic!("{other:?}"),
        };
        for text in [cluster(5, 2), cluster(300, 6)] {
            let before = look();
            let receipt = restore(tools, &text, &Limits::default()).unwrap();
            assert_eq!((look() - before) as usize, receipt.commits);
        }
    });
}

#[test]
fn notifications_of_our_own_restore_are_recognised() {
    with_variant(Variant::NfTables, |tools| {
        let mut monitor = Monitor::open().unwrap();
        let receipt = restore(tools, &cluster(5, 2), &Limits::default()).unwrap();
        let mut notices = Vec::new();
        while let Some(notice) = monitor.next(Some(Duration::ZERO)).unwrap() {
            notices.push(notice);
        }
        let is_ours = |notice: &Notice| match notice {
            Notice::Changed { table, port_id, .. } => table == "nat" && *port_id == receipt.pid,
            Notice::Generation { port_id, .. } => *port_id == receipt.pid,
            Notice::Lost => false,
        };
        assert!(!notices.is_empty() && notices.iter().all(is_ours), "{receipt:?} {notices:?}");
    });
}

#[test]
fn the_hosts_own_choice_is_found() {
    let tools = Tools::find(Family::V4).unwrap();
    assert!(VARIANTS.contains(&tools.variant));
    assert!(tools.version.0 >= 1, "{}", tools.version);
    assert!(tools.save.ends_with("iptables-save") && tools.restore.ends_with("iptables-restore"));
}

#[test]
fn settings_are_of_the_namespace() {
    with_variant(Variant::NfTables, |_| {
        // Whether a new namespace inherits the host's value depends on devconf_inherit_init_net.
        fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "0").unwrap();
        assert!(!sysctl::route_localnet().unwrap());
        sysctl::set_route_localnet().unwrap();
        assert!(sysctl::route_localnet().unwrap());
        sysctl::set_route_localnet().unwrap();
        assert!(matches!(sysctl::tcp_be_liberal(), Ok(Some(false) | None)));
    });
}
