//! `ferroxy top` in a pseudo-terminal: what the screen shows, keys, another size, and the terminal as it was before; and in a pipe.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferroxy_lab::{Namespace, Protocol};
use rustix::process::{Pid, Signal, kill_process};

use support::{Agent, Cluster, DEADLINE, FERROXY, Service, ferroxy, run_arguments, wait_until};

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

/// The program at one end, this test at the other.
struct Terminal {
    child: Child,
    keys: File,
    settings: libc::termios,
    /// Everything that the program wrote.
    written: Arc<Mutex<Vec<u8>>>,
}

fn open(node: &Namespace, columns: u16, rows: u16) -> Terminal {
    let (mut ours, mut its) = (-1, -1);
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both descriptors are written by openpty before they are used, and are owned by no one else.
    let (ours, its) = unsafe {
        let made = libc::openpty(&mut ours, &mut its, std::ptr::null_mut(), std::ptr::null(), &size);
        assert_eq!(made, 0);
        (File::from_raw_fd(ours), OwnedFd::from_raw_fd(its))
    };
    let settings = settings(&ours);
    let stream = || its.try_clone().unwrap();
    let mut command = Command::new(FERROXY);
    command.args(["top", "--interval=1"]).stdin(stream()).stdout(stream()).stderr(stream());
    let child = node.run(|| command.spawn()).unwrap().unwrap();
    let written = Arc::new(Mutex::new(Vec::new()));
    let (writer, mut reader) = (Arc::clone(&written), ours.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        // The end of the program is an error of its terminal.
        while let Ok(length) = reader.read(&mut bytes) {
            writer.lock().unwrap().extend(&bytes[..length]);
        }
    });
    Terminal { child, keys: ours, settings, written }
}

fn settings(terminal: &File) -> libc::termios {
    // SAFETY: a termios of zeros is a value, and tcgetattr writes it.
    unsafe {
        let mut settings: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut settings), 0);
        settings
    }
}

impl Terminal {
    fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// The lines on the screen, from the cursor positions that were written.
    fn screen(&self) -> Vec<String> {
        let written = self.written();
        let mut lines = Vec::new();
        let last = written.rsplit("\x1b[2J").next().unwrap_or_default().to_owned();
        for part in last.split("\x1b[").filter(|part| !part.is_empty()) {
            let end = part.find(|it: char| it.is_ascii_alphabetic()).unwrap_or(0);
            let (code, text) = part.split_at(end);
            match text.chars().next() {
                Some('H') => {
                    lines.push((code.split(';').next().unwrap().parse::<usize>().unwrap(), String::new()))
                }
                Some('m') => {
                    lines.iter_mut().last().unwrap_or(&mut (0, String::new())).1.push_str(&text[1..])
                }
                _ => {}
            }
        }
        let mut screen = Vec::new();
        for (row, text) in lines {
            screen.resize(screen.len().max(row), String::new());
            screen[row - 1] = text;
        }
        screen
    }

    #[track_caller]
    fn wait_for(&self, words: &str) {
        let start = Instant::now();
        while !self.screen().iter().any(|line| line.contains(words)) {
            assert!(start.elapsed() < DEADLINE, "{words:?} in {:#?}", self.screen());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open, and the kernel only reads the size.
        assert_eq!(unsafe { libc::ioctl(self.keys.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    /// Waits for its end; the terminal must be as it was.
    fn ended(mut self) {
        let child = &mut self.child;
        let mut status = None;
        wait_until("top has ended", DEADLINE, || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}: {}", self.written());
        let now = settings(&self.keys);
        let of = |it: &libc::termios| (it.c_iflag, it.c_oflag, it.c_cflag, it.c_lflag);
        assert_eq!(of(&now), of(&self.settings));
        wait_until("the screen of before is back", DEADLINE, || {
            self.written().ends_with("\x1b[?25h\x1b[?1049l")
        });
    }
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
    // A Service that comes while it runs.
    terminal.resize(100, 20);
    cluster.write_service(&Service::new("late", &["10.96.0.11"]).port(Protocol::Tcp, 53, 53));
    terminal.wait_for("default/late");
    terminal.press(b"q");
    terminal.ended();
}

#[test]
fn a_signal_or_ctrl_c_restores_the_terminal() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    let agent = start(&node, &cluster);
    let terminal = open(&node, 80, 10);
    terminal.wait_for("default/web");
    kill_process(Pid::from_child(&terminal.child), Signal::TERM).unwrap();
    terminal.ended();
    let mut terminal = open(&node, 80, 10);
    terminal.wait_for("default/web");
    // An agent that ends is an error on the screen, not the end of the program.
    agent.terminate();
    terminal.wait_for("no answer: ");
    terminal.press(b"\x03");
    terminal.ended();
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
}
