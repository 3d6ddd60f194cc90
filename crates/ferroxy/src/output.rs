//! How answers look: aligned tables, and colour only where a terminal reads them.

use std::fmt;
use std::io::{self, IsTerminal};

/// Colours, or none of them.
#[derive(Debug, Clone, Copy)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// For standard output: on a terminal, unless `NO_COLOR` is set.
    pub fn stdout() -> Paint {
        Paint { on: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() }
    }

    pub const fn off() -> Paint {
        Paint { on: false }
    }

    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    pub fn doubtful(self, text: &str) -> String {
        self.with("33", text)
    }

    pub fn strong(self, text: &str) -> String {
        self.with("1", text)
    }

    pub fn faint(self, text: &str) -> String {
        self.with("2", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Rows of cells, printed in columns as wide as their widest cell. Colour does not count as width.
#[derive(Debug, Clone, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    indent: usize,
}

impl Table {
    pub fn indented(indent: usize) -> Table {
        Table { rows: Vec::new(), indent }
    }

    pub fn row<const N: usize>(&mut self, cells: [impl Into<String>; N]) {
        self.rows.push(cells.map(Into::into).into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(wide).collect();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (cell, column_width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.push_str(&" ".repeat(column_width + 2 - width(cell)));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Characters a terminal shows: all but colour codes.
fn width(text: &str) -> usize {
    let mut shown = 0;
    let mut in_code = false;
    for character in text.chars() {
        match character {
            '\x1b' => in_code = true,
            'm' if in_code => in_code = false,
            _ if !in_code => shown += 1,
            _ => {}
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_their_colour() {
        let mut table = Table::indented(2);
        table.row(["chain", "effect"]);
        table.row([Paint { on: true }.good("pick-2").as_str(), "to 10.0.0.1:80"]);
        assert_eq!(table.to_string(), "  chain   effect\n  \x1b[32mpick-2\x1b[0m  to 10.0.0.1:80\n");
    }

    #[test]
    fn nothing_is_painted_without_a_terminal() {
        assert_eq!(Paint::off().bad("no"), "no");
    }
}
