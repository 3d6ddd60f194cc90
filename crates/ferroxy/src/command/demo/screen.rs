//! The output of the demo while it runs: headings and tables as they are ready, and the step that is running.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use crate::command::Output;
use crate::output::Paint;

#[derive(Debug, Clone, Copy)]
pub struct Screen {
    output: Output,
    paint: Paint,
}

/// A line on the terminal, there until dropped.
#[derive(Debug)]
pub struct Waiting {
    shown: bool,
}

impl Screen {
    pub fn new(output: Output) -> Screen {
        Screen { output, paint: Paint::stdout() }
    }

    pub fn paint(self) -> Paint {
        self.paint
    }

    pub fn heading(self, text: &str) -> io::Result<()> {
        self.print(format!("\n{}\n\n", self.paint.strong(text)))
    }

    /// Prints nothing for JSON and YAML, which are printed at the end, in one piece.
    pub fn print(self, text: impl Display) -> io::Result<()> {
        if self.output != Output::Text {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        write!(out, "{text}")?;
        out.flush()
    }

    /// Shows the step that is running, on a terminal.
    pub fn waiting(self, what: &str) -> Waiting {
        let shown = io::stderr().is_terminal();
        if shown {
            show(&format!("  {what} ..."));
        }
        Waiting { shown }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.shown {
            // Back to the start of the line, and clear it.
            show("\r\x1b[K");
        }
    }
}

/// Writes to the terminal, if it is still there.
pub(super) fn show(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
