//! The links and headings of a Markdown file. Not a renderer: it knows only the syntax that our documents use, and ignores code.

/// A link, and the line that it begins in, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub line: usize,
    pub target: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    pub links: Vec<Link>,
    /// Names in `[text][name]` without a line `[name]: target`.
    pub undefined: Vec<Link>,
    /// The text of each heading, in order.
    pub headings: Vec<String>,
    /// The `id`s of HTML elements.
    pub ids: Vec<String>,
}

impl Document {
    pub fn of(text: &str) -> Document {
        let prose = without_comments(&without_fences(text));
        let headings = prose.lines().filter_map(heading).collect();
        let prose = without_code(&prose);
        let (defined, mut links): (Vec<String>, Vec<Link>) = definitions(&prose).into_iter().unzip();
        links.extend(inline(&prose));
        links.extend(["href=\"", "src=\""].into_iter().flat_map(|it| attributes(&prose, it)));
        links.sort_by_key(|it| it.line);
        let mut undefined = references(&prose);
        undefined.retain(|it| !defined.contains(&it.target.to_lowercase()));
        let ids = attributes(&prose, " id=\"").into_iter().map(|it| it.target).collect();
        Document { links, undefined, headings, ids }
    }
}

/// Fenced blocks become empty lines, so that lines keep their numbers.
fn without_fences(text: &str) -> String {
    let mut open: Option<String> = None;
    let mut kept = String::new();
    for line in text.lines() {
        let trimmed = line.trim_start();
        let mark: String =
            ['`', '~'].map(|mark| trimmed.chars().take_while(|it| *it == mark).collect::<String>()).concat();
        let fence = mark.len() >= 3 && (trimmed.starts_with("```") || trimmed.starts_with("~~~"));
        match &open {
            None if fence => open = Some(mark),
            None => kept += line,
            Some(opened) if fence && mark.starts_with(opened.as_str()) && trimmed.trim_end() == mark => {
                open = None
            }
            Some(_) => {}
        }
        kept.push('\n');
    }
    kept
}

fn without_comments(text: &str) -> String {
    blank(text, |rest| {
        rest.starts_with("<!--").then(|| rest.find("-->").map_or(rest.len(), |end| end + "-->".len()))
    })
}

/// Code spans, which end in their paragraph, and characters after a backslash.
fn without_code(text: &str) -> String {
    blank(text, |rest| {
        if let Some(escaped) = rest.strip_prefix('\\') {
            return Some(1 + escaped.chars().next().map_or(0, char::len_utf8));
        }
        let ticks = rest.bytes().take_while(|it| *it == b'`').count();
        let paragraph = rest.split("\n\n").next().unwrap_or(rest);
        let mut from = ticks;
        while ticks > 0 && from < paragraph.len() {
            let start = from + paragraph[from..].find('`')?;
            let length = paragraph[start..].bytes().take_while(|it| *it == b'`').count();
            if length == ticks {
                return Some(start + length);
            }
            from = start + length;
        }
        (ticks > 0).then_some(ticks)
    })
}

/// Replaces pieces with spaces. `piece`: the length of the piece that the text begins with, if any.
fn blank(text: &str, piece: impl Fn(&str) -> Option<usize>) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match piece(rest) {
            Some(length) => {
                kept.extend(rest[..length].chars().map(|it| if it == '\n' { '\n' } else { ' ' }));
                length
            }
            None => {
                kept.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    kept
}

/// The text of `## Heading`, with the words of links in place of the links.
fn heading(line: &str) -> Option<String> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    if !(1..=6).contains(&level) || !(text.is_empty() || text.starts_with(' ')) {
        return None;
    }
    let text = text.trim().trim_end_matches('#').trim_end();
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, target)) = rest.split_once("](") {
        plain += &before.replacen('[', "", 1);
        rest = target.split_once(')').map_or("", |it| it.1);
    }
    Some(plain + rest)
}

/// `[text](target "title")` and `![text](target)`.
fn inline(text: &str) -> Vec<Link> {
    text.match_indices("](").map(|(at, mark)| link(text, at, target(&text[at + mark.len()..]))).collect()
}

/// Up to the parenthesis that closes, or to a space before a title.
fn target(text: &str) -> &str {
    if let Some(inside) = text.strip_prefix('<') {
        return inside.split('>').next().unwrap_or(inside);
    }
    let mut depth = 0;
    let end = text.find(|it: char| {
        depth += i32::from(it == '(') - i32::from(it == ')');
        depth < 0 || it.is_whitespace()
    });
    &text[..end.unwrap_or(text.len())]
}

/// `[name]: target`, with the name in lower case.
fn definitions(text: &str) -> Vec<(String, Link)> {
    let lines = text.lines().enumerate().filter_map(|(index, line)| {
        let (name, rest) = line.trim_start().strip_prefix('[')?.split_once("]:")?;
        let target = target(rest.trim_start()).to_owned();
        Some((name.to_lowercase(), Link { line: index + 1, target }))
    });
    lines.collect()
}

/// The names in `[text][name]`.
fn references(text: &str) -> Vec<Link> {
    let found = text.match_indices("][").filter_map(|(at, mark)| {
        let (name, _) = text[at + mark.len()..].split_once(']')?;
        (!name.is_empty()).then(|| link(text, at, name))
    });
    found.collect()
}

/// Values of an attribute of HTML elements.
fn attributes(text: &str, name: &str) -> Vec<Link> {
    let found = text.match_indices(name).filter_map(|(at, mark)| {
        let (value, _) = text[at + mark.len()..].split_once('"')?;
        Some(link(text, at, value))
    });
    found.collect()
}

fn link(text: &str, at: usize, target: &str) -> Link {
    Link { line: text[..at].matches('\n').count() + 1, target: target.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<(usize, String)> {
        Document::of(text).links.into_iter().map(|it| (it.line, it.target)).collect()
    }

    #[test]
    fn links_of_every_form_are_found_with_their_lines() {
        let text = "a [b](c.md#d \"title\") ![e](f.svg)\n[g `h]`](i(j).md)\n\n[k]: <l m.md>\n<a href=\"n.md\">o</a> [p][K]\n";
        let expected = [(1, "c.md#d"), (1, "f.svg"), (2, "i(j).md"), (4, "l m.md"), (5, "n.md")];
        assert_eq!(targets(text), expected.map(|(line, target)| (line, target.to_owned())));
        assert_eq!(Document::of(text).undefined, []);
        assert_eq!(Document::of("[a][b]\n").undefined, [Link { line: 1, target: "b".to_owned() }]);
    }

    #[test]
    fn code_and_comments_have_no_links() {
        for text in [
            "```\n[a](b)\n```\n",
            "- x\n  ~~~sh\n  ```\n  [a](b)\n  ~~~\n",
            "````\n```\n[a](b)\n````\n",
            "`[a](b)`\n",
            "`` ` [a](b) ``\n",
            "`one\n[a](b)`\n",
            "<!-- [a](b) -->\n",
            "\\[a\\](b)\n",
        ] {
            assert_eq!(targets(text), [], "{text:?}");
        }
        assert_eq!(
            targets("a ` b\n\n[c](d) `\n"),
            [(3, "d".to_owned())],
            "a code span ends in its paragraph"
        );
        assert_eq!(targets("```\n```\n[c](d)\n"), [(3, "d".to_owned())]);
    }

    #[test]
    fn headings_are_those_outside_of_code() {
        let text = "# A `b`\n```\n# c\n```\n#d\n### [E f](g.md): h ##\n<a id=\"i\"></a>\n";
        let document = Document::of(text);
        assert_eq!(document.headings, ["A `b`", "E f: h"]);
        assert_eq!(document.ids, ["i"]);
    }
}
