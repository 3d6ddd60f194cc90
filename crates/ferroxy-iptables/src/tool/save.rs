//! Reads rules with `iptables-save`, line by line. The caller interprets the lines.

use std::ops::ControlFlow;

use super::process::Program;
use super::{Error, Limits, Tools};

/// Passes each line of `table` (or of all existing tables) to `each`, which may `Break`. Legacy tools create the table that
/// they list; they take no lock, because the kernel returns a consistent copy.
pub fn save(
    tools: &Tools,
    table: Option<&str>,
    limits: &Limits,
    each: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<(), Error> {
    let arguments: &[&str] = match &table {
        Some(table) => &["-t", table],
        None => &[],
    };
    let program = Program { path: &tools.save, arguments, limit: limits.run, output: limits.output };
    let mut lines = Lines::default();
    let mut stopped = false;
    let ended = program.run(&mut std::iter::empty(), &mut |bytes| {
        let flow = lines.take(bytes, each);
        stopped = flow.is_break();
        flow
    })?;
    if ended.status != 0 {
        let said = ended.said.trim().to_owned();
        return Err(Error::Failed { tool: program.name(), status: ended.status, said });
    }
    if !stopped {
        // The output ends with a newline; if it is truncated, the exit status is not 0.
        let _ = lines.finish(each);
    }
    Ok(())
}

/// The same as one text.
pub fn save_text(tools: &Tools, table: Option<&str>, limits: &Limits) -> Result<String, Error> {
    let mut text = String::new();
    save(tools, table, limits, &mut |line| {
        text.push_str(line);
        text.push('\n');
        ControlFlow::Continue(())
    })?;
    Ok(text)
}

/// Splits pieces of any size into lines.
#[derive(Default)]
struct Lines {
    /// The start of an incomplete line.
    begun: Vec<u8>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], each: &mut dyn FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            if self.begun.is_empty() {
                each(&String::from_utf8_lossy(line))?;
            } else {
                self.begun.extend_from_slice(line);
                each(&String::from_utf8_lossy(&self.begun))?;
                self.begun.clear();
            }
            rest = after;
        }
        self.begun.extend_from_slice(rest);
        ControlFlow::Continue(())
    }

    fn finish(&mut self, each: &mut dyn FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        if self.begun.is_empty() {
            ControlFlow::Continue(())
        } else {
            each(&String::from_utf8_lossy(&self.begun))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_same_however_they_are_cut() {
        let text = "*nat\n:A - [0:0]\n\n-A A -m comment --comment \"é\" -j B\nCOMMIT\nno newline";
        let expected: Vec<&str> = text.split('\n').collect();
        for size in 1..text.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            let mut keep = |line: &str| {
                found.push(line.to_owned());
                ControlFlow::Continue(())
            };
            for piece in text.as_bytes().chunks(size) {
                assert!(lines.take(piece, &mut keep).is_continue());
            }
            assert!(lines.finish(&mut keep).is_continue());
            assert_eq!(found, expected, "pieces of {size}");
        }
    }
}
