//! Runs one program: writes its input, passes on its output, and kills it when it hangs, uses too much CPU time or prints too
//! much. No shell, no temporary file, no threads. Knows nothing about iptables; what "hangs" means is in `progress`.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use super::progress::{Overrun, Progress};
use super::{Attendant, Error, usage};

/// Bytes per read and write: what a pipe holds.
const CHUNK: usize = 64 * 1024;
/// How often the program is sampled, and the attendant called, while it is silent.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// How much of standard error is kept. The first messages matter.
const COMPLAINTS: usize = 16 * 1024;

pub(super) struct Program<'a> {
    pub path: &'a Path,
    pub arguments: &'a [&'a str],
    /// Killed after this much CPU time, or after this long without progress. Not a limit of wall-clock time: on a loaded node
    /// a tool may wait longer than this for a processor.
    pub limit: Duration,
    /// Bytes of output.
    pub output: usize,
}

#[derive(Debug)]
pub(super) struct Ended {
    /// The exit status; a signal's number plus 128, as shells have it.
    pub status: i32,
    pub said: String,
    pub took: Duration,
    pub pid: u32,
}

/// Takes the program's output in pieces of any size. Returns `Break` when it has seen enough: the program is then ended.
pub(super) type Reader<'r> = dyn FnMut(&[u8]) -> ControlFlow<()> + 'r;

impl Program<'_> {
    /// `input` is written line by line, each followed by a newline.
    pub fn run(&self, input: &mut dyn Iterator<Item = &str>, read: &mut Reader<'_>) -> Result<Ended, Error> {
        self.run_attended(input, read, &())
    }

    /// The same with an attendant.
    pub fn run_attended(
        &self,
        input: &mut dyn Iterator<Item = &str>,
        read: &mut Reader<'_>,
        attendant: &dyn Attendant,
    ) -> Result<Ended, Error> {
        let started = Instant::now();
        let mut running = Running::start(self).map_err(|source| self.failed(source))?;
        attendant.started(running.child.id());
        let outcome = running.follow(self, input, read, attendant);
        let stopped_early = !matches!(outcome, Ok(Stop::Ended));
        if stopped_early {
            running.kill();
        }
        // Cannot hang: it has ended, or was killed.
        let status = running.child.wait().map_err(|source| self.failed(source))?;
        match outcome.map_err(|source| self.failed(source))? {
            Stop::Ended => Ok(running.ended(code(status), started.elapsed())),
            Stop::EnoughSeen => Ok(running.ended(0, started.elapsed())),
            Stop::Overrun(overrun) => Err(Error::TimedOut { tool: self.name(), limit: self.limit, overrun }),
            Stop::TooMuch => Err(Error::TooMuchOutput { tool: self.name(), limit: self.output }),
        }
    }

    pub fn name(&self) -> String {
        self.path.file_name().map_or_else(|| self.path.display().to_string(), lossy)
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Run { tool: self.name(), source }
    }
}

enum Stop {
    Ended,
    EnoughSeen,
    Overrun(Overrun),
    TooMuch,
}

struct Running {
    child: Child,
    /// Each is dropped, and so closed, when there is no more to write or to read.
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    complaints: Vec<u8>,
}

impl Running {
    fn start(program: &Program<'_>) -> io::Result<Running> {
        let mut child = Command::new(program.path)
            .args(program.arguments)
            // We parse the messages, so they must not be in the user's language.
            .env("LANG", "C")
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that what a wrapper script starts is killed with it.
            .process_group(0)
            .spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut running = Running { child, stdin, stdout, stderr, complaints: Vec::new() };
        if let Err(error) = running.never_block() {
            running.kill();
            running.child.wait()?;
            return Err(error);
        }
        Ok(running)
    }

    fn never_block(&self) -> io::Result<()> {
        for fd in self.fds().into_iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(())
    }

    fn fds(&self) -> [Option<BorrowedFd<'_>>; 3] {
        [
            self.stdin.as_ref().map(AsFd::as_fd),
            self.stdout.as_ref().map(AsFd::as_fd),
            self.stderr.as_ref().map(AsFd::as_fd),
        ]
    }

    /// Writes and reads as the program is ready for it: it can neither block us nor be blocked by us.
    fn follow(
        &mut self,
        program: &Program<'_>,
        input: &mut dyn Iterator<Item = &str>,
        read: &mut Reader<'_>,
        attendant: &dyn Attendant,
    ) -> io::Result<Stop> {
        let mut progress = Progress::new(program.limit);
        let mut feed = Feed { lines: input, buffer: Vec::with_capacity(CHUNK), written: 0 };
        let mut buffer = vec![0; CHUNK];
        let mut printed = 0;
        while self.stdout.is_some() || self.stderr.is_some() {
            if let Some(overrun) = self.wait_until_ready(&mut progress, attendant)? {
                return Ok(Stop::Overrun(overrun));
            }
            feed.write(&mut self.stdin)?;
            let count = read_some(&mut self.stdout, &mut buffer)?;
            printed += count;
            if printed > program.output {
                return Ok(Stop::TooMuch);
            }
            if read(&buffer[..count]).is_break() {
                return Ok(Stop::EnoughSeen);
            }
            let count = read_some(&mut self.stderr, &mut buffer)?;
            let room = COMPLAINTS - self.complaints.len();
            self.complaints.extend_from_slice(&buffer[..count.min(room)]);
        }
        self.wait_for_exit(&mut progress, attendant)
    }

    /// None when a pipe is ready.
    fn wait_until_ready(
        &self,
        progress: &mut Progress,
        attendant: &dyn Attendant,
    ) -> io::Result<Option<Overrun>> {
        let wanted = [PollFlags::OUT, PollFlags::IN, PollFlags::IN];
        let open = self.fds().into_iter().zip(wanted).filter_map(|(fd, flags)| fd.map(|fd| (fd, flags)));
        let mut open: Vec<PollFd<'_>> = open.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        let step = self.step(progress);
        let timeout = Timespec::try_from(step).ok();
        loop {
            attendant.waiting();
            match poll(&mut open, timeout.as_ref()) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(0) => {
                    if let Some(overrun) = progress.silent(step, self.usage()) {
                        return Ok(Some(overrun));
                    }
                }
                Ok(_) => {
                    progress.moved();
                    return Ok(None);
                }
            }
        }
    }

    /// The program has closed its output and is about to end: there is no file descriptor left to wait on.
    fn wait_for_exit(&mut self, progress: &mut Progress, attendant: &dyn Attendant) -> io::Result<Stop> {
        let step = self.step(progress);
        let mut sampled = Instant::now();
        while self.child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(1));
            if sampled.elapsed() < step {
                continue;
            }
            sampled = Instant::now();
            attendant.waiting();
            if let Some(overrun) = progress.silent(step, self.usage()) {
                return Ok(Stop::Overrun(overrun));
            }
        }
        Ok(Stop::Ended)
    }

    /// The CPU use of the program and everything it started. `None` if the kernel does not say: then only data in the pipes
    /// counts as progress.
    fn usage(&self) -> Option<usage::Usage> {
        usage::of_group(self.child.id())
    }

    fn step(&self, progress: &Progress) -> Duration {
        progress.limit().min(SAMPLE_EVERY)
    }

    fn kill(&mut self) {
        // The ID of the group is that of the child, which is not reused before we have waited for the child. The call fails
        // only if the whole group has ended already.
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn ended(&self, status: i32, took: Duration) -> Ended {
        let said = String::from_utf8_lossy(&self.complaints).into_owned();
        Ended { status, said, took, pid: self.child.id() }
    }
}

/// The input that is still to be written: one buffer's worth of lines is put together at a time.
struct Feed<'f, 'l> {
    lines: &'f mut dyn Iterator<Item = &'l str>,
    buffer: Vec<u8>,
    written: usize,
}

impl Feed<'_, '_> {
    /// Writes as much as fits; closes the pipe at the end of the input, or when the program does not read it.
    fn write(&mut self, pipe: &mut Option<ChildStdin>) -> io::Result<()> {
        while let Some(stdin) = pipe {
            if self.written == self.buffer.len() && !self.refill() {
                *pipe = None;
                return Ok(());
            }
            match stdin.write(&self.buffer[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The program ended before it read everything: its messages say why.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => *pipe = None,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn refill(&mut self) -> bool {
        self.buffer.clear();
        self.written = 0;
        while self.buffer.len() < CHUNK
            && let Some(line) = self.lines.next()
        {
            self.buffer.extend_from_slice(line.as_bytes());
            self.buffer.push(b'\n');
        }
        !self.buffer.is_empty()
    }
}

/// Reads the available bytes; closes the pipe at its end.
fn read_some(pipe: &mut Option<impl Read>, buffer: &mut [u8]) -> io::Result<usize> {
    let Some(open) = pipe else { return Ok(0) };
    match open.read(buffer) {
        Ok(0) => {
            *pipe = None;
            Ok(0)
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

fn lossy(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell<'a>(arguments: &'a [&'a str]) -> Program<'a> {
        Program { path: Path::new("/bin/sh"), arguments, limit: Duration::from_secs(60), output: usize::MAX }
    }

    fn run(program: &Program<'_>, input: &[&str]) -> (Result<Ended, Error>, Vec<u8>) {
        let mut output = Vec::new();
        let ended = program.run(&mut input.iter().copied(), &mut |bytes| {
            output.extend_from_slice(bytes);
            ControlFlow::Continue(())
        });
        (ended, output)
    }

    #[test]
    fn input_larger_than_any_pipe_comes_back_whole() {
        let line = "x".repeat(999);
        let input = vec![line.as_str(); 5000];
        let (ended, output) = run(&shell(&["-c", "cat"]), &input);
        assert_eq!(ended.unwrap().status, 0);
        assert_eq!(output.len(), 5_000_000);
        assert!(output.chunks(1000).all(|chunk| chunk[..999] == *line.as_bytes() && chunk[999] == b'\n'));
    }

    #[test]
    fn a_program_that_does_not_read_is_no_trouble() {
        let line = "x".repeat(999);
        let (ended, _) = run(&shell(&["-c", "echo no >&2; exit 7"]), &vec![line.as_str(); 5000]);
        let ended = ended.unwrap();
        assert_eq!((ended.status, ended.said.as_str()), (7, "no\n"));
    }

    #[test]
    fn a_hung_program_is_killed_with_all_it_started() {
        let program =
            Program { limit: Duration::from_millis(300), ..shell(&["-c", "sleep 1000 | sleep 1000"]) };
        let (ended, _) = run(&program, &[]);
        assert!(matches!(ended, Err(Error::TimedOut { overrun: Overrun::NoProgress, .. })), "{ended:?}");
    }

    #[test]
    fn a_program_that_closes_its_output_and_hangs_is_killed() {
        let arguments = ["-c", "exec >&- 2>&-; exec sleep 1000"];
        let program = Program { limit: Duration::from_millis(300), ..shell(&arguments) };
        let (ended, _) = run(&program, &[]);
        assert!(matches!(ended, Err(Error::TimedOut { overrun: Overrun::NoProgress, .. })), "{ended:?}");
    }

    /// Eight rounds of half a second take longer than the limit, but no round goes by without some work.
    #[test]
    fn a_slow_program_that_makes_progress_may_take_longer_than_the_limit() {
        let work = "n=0; while [ $n -lt 40000 ]; do n=$((n + 1)); done";
        let rounds = format!("for round in 1 2 3 4 5 6 7 8; do sleep 0.5; {work}; done; exit 5");
        let arguments = ["-c", rounds.as_str()];
        let program = Program { limit: Duration::from_secs(3), ..shell(&arguments) };
        let (ended, _) = run(&program, &[]);
        let ended = ended.unwrap();
        assert_eq!(ended.status, 5);
        assert!(ended.took > program.limit, "took {:?}: shows nothing", ended.took);
    }

    /// The CPU time of a child process counts, and so does that of one that has ended.
    #[test]
    fn an_endless_loop_is_killed_when_its_cpu_time_is_used_up() {
        for script in ["while :; do :; done", "(while :; do :; done); exit 1", "while :; do /bin/true; done"]
        {
            let arguments = ["-c", script];
            let program = Program { limit: Duration::from_millis(500), ..shell(&arguments) };
            let (ended, _) = run(&program, &[]);
            assert!(matches!(ended, Err(Error::TimedOut { overrun: Overrun::CpuTime, .. })), "{ended:?}");
        }
    }

    #[test]
    fn endless_output_is_cut_off() {
        let program = Program { output: 1_000_000, ..shell(&["-c", "while :; do echo 0123456789; done"]) };
        let (ended, output) = run(&program, &[]);
        assert!(matches!(ended, Err(Error::TooMuchOutput { limit: 1_000_000, .. })), "{ended:?}");
        assert!(output.len() <= 1_000_000);
    }

    #[test]
    fn complaints_are_bounded_and_do_not_block() {
        let (ended, _) = run(&shell(&["-c", "head -c 1000000 /dev/zero >&2"]), &[]);
        assert_eq!(ended.unwrap().said.len(), COMPLAINTS);
    }

    #[test]
    fn who_has_seen_enough_stops_it() {
        let program = shell(&["-c", "echo first; exec sleep 1000"]);
        let ended = program.run(&mut std::iter::empty(), &mut |bytes| {
            if bytes.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert_eq!(ended.unwrap().status, 0);
    }

    #[test]
    fn a_missing_program_is_named() {
        let program = Program { path: Path::new("/no/such/iptables-save"), ..shell(&[]) };
        let error = run(&program, &[]).0.unwrap_err().to_string();
        assert_eq!(error, "cannot run iptables-save: No such file or directory (os error 2)");
    }

    #[test]
    fn the_language_is_fixed() {
        let (_, output) = run(&shell(&["-c", "echo $LANG $LC_ALL"]), &[]);
        assert_eq!(output, b"C C\n");
    }
}
