//! A child process of a test, with its output in a file. It ends with the test, even if the test is killed.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::process::{Signal, set_parent_process_death_signal};

use super::lock;
use crate::error::{LabError, Result};

/// How much of the output is shown after a failure.
const LAST_LINES: usize = 20;

#[derive(Debug)]
pub(super) struct Process {
    name: String,
    output: PathBuf,
    child: Arc<Mutex<Child>>,
    /// The process is killed when this is dropped.
    keep: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Process {
    /// In the network namespace of the calling thread.
    pub fn start(program: &Path, arguments: &[String], output: PathBuf) -> Result<Process> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let command = command(program, arguments, &output)?;
        let (started, child) = channel();
        let (keep, kept) = channel();
        let keeper = thread::Builder::new()
            .name(name.clone())
            .spawn(move || keep_running(command, &started, &kept))
            .map_err(|e| LabError::system("start a thread", e))?;
        let child = child.recv().map_err(|_| LabError::Api(format!("{name} has no thread to start it")))?;
        let child = child.map_err(|e| LabError::system(format!("run {}", program.display()), e))?;
        Ok(Process { name, output, child, keep: Some(keep), keeper: Some(keeper) })
    }

    pub fn id(&self) -> u32 {
        lock(&self.child).id()
    }

    /// None while it runs.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        lock(&self.child).try_wait().map_err(|e| LabError::system(format!("look after {}", self.name), e))
    }

    /// An error with the end of its output.
    pub fn failure(&self, what: &str) -> LabError {
        let output = fs::read(&self.output).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let lines: Vec<&str> = output.lines().collect();
        let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default().join("\n");
        LabError::Api(format!("{} {what}. The end of its output:\n{last}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.keep.take());
        if let Some(keeper) = self.keeper.take()
            && keeper.join().is_err()
        {
            eprintln!("the thread that kept {} has panicked", self.name);
        }
    }
}

fn command(program: &Path, arguments: &[String], output: &Path) -> Result<Command> {
    let file = File::create(output).map_err(|e| LabError::file(output, e))?;
    let errors = file.try_clone().map_err(|e| LabError::file(output, e))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(file).stderr(errors);
    // SAFETY: one system call, which is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    Ok(command)
}

/// The parent-death signal is sent when the thread that started the process ends, so this thread lives as long as the
/// process should.
fn keep_running(mut command: Command, started: &Sender<io::Result<Arc<Mutex<Child>>>>, kept: &Receiver<()>) {
    let child = command.spawn().map(|child| Arc::new(Mutex::new(child)));
    let own = child.as_ref().map(Arc::clone).ok();
    if started.send(child).is_err() {
        return;
    }
    let Some(child) = own else { return };
    // Nothing is sent: this waits until the sender is dropped.
    let _dropped = kept.recv();
    let mut child = lock(&child);
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        eprintln!("a process was not ended: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, folder: &Path) -> Result<Process> {
        Process::start(Path::new("/bin/sh"), &["-c".to_owned(), script.to_owned()], folder.join("sh.log"))
    }

    #[test]
    fn a_program_runs_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let process = sh("exec sleep 1000", folder.path()).unwrap();
        let pid = process.id();
        assert_eq!(process.ended().unwrap(), None);
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_failure_shows_the_end_of_the_output() {
        let folder = tempfile::tempdir().unwrap();
        let process = sh("seq 1 100; echo woe >&2; exit 3", folder.path()).unwrap();
        let status = loop {
            if let Some(status) = process.ended().unwrap() {
                break status;
            }
            thread::yield_now();
        };
        assert_eq!(status.code(), Some(3));
        let failure = process.failure("has ended").to_string();
        assert!(failure.starts_with("sh has ended. The end of its output:\n82\n"), "{failure}");
        assert!(failure.ends_with("\n100\nwoe"), "{failure}");
    }

    #[test]
    fn a_program_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            Process::start(Path::new("/no/such/program"), &[], folder.path().join("log")).unwrap_err();
        assert!(error.to_string().starts_with("run /no/such/program: "), "{error}");
    }
}
