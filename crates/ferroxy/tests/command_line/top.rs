//! `ferroxy top` in a pseudo-terminal (the screen, keys, resizing, restoring the terminal), and in a pipe.

use std::process::Command;

use ferroxy_lab::{Namespace, Protocol};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::terminal::{Terminal, settings};
use crate::support::{self, Agent, Cluster, DEADLINE, FERROXY, Service, ferroxy, run_arguments, wait_until};

fn cluster() -> Cluster {
    let cluster = Cluster::new();
    let web = Service::new("web", &["10.96.0.80"]).port(Protocol::Tcp, 80, 8080);
    cluster.write_service(&web.endpoints(&["a1", "b1"]));
    cluster.write_service(&Service::new("empty", &["10.96.0.10"]).port(Protocol::Tcp, 53, 53));
    cluster
}

fn start(node: &Namespace, cluster: &Cluster) -> Agent {
    let all = run_arguments(&cluster.manifests(), &cluster.config()).into_iter();
    let more = ["--page-address=127.0.0.1".into(), "--traffic-metrics=true".into()];
    Agent::start_with(node, all.chain(more).collect::<Vec<_>>())
}

fn open(node: &Namespace, columns: u16, rows: u16) -> Terminal {
    let mut command = Command::new(FERROXY);
    command.args(["top", "--interval=1"]);
    Terminal::open(command, (columns, rows), |command| node.run(|| command.spawn()).unwrap().unwrap())
}

/// Waits for its end; the terminal must be as it was.
fn ended(mut terminal: Terminal) {
    let status = terminal.wait();
    assert!(status.success(), "{status:?}: {}", terminal.written());
    let now = settings(&terminal.keys);
    let of = |it: &libc::termios| (it.c_iflag, it.c_oflag, it.c_cflag, it.c_lflag);
    assert_eq!(of(&now), of(&terminal.settings));
    wait_until("the screen of before is back", DEADLINE, || {
        terminal.written().ends_with("\x1b[?25h\x1b[?1049l")
    });
}

#[test]
fn the_screen_shows_services_and_takes_keys() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let _agent = start(&node, &cluster);
    let mut terminal = open(&node, 100, 20);
    terminal.wait_for("node ka, nftables mode");
    terminal.wait_for("default/web ");
    terminal.wait_for("default/empty ");
    let raw = settings(&terminal.keys);
    assert_eq!(raw.c_lflag & (libc::ICANON | libc::ECHO), 0, "keys come one by one");
    let place =
        |terminal: &Terminal, name: &str| terminal.screen().iter().position(|line| line.starts_with(name));
    assert!(place(&terminal, "default/empty") < place(&terminal, "default/web "), "problems first");

    terminal.press(b"/we");
    terminal.wait_for("/we_");
    wait_until("the other Service is gone", DEADLINE, || place(&terminal, "default/empty").is_none());
    terminal.press(b"\r\r");
    terminal.wait_for("10.244.1.5:8080");
    terminal.wait_for("yes, on this node");
    terminal.press(b"\x1b");
    terminal.wait_for("SERVICE ");
    terminal.press(b"\x1bn");
    terminal.wait_for("by name");
    terminal.wait_for("default/empty");

    terminal.resize(40, 6);
    wait_until("six lines are drawn again", DEADLINE, || {
        let screen = terminal.screen();
        screen.get(5).is_some_and(|line| line.starts_with("q quit")) && screen[0].chars().count() <= 40
    });
    // Narrow: the state stays, and the words of a problem are wrapped.
    terminal.resize(60, 20);
    let line =
        |terminal: &Terminal, name: &str| terminal.screen().into_iter().find(|it| it.starts_with(name));
    wait_until("the state is on the screen", DEADLINE, || {
        let (title, row) = (line(&terminal, "SERVICE "), line(&terminal, "default/empty "));
        title.is_some_and(|it| it.trim_end().ends_with("STATE"))
            && row.is_some_and(|it| it.contains(" problem: "))
    });
    terminal.press(b"?");
    terminal.wait_for("any key goes back");
    terminal.wait_for("most connections first");
    terminal.press(b" /empty\r\r");
    // The last words of the problem, which one line of 60 columns does not reach.
    terminal.wait_for("in the EndpointSlices are valid.");
    assert!(
        terminal.screen().iter().all(|line| line.trim_end().chars().count() <= 60),
        "{:#?}",
        terminal.screen()
    );
    terminal.press(b"\x1b");
    terminal.wait_for("SERVICE ");
    terminal.press(b"\x1b");
    // A Service that comes while it runs.
    terminal.resize(100, 20);
    cluster.write_service(&Service::new("late", &["10.96.0.11"]).port(Protocol::Tcp, 53, 53));
    terminal.wait_for("default/late");
    terminal.press(b"q");
    ended(terminal);
}

#[test]
fn a_signal_or_ctrl_c_restores_the_terminal() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let agent = start(&node, &cluster);
    let terminal = open(&node, 80, 10);
    terminal.wait_for("default/web");
    kill_process(Pid::from_child(&terminal.child), Signal::TERM).unwrap();
    ended(terminal);
    let mut terminal = open(&node, 80, 10);
    terminal.wait_for("default/web");
    // An agent that ends is an error on the screen, not the end of the program.
    agent.terminate();
    terminal.wait_for("no answer: ");
    terminal.press(b"\x03");
    ended(terminal);
}

#[test]
fn without_a_terminal_there_is_one_table() {
    let Some(node) = support::lonely_node() else { return };
    let nobody = ferroxy(&node, &["top"]);
    assert!(nobody.code == 1 && nobody.stderr.contains("no agent answers at"), "{}", nobody.stderr);
    let cluster = cluster();
    let _agent = start(&node, &cluster);
    let done = ferroxy(&node, &["top", "--interval=1"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(lines[0].starts_with("SERVICE ") && !done.stdout.contains('\x1b'), "{}", done.stdout);
    assert!(lines[1].starts_with("default/empty ") && lines[1].contains(" problem "), "{}", done.stdout);
    let web: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(web, ["default/web", "0", "0", "0", "2/2", "ok"]);
    let value = ferroxy(&node, &["top", "--interval=1", "--output=json"]).json();
    assert_eq!((&value["kind"], &value["counted"]), (&"Top".into(), &true.into()));
    let web = serde_json::json!({
        "service": "default/web", "connectionsPerSecond": 0.0, "bytesPerSecond": 0.0, "replyBytesPerSecond": 0.0,
        "endpoints": { "used": 2, "total": 2 }, "state": "ok", "problem": null,
    });
    assert_eq!(value["items"][1], web, "{value:#}");
    assert_eq!(value["items"][0]["state"], "problem");
    let yaml = ferroxy(&node, &["top", "--interval=1", "--output=yaml"]).stdout;
    assert!(yaml.contains("kind: Top\n"), "{yaml}");
}
