//! A pseudo-terminal: a program at one end, a test at the other. It shows the output of the program and presses keys.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{DEADLINE, wait_until};

pub struct Terminal {
    pub child: Child,
    pub keys: File,
    /// The settings of the terminal before the program was started.
    pub settings: libc::termios,
    /// Everything that the program wrote.
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// `spawn`: where the program is started.
    pub fn open(
        mut command: Command,
        (columns, rows): (u16, u16),
        spawn: impl FnOnce(&mut Command) -> Child,
    ) -> Terminal {
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
        command.stdin(stream()).stdout(stream()).stderr(stream());
        let child = spawn(&mut command);
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

    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until the output contains these words.
    #[track_caller]
    pub fn wait_for_written(&self, words: &str) {
        let start = Instant::now();
        while !self.written().contains(words) {
            assert!(start.elapsed() < DEADLINE, "{words:?} in {:?}", self.written());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// The lines on the screen, from the cursor positions that were written.
    pub fn screen(&self) -> Vec<String> {
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
    pub fn wait_for(&self, words: &str) {
        let start = Instant::now();
        while !self.screen().iter().any(|line| line.contains(words)) {
            assert!(start.elapsed() < DEADLINE, "{words:?} in {:#?}", self.screen());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    pub fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open, and the kernel only reads the size.
        assert_eq!(unsafe { libc::ioctl(self.keys.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    /// Waits for the end of the program.
    pub fn wait(&mut self) -> ExitStatus {
        let (child, mut status) = (&mut self.child, None);
        wait_until("the program has ended", DEADLINE, || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

pub fn settings(terminal: &File) -> libc::termios {
    // SAFETY: a termios of zeros is a value, and tcgetattr writes it.
    unsafe {
        let mut settings: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut settings), 0);
        settings
    }
}
