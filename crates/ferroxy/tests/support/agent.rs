//! `ferroxy run` as a child process in a namespace, and its log as it grows.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferroxy_lab::Namespace;
use rustix::process::{Pid, Signal, kill_process};

use super::{Cluster, DEADLINE, Done, FERROXY, Iptables, wait_until};

/// Killed when dropped. When a test fails, its log is printed.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    log: Arc<Log>,
    /// Whether the pipe of the log is read.
    is_read: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
    arguments: Vec<OsString>,
    /// The agent's PATH, if it differs from ours.
    path: Option<OsString>,
}

#[derive(Debug, Default)]
struct Log {
    text: Mutex<String>,
    grew: Condvar,
}

impl Agent {
    /// Starts it as node `ka` with a cluster's manifests and configuration, and waits until it is in sync.
    pub fn start(node: &Namespace, cluster: &Cluster) -> Agent {
        Agent::start_with(node, arguments(&cluster.manifests(), &cluster.config()))
    }

    /// Starts it with these arguments after `run`, and waits until it is in sync.
    pub fn start_with<S: Into<OsString>>(node: &Namespace, arguments: impl IntoIterator<Item = S>) -> Agent {
        let agent = Agent::spawn(node, arguments);
        agent.wait_for("in sync");
        agent
    }

    /// The same with these iptables tools.
    pub fn start_using<S: Into<OsString>>(
        node: &Namespace,
        tools: &Iptables,
        arguments: impl IntoIterator<Item = S>,
    ) -> Agent {
        let agent = Agent::spawn_with_path(node, Some(tools.path()), arguments);
        agent.wait_for("in sync");
        agent
    }

    /// Starts it and does not wait.
    pub fn spawn<S: Into<OsString>>(node: &Namespace, arguments: impl IntoIterator<Item = S>) -> Agent {
        Agent::spawn_with_path(node, None, arguments)
    }

    fn spawn_with_path<S: Into<OsString>>(
        node: &Namespace,
        path: Option<OsString>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Agent {
        let mut command = Command::new(FERROXY);
        command.arg("run").envs(path.iter().map(|path| ("PATH", path)));
        let mut agent = Agent::spawn_as(node, command, arguments);
        agent.path = path;
        agent
    }

    /// Starts it by a command that ends in these arguments, and does not wait.
    pub fn spawn_as<S: Into<OsString>>(
        node: &Namespace,
        command: Command,
        arguments: impl IntoIterator<Item = S>,
    ) -> Agent {
        Agent::spawn_prepared(node, command, arguments, || {})
    }

    /// The same, but the thread that spawns it in the namespace first calls `prepare`, for example to give up privileges.
    pub fn spawn_prepared<S: Into<OsString>>(
        node: &Namespace,
        mut command: Command,
        arguments: impl IntoIterator<Item = S>,
        prepare: impl FnOnce() + Send,
    ) -> Agent {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        command.args(&arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let spawn = || {
            prepare();
            command.spawn()
        };
        let mut child = node.run(spawn).unwrap().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Log::default());
        let (writer, is_read) = (Arc::clone(&log), Arc::new(AtomicBool::new(true)));
        let reading = Arc::clone(&is_read);
        let reader = Some(std::thread::spawn(move || {
            for line in stderr.lines() {
                while !reading.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                let mut text = writer.text.lock().unwrap();
                text.push_str(&line.unwrap());
                text.push('\n');
                writer.grew.notify_all();
            }
        }));
        Agent { child, log, is_read, reader, arguments, path: None }
    }

    /// Sets whether the pipe of the log is read. An unread pipe fills up.
    pub fn read_log(&self, read: bool) {
        self.is_read.store(read, Ordering::Relaxed);
    }

    /// How many files, sockets and pipes it has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// The whole log so far.
    pub fn log(&self) -> String {
        self.log.text.lock().unwrap().clone()
    }

    /// How many lines of the log have these words.
    pub fn said(&self, words: &str) -> usize {
        count(&self.log(), words)
    }

    /// How many warnings begin with these words. Warnings about `oomScoreAdj` do not count: the user of the test may lack the permission.
    pub fn warned(&self, words: &str) -> usize {
        let begins = format!("] {words}");
        let log = self.log();
        let warnings = log.lines().filter(|line| line.starts_with('W') && !line.contains("oomScoreAdj"));
        warnings.filter(|line| line.contains(&begins)).count()
    }

    /// Waits until a line of the log has these words.
    pub fn wait_for(&self, words: &str) {
        self.wait_for_more_than(words, 0);
    }

    /// Waits until more than `number` lines of the log have these words. Panics early if the agent has ended.
    pub fn wait_for_more_than(&self, words: &str, number: usize) {
        let end = Instant::now() + DEADLINE;
        let mut text = self.log.text.lock().unwrap();
        let failure = loop {
            // Checked before the text is searched: if the agent has ended, the text is complete.
            let has_ended = self.reader.as_ref().is_none_or(JoinHandle::is_finished);
            let left = end.saturating_duration_since(Instant::now());
            if count(&text, words) > number {
                return;
            }
            if has_ended {
                break "before it ended".to_owned();
            }
            if left.is_zero() {
                break format!("within {DEADLINE:?}");
            }
            text = self.log.grew.wait_timeout(text, left.min(Duration::from_secs(1))).unwrap().0;
        };
        // Unlock the log before the panic, because dropping the agent prints it.
        let log = text.clone();
        drop(text);
        panic!("no line {} with {words:?} {failure}; the log:\n{log}", number + 1);
    }

    /// Waits until the kernel has what the source says now. Unused objects may remain, because tidying removes them later.
    pub fn settle(&self, node: &Namespace) {
        wait_until("`ferroxy diff` finds nothing", DEADLINE, || {
            self.differences(node).iter().all(|it| is_tidying(it))
        });
    }

    /// The operations `ferroxy diff` prints.
    pub fn differences(&self, node: &Namespace) -> Vec<String> {
        let mut arguments: Vec<OsString> = vec!["diff".into(), "--output=json".into()];
        arguments.extend(self.arguments.iter().cloned());
        let path = self.path.iter().map(|path| ("PATH", path));
        let mut command = Command::new(FERROXY);
        command.args(&arguments).envs(path).stdin(Stdio::null());
        let done = Done::of(node.run(|| command.output()).unwrap().unwrap());
        assert!(matches!(done.code, 0 | 2), "{done:?}");
        serde_json::from_value(done.json()["operations"].clone()).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// KiB of memory it has.
    pub fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end. Returns its exit status and log.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let mut ended = None;
        let child = &mut self.child;
        wait_until("the agent has ended", DEADLINE, || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        // The last lines may still be in the pipe.
        self.reader.take().unwrap().join().unwrap();
        (ended.unwrap(), self.log())
    }

    /// SIGTERM; it must end well. Returns the log.
    pub fn terminate(self) -> String {
        self.signal(Signal::TERM);
        let (status, log) = self.wait();
        assert!(status.success(), "{status}; the log:\n{log}");
        log
    }

    /// SIGKILL, whatever it is doing. Returns the log.
    pub fn kill(self) -> String {
        self.signal(Signal::KILL);
        self.wait().1
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // An error says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
    }
}

/// As node `ka`, with these manifests and this configuration file: for `run` and for the read-only commands.
pub fn arguments(manifests: &Path, config: &Path) -> [OsString; 6] {
    [
        "--manifests".into(),
        manifests.into(),
        "--config".into(),
        config.into(),
        "--hostname-override".into(),
        "ka".into(),
    ]
}

/// Unreferenced chains, and the numbers that stood for them.
fn is_tidying(operation: &str) -> bool {
    let chain = operation.starts_with("flush chain") || operation.starts_with("delete chain");
    chain || operation.starts_with("delete element") && operation.contains("treatments {")
}

fn count(text: &str, words: &str) -> usize {
    text.lines().filter(|line| line.contains(words)).count()
}
