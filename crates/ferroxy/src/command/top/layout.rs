//! The layout of a line of `ferroxy top`: which figures fit, and where text is cut or wrapped.

use super::model::Row;
use crate::client::rates::short;

/// Columns that the rates of an endpoint take, with the gaps around them.
pub const RATES: usize = 31;

/// Columns that a state needs: `not handled`.
pub const LEAST_STATE: usize = 11;

const GAP: usize = 2;
const LEAST_NAME: usize = 7;
const LONGEST_NAME: usize = 50;

/// A figure is left out if names would get fewer columns than this because of it.
const GOOD_NAME: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    Connections,
    /// From clients.
    Bytes,
    /// To clients.
    Replies,
    /// In both directions.
    Both,
    Endpoints,
}

/// The columns of a list of Services. The state always has room.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    pub figures: &'static [Figure],
    name_width: usize,
}

/// From wide to narrow.
const CHOICES: [&[Figure]; 4] = [
    &[Figure::Connections, Figure::Bytes, Figure::Replies, Figure::Endpoints],
    &[Figure::Connections, Figure::Both, Figure::Endpoints],
    &[Figure::Endpoints],
    &[],
];

impl Layout {
    /// `longest`: characters of the longest name.
    pub fn of(width: usize, longest: usize) -> Layout {
        let wanted = longest.clamp(LEAST_NAME, LONGEST_NAME);
        let taken = |figures: &[Figure]| {
            figures.iter().map(|figure| GAP + figure.width()).sum::<usize>() + GAP + LEAST_STATE
        };
        let fits = |figures: &&[Figure]| taken(figures) + wanted.min(GOOD_NAME) <= width;
        let figures = CHOICES.into_iter().find(fits).unwrap_or(&[]);
        let room = width.saturating_sub(taken(figures));
        Layout { figures, name_width: wanted.min(room.max(LEAST_NAME)) }
    }

    pub fn columns(&self, name: &str, figures: impl Iterator<Item = String>, state: &str) -> String {
        let width = self.name_width;
        let mut text = format!("{:width$}", cut(name, width));
        for (figure, value) in self.figures.iter().zip(figures) {
            text.push_str(&format!("  {value:>width$}", width = figure.width()));
        }
        format!("{text}  {state}")
    }
}

impl Figure {
    pub fn title(self) -> &'static str {
        match self {
            Figure::Connections => "CONN/S",
            Figure::Bytes => "IN B/S",
            Figure::Replies => "OUT B/S",
            Figure::Both => "BYTES/S",
            Figure::Endpoints => "ENDPOINTS",
        }
    }

    fn width(self) -> usize {
        if self == Figure::Endpoints { 9 } else { 7 }
    }

    pub fn of(self, row: &Row, is_counted: bool) -> String {
        let rate = |number: f64| if is_counted { short(number) } else { "-".to_owned() };
        match self {
            Figure::Connections => rate(row.rate.connections),
            Figure::Bytes => rate(row.rate.bytes),
            Figure::Replies => rate(row.rate.reply_bytes),
            Figure::Both => rate(row.rate.both()),
            Figure::Endpoints => format!("{}/{}", row.used, row.total),
        }
    }
}

/// At most `width` characters; `…` shows that there were more.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { String::new() } else { format!("{kept}…") }
}

/// Lines of `width` characters, wrapped between words where that is possible.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let length = |line: &str| line.chars().count();
        let line = lines.last_mut().map_or(0, |line| length(line));
        match lines.last_mut() {
            Some(last) if line == 0 => last.push_str(word),
            Some(last) if line + 1 + length(word) <= width => last.push_str(&format!(" {word}")),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_make_way_for_names_and_states() {
        let figures = |width: usize, longest: usize| Layout::of(width, longest).figures.len();
        assert_eq!([120, 80, 60, 40, 30, 5].map(|width| figures(width, 20)), [4, 4, 3, 1, 0, 0]);
        assert_eq!(figures(60, 7), 4, "short names leave room");
        let name = |width: usize| Layout::of(width, 100).name_width;
        assert_eq!([200, 80, 60, 0].map(name), [50, 29, 18, 7]);
    }

    #[test]
    fn words_are_not_divided_unless_they_must_be() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("onetwothree four", 5), ["onetwothree", "four"]);
        assert_eq!((wrapped("", 5), wrapped("a", 0)), (vec![String::new()], vec!["a".to_owned()]));
    }
}
