//! Sends drawn lines to a terminal: only those that changed. At the end, it restores the previous screen.

use std::io;
use std::time::Duration;

use super::draw::{Line, Style};
use super::terminal::Terminal;

/// Switches to the alternate screen, hides the cursor and disables line wrapping; and the way back.
const BEGIN: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const END: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

#[derive(Debug)]
pub struct Screen {
    terminal: Terminal,
    shown: Vec<Line>,
    size: (u16, u16),
    has_colour: bool,
}

impl Screen {
    pub fn open() -> io::Result<Screen> {
        let terminal = Terminal::open()?;
        terminal.write(BEGIN)?;
        let has_colour = std::env::var_os("NO_COLOR").is_none();
        Ok(Screen { terminal, shown: Vec::new(), size: (0, 0), has_colour })
    }

    /// Columns and rows now; after a change everything is drawn again.
    pub fn size(&mut self) -> io::Result<(usize, usize)> {
        let size = self.terminal.size()?;
        if size != self.size {
            self.size = size;
            self.shown.clear();
        }
        Ok((size.0.into(), size.1.into()))
    }

    pub fn keys(&self, wait: Duration) -> io::Result<Vec<u8>> {
        self.terminal.keys(wait)
    }

    pub fn show(&mut self, lines: Vec<Line>) -> io::Result<()> {
        let bytes = changes(&self.shown, &lines, self.has_colour);
        self.shown = lines;
        if bytes.is_empty() { Ok(()) } else { self.terminal.write(bytes.as_bytes()) }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone shows nothing any more.
        let _ = self.terminal.write(END);
    }
}

fn changes(shown: &[Line], lines: &[Line], has_colour: bool) -> String {
    let mut bytes = String::new();
    for (index, line) in lines.iter().enumerate() {
        if shown.get(index) == Some(line) {
            continue;
        }
        let style = codes(line.style, has_colour);
        bytes.push_str(&format!("\x1b[{};1H\x1b[0{style}m{}\x1b[0m\x1b[K", index + 1, line.text));
    }
    bytes
}

fn codes(style: Style, has_colour: bool) -> &'static str {
    match style {
        Style::Strong => ";1",
        Style::Faint => ";2",
        Style::Chosen => ";7",
        Style::Doubtful if has_colour => ";33",
        Style::Bad if has_colour => ";31",
        Style::Plain | Style::Doubtful | Style::Bad => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_lines_are_sent() {
        let line = |text: &str, style| Line { text: text.to_owned(), style };
        let before = [line("a", Style::Plain), line("b", Style::Plain)];
        let after = [line("a", Style::Plain), line("c", Style::Bad)];
        assert_eq!(changes(&before, &after, true), "\x1b[2;1H\x1b[0;31mc\x1b[0m\x1b[K");
        assert_eq!(changes(&before, &after, false), "\x1b[2;1H\x1b[0mc\x1b[0m\x1b[K");
        assert_eq!(changes(&after, &after, true), "");
    }
}
