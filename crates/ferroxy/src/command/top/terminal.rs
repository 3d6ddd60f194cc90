//! The terminal of this process: its size, keys one by one, and its settings, which are restored at the end.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Raw mode: no echo, no line buffering, no signals from keys. Dropping it restores the settings.
#[derive(Debug)]
pub struct Terminal {
    keys: File,
    screen: File,
    before: Termios,
}

impl Terminal {
    /// An error if standard input or standard output is no terminal.
    pub fn open() -> io::Result<Terminal> {
        let keys = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let screen = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        tcgetwinsize(&screen)?;
        let before = tcgetattr(&keys)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&keys, OptionalActions::Now, &raw)?;
        Ok(Terminal { keys, screen, before })
    }

    /// Columns and rows.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        let size = tcgetwinsize(&self.screen)?;
        Ok((size.ws_col, size.ws_row))
    }

    /// The bytes of keys that were pressed; none if no key is pressed within `wait`. An error if the terminal is gone.
    pub fn keys(&self, wait: Duration) -> io::Result<Vec<u8>> {
        let wait = Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.keys, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = vec![0; 256];
        let length = read(&self.keys, &mut bytes[..])?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.screen).write_all(bytes)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone has no settings to restore.
        let _ = tcsetattr(&self.keys, OptionalActions::Now, &self.before);
    }
}
