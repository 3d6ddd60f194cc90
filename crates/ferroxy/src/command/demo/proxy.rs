//! The real agent on a node of the demo: this very program as a child process in the node's namespace.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ferroxy_lab::{LabError, Namespace, Network};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use super::network::{CLUSTER_CIDR, Node};

/// The child process ends when this value is dropped, and when our process ends, even if that is killed.
#[derive(Debug)]
pub struct Proxy {
    node: &'static str,
    child: Child,
    lines: Receiver<String>,
    /// The log lines so far.
    said: Vec<String>,
    reader: Option<JoinHandle<Result<(), LabError>>>,
}

/// How long the first sync may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// The flags of every node's proxy. It leaves the host's kernel settings alone.
pub fn flags(node: &Node) -> Vec<String> {
    vec![
        "--proxy-mode=nftables".into(),
        format!("--hostname-override={}", node.name),
        format!("--cluster-cidr={CLUSTER_CIDR}"),
        "--conntrack-max-per-core=0".into(),
        "--conntrack-min=0".into(),
        "--oom-score-adj=0".into(),
    ]
}

impl Proxy {
    pub fn start(network: &Network, node: &'static Node, manifests: &Path) -> anyhow::Result<Proxy> {
        // Not the path of this program: the folder that we mounted over may hide it.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ferroxy").arg("run").arg("--manifests").arg(manifests).args(flags(node));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        end_with_parent(&mut command);
        let (child, lines, reader) = spawn(network.namespace(node.name)?, command)
            .with_context(|| format!("cannot start the proxy of {}", node.name))?;
        Ok(Proxy { node: node.name, child, lines, said: Vec::new(), reader: Some(reader) })
    }

    /// Waits for the first sync; returns its log line.
    pub fn wait_until_in_sync(&mut self) -> anyhow::Result<String> {
        const IN_SYNC: &str = "in sync";
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let message = line.find(IN_SYNC).map(|at| line[at..].to_owned());
                    self.said.push(line);
                    if let Some(message) = message {
                        return Ok(message);
                    }
                }
                Err(_) => bail!("the proxy of {} did not come into sync", self.node),
            }
        }
    }

    /// All log lines so far, for errors.
    pub fn said(&mut self) -> String {
        self.said.extend(self.lines.try_iter());
        self.said.iter().map(|line| format!("  {}: {line}\n", self.node)).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // `kill` fails only if the child has ended already; then `wait` does not block either.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

type Spawned = (Child, Receiver<String>, JoinHandle<Result<(), LabError>>);

/// The child's parent is a thread that lives as long as the child does: the kernel sends the parent-death signal
/// when the thread that created the child ends, not when the process does.
fn spawn(namespace: &Namespace, mut command: Command) -> anyhow::Result<Spawned> {
    let (started, start) = channel();
    let (say, lines) = channel();
    let reader = namespace.spawn(move || {
        let mut child = command.spawn();
        let stderr = child.as_mut().ok().and_then(|child| child.stderr.take());
        // The other side waits for it below.
        let _ = started.send(child);
        if let Some(stderr) = stderr {
            pass_on(BufReader::new(stderr), &say);
        }
    })?;
    let child = start.recv().context("its thread ended early")??;
    Ok((child, lines, reader))
}

/// Reads to the end even without a receiver: a full pipe would block the child.
fn pass_on(mut from: impl BufRead, say: &Sender<String>) {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        let _ = say.send(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}

fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before the call above.
        if getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: between fork and exec this makes two system calls and allocates nothing.
    unsafe { command.pre_exec(ask) };
}
