//! A proxy as a child process in a node's namespace, and the resources that it uses according to the system. Works with
//! any binary that takes kube-proxy's flags and ends on SIGTERM.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ferroxy_lab::Namespace;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Result;

/// Killed when dropped, and when the harness ends for any reason.
pub struct Proxy {
    child: Child,
    started: Instant,
    log: PathBuf,
    children: Children,
}

/// The memory of one process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    pub resident: u64,
    pub peak: u64,
}

/// How long the proxy may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much of its log a failure shows.
const LAST_LINES: usize = 5;

impl Proxy {
    pub fn start(program: &Path, arguments: &[String], node: &Namespace, log: PathBuf) -> Result<Proxy> {
        let output = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let namespace = node.as_fd().try_clone_to_owned()?;
        // SAFETY: two system calls, which are allowed between fork and exec.
        unsafe {
            command.pre_exec(move || {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
            });
        }
        let child = command.spawn().map_err(|e| format!("run {}: {e}", program.display()))?;
        // `spawn` returns at exec. A time from before `spawn` would include the fork of this large process.
        let started = Instant::now();
        let children = Children::watch(child.id());
        Ok(Proxy { child, started, log, children })
    }

    /// When it was executed.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns an error with the end of its log if it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("it has ended ({status}). {}", self.last_lines()).into()),
        }
    }

    /// The CPU time of the proxy and of its children, for example `nft`, to a hundredth of a second.
    pub fn cpu(&self) -> Result<Duration> {
        // The third and the fourth number contain the children that have ended and that the proxy has waited for.
        let own: u64 = read_ticks(self.child.id()).ok_or("no times in /proc/PID/stat")?.iter().sum();
        let running = children(self.child.id()).into_iter().filter_map(read_ticks);
        Ok(ticks(own + running.flatten().sum::<u64>()))
    }

    /// How long its threads were ready to run but other threads ran. On a busy machine, measured times are too long by this.
    pub fn waited(&self) -> Result<Duration> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id()))?;
        // Nanoseconds on a processor, nanoseconds waiting for one, turns. A thread that has just ended has no file.
        let waited = threads.filter_map(|thread| {
            let schedstat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            schedstat.split_whitespace().nth(1)?.parse::<u64>().ok()
        });
        Ok(Duration::from_nanos(waited.sum()))
    }

    pub fn memory(&self) -> Result<Memory> {
        memory_of(self.child.id())
    }

    /// The peak memory of all its children together. They are sampled every few milliseconds, so a child that lives for
    /// less may not count.
    pub fn peak_of_children(&self) -> u64 {
        self.children.peak.load(Ordering::Relaxed)
    }

    /// Returns when it has been idle for a while: less than a twentieth of a core, children included.
    pub fn settle(&mut self, patience: Duration) -> Result<()> {
        const WINDOW: Duration = Duration::from_secs(2);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            let before = self.cpu()?;
            thread::sleep(WINDOW);
            self.check()?;
            if self.cpu()?.saturating_sub(before) < WINDOW / 20 {
                return Ok(());
            }
        }
        Err(format!("it was never idle within {patience:?}").into())
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Err(format!("it has not ended on SIGTERM. {}", self.last_lines()).into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn last_lines(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
        format!("The end of its log: {}", last.join(" | "))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // An error says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A thread that samples the memory of a process's children.
struct Children {
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Children {
    const INTERVAL: Duration = Duration::from_millis(20);

    fn watch(parent: u32) -> Children {
        let (peak, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (its_peak, its_stop) = (Arc::clone(&peak), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !its_stop.load(Ordering::Relaxed) {
                its_peak.fetch_max(memory_of_children(parent), Ordering::Relaxed);
                thread::sleep(Children::INTERVAL);
            }
        });
        Children { peak, stop, thread: Some(thread) }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("bench-agent: the thread that watches children has panicked");
        }
    }
}

fn memory_of_children(parent: u32) -> u64 {
    let resident = |child| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).ok()?;
        read_kilobytes(&status, "VmRSS:")
    };
    children(parent).into_iter().filter_map(resident).sum::<u64>() * 1024
}

/// The children that run another program. Processes that end meanwhile are skipped.
fn children(parent: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let pids: Vec<u32> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    // Between fork and exec, a child shares its parent's memory and still has its program.
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    pids.into_iter().filter(|pid| program(*pid) != program(parent)).collect()
}

pub fn memory_of(pid: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name| read_kilobytes(&status, name).ok_or_else(|| format!("no {name} in /proc/PID/status"));
    Ok(Memory { resident: field("VmRSS:")? * 1024, peak: field("VmHWM:")? * 1024 })
}

/// The CPU time of a process without its children, to a hundredth of a second.
pub fn cpu_of(pid: u32) -> Result<Duration> {
    let [user, system, ..] = read_ticks(pid).ok_or("no times in /proc/PID/stat")?;
    Ok(ticks(user + system))
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The ticks of the process in user mode and in the kernel, and the same two numbers for its children that have ended.
fn read_ticks(pid: u32) -> Option<[u64; 4]> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The 12th to the 15th after the name in parentheses, which may have spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse().ok();
    Some([next()?, next()?, next()?, next()?])
}

fn read_kilobytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}
