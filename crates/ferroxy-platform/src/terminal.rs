//! The terminal of this process, for programs that draw: its size, keys one by one, and its settings, which come back in the end.

use std::io;
use std::time::Duration;

use crate::system;

/// Keys are not echoed and not waited for line by line, and none of them is a signal. Dropping it restores the settings.
#[derive(Debug)]
pub struct Terminal(system::terminal::Terminal);

impl Terminal {
    /// An error if standard input or standard output is no terminal.
    pub fn open() -> io::Result<Terminal> {
        system::terminal::Terminal::open().map(Terminal)
    }

    /// Columns and rows.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        self.0.size()
    }

    /// The bytes of keys that were pressed, none after waiting for so long. An error if the terminal is gone.
    pub fn keys(&self, wait: Duration) -> io::Result<Vec<u8>> {
        self.0.keys(wait)
    }

    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.write(bytes)
    }
}
