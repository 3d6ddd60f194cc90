//! Progress: on a terminal, a line says what a command waits for, and disappears when it is done. A pipe gets no such line. A fake
//! agent answers when the test releases the answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::FERROXY;
use crate::support::terminal::Terminal;

/// Removes a line.
const REMOVED: &str = "\r\x1b[K";

/// Starts a fake agent. It holds back each answer to a path that contains `waits` until the test releases it.
fn agent(waits: &'static str) -> (SocketAddr, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (release, released) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let path = path(&mut stream);
            if path.contains(waits) && released.recv().is_err() {
                return;
            }
            let body = answer(&path);
            // The client may be gone.
            let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}");
        }
    });
    (address, release)
}

fn path(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        request.extend(byte);
    }
    let request = String::from_utf8(request).unwrap();
    request.split(' ').nth(1).unwrap().to_owned()
}

/// Two parts of a list of objects; otherwise a status.
fn answer(path: &str) -> Value {
    match path {
        "/api/v1/objects?limit=1000" => json!({ "items": [{ "kind": "Node" }], "next": "default/a" }),
        it if it.starts_with("/api/v1/objects") => json!({ "items": [], "next": null }),
        _ => json!({ "kind": "Status", "node": "ka", "configuration": {}, "items": [] }),
    }
}

fn command(arguments: &[&str], agent: SocketAddr) -> Command {
    let mut command = Command::new(FERROXY);
    command.args(arguments).arg(format!("--agent={agent}"));
    command
}

fn at_terminal(command: Command) -> Terminal {
    Terminal::open(command, (80, 24), |command| command.spawn().unwrap())
}

#[test]
fn a_line_says_what_is_waited_for_and_goes() {
    let (address, release) = agent("/status");
    let mut terminal = at_terminal(command(&["status"], address));
    terminal.wait_for_written("\r\x1b[Kasking the agent: ");
    release.send(()).unwrap();
    let status = terminal.wait();
    assert!(status.success(), "{status:?}");
    terminal.wait_for_written("node");
    let written = terminal.written();
    let (waiting, answer) = written.rsplit_once(REMOVED).unwrap();
    assert!(waiting.contains("asking the agent: ") && !waiting.contains("node"), "{written:?}");
    assert!(answer.contains("ka, ") && !answer.contains("asking"), "{written:?}");
}

#[test]
fn record_says_its_steps_in_one_line() {
    let (address, release) = agent("/objects");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.json");
    let mut terminal = at_terminal(command(&["record", "--file", file.to_str().unwrap()], address));
    terminal.wait_for_written("\r\x1b[Kreading objects (0 so far): ");
    release.send(()).unwrap();
    terminal.wait_for_written("\r\x1b[Kreading objects (1 so far): ");
    release.send(()).unwrap();
    let status = terminal.wait();
    assert!(status.success(), "{}", terminal.written());
    terminal.wait_for_written("ferroxy: wrote ");
    let written = terminal.written();
    assert_eq!(written.lines().count(), 1, "{written:?}");
    let (_, last) = written.rsplit_once(REMOVED).unwrap();
    assert!(last.starts_with("ferroxy: wrote "), "{written:?}");
    let bundle: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(bundle["objects"], json!([{ "kind": "Node" }]));
}

/// The agent takes so long that a terminal would show the line.
#[test]
fn a_pipe_has_no_such_line() {
    let (address, release) = agent("/status");
    let mut command = command(&["status"], address);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    release.send(()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    assert!(output.stdout.starts_with(b"node ka, "), "{output:?}");
}

/// SIGINT, as Ctrl-C sends it, ends the program. No file is left.
#[test]
fn an_interrupted_record_leaves_no_file() {
    let (address, _release) = agent("/objects");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.json");
    let mut terminal = at_terminal(command(&["record", "--file", file.to_str().unwrap()], address));
    terminal.wait_for_written("reading objects");
    kill_process(Pid::from_child(&terminal.child), Signal::INT).unwrap();
    assert!(!terminal.wait().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
