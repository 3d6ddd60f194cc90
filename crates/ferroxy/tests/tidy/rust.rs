//! The part of Rust's syntax that the rules need: what is code, where blocks end, what is a test. It is not a parser.

/// A file with its comments and literals blanked: the same lines, and the same columns in bytes.
#[derive(Debug)]
pub struct Code(String);

/// A range of lines, from 1, both ends included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub name: String,
    pub first: usize,
    pub last: usize,
}

impl Block {
    pub fn lines(&self) -> usize {
        self.last - self.first + 1
    }
}

impl Code {
    pub fn of(text: &str) -> Code {
        Code::without(text, |_| true)
    }

    /// The code with its literals.
    pub fn with_literals(text: &str) -> Code {
        Code::without(text, |token| token.starts_with('/'))
    }

    fn without(text: &str, is_blanked: impl Fn(&str) -> bool) -> Code {
        let mut blanked = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (length, blank) = match token(rest) {
                Some(length) => (length, is_blanked(rest)),
                None => (first.len_utf8(), false),
            };
            let (bytes, after) = rest.as_bytes().split_at(length);
            blanked.extend(bytes.iter().map(|&byte| if blank && byte != b'\n' { b' ' } else { byte }));
            rest = &text[text.len() - after.len()..];
        }
        Code(String::from_utf8(blanked).unwrap())
    }

    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.0.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Every word of the code that follows this keyword, with its line: `named("fn")` are the functions' names.
    pub fn named(&self, keyword: &str) -> Vec<(usize, String)> {
        let after = self.after(keyword).into_iter();
        after.filter_map(|at| Some((self.line_of(at), word(&self.0[at..])?))).collect()
    }

    /// Functions with a body, from the line that names them to the line that ends them.
    pub fn functions(&self) -> Vec<Block> {
        self.blocks("fn")
    }

    /// `#[cfg(test)] mod …` with its body.
    pub fn test_modules(&self) -> Vec<Block> {
        let lines: Vec<&str> = self.0.lines().collect();
        let is_test = |block: &Block| {
            let before =
                lines[..block.first - 1].iter().rev().take_while(|line| line.trim().starts_with("#["));
            before.into_iter().any(|line| line.contains("cfg(test)"))
        };
        self.blocks("mod").into_iter().filter(is_test).collect()
    }

    fn blocks(&self, keyword: &str) -> Vec<Block> {
        let mut blocks = Vec::new();
        for at in self.after(keyword) {
            if let (Some(name), Some(end)) = (word(&self.0[at..]), self.end_of_block(at)) {
                blocks.push(Block { name, first: self.line_of(at), last: self.line_of(end) });
            }
        }
        blocks
    }

    /// The position of the `}` that closes the first block after this place; none if a `;` comes before any block.
    fn end_of_block(&self, from: usize) -> Option<usize> {
        let (mut braces, mut others) = (0_usize, 0_usize);
        for (index, byte) in self.0.bytes().enumerate().skip(from) {
            match byte {
                b'(' | b'[' => others += 1,
                b')' | b']' => others = others.checked_sub(1)?,
                b';' if braces == 0 && others == 0 => return None,
                b'{' => braces += 1,
                b'}' => {
                    braces = braces.checked_sub(1)?;
                    if braces == 0 && others == 0 {
                        return Some(index);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The places behind this keyword.
    fn after(&self, keyword: &str) -> Vec<usize> {
        let code = &self.0;
        let is_alone =
            |at: usize| !code[..at].ends_with(is_word) && !code[at + keyword.len()..].starts_with(is_word);
        let places = code.match_indices(keyword).filter(|(at, _)| is_alone(*at));
        places.map(|(at, _)| at + keyword.len()).collect()
    }

    fn line_of(&self, at: usize) -> usize {
        1 + self.0[..at].matches('\n').count()
    }
}

fn is_word(it: char) -> bool {
    it == '_' || it.is_alphanumeric()
}

fn word(text: &str) -> Option<String> {
    let text = text.strip_prefix(char::is_whitespace)?;
    let word: String = text.chars().take_while(|it| is_word(*it)).collect();
    (!word.is_empty()).then_some(word)
}

/// The length of the comment or literal that the text begins with.
fn token(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = &raw[hashes + 1..];
            return Some(2 + hashes + body.find(&end).map_or(body.len(), |at| at + end.len()));
        }
        return None;
    }
    if let Some(body) = text.strip_prefix('"') {
        return Some(1 + quoted(body, '"'));
    }
    let body = text.strip_prefix('\'')?;
    let mut characters = body.chars();
    match (characters.next()?, characters.next()?) {
        ('\\', _) => Some(1 + quoted(body, '\'')),
        (one, '\'') => Some(2 + one.len_utf8()),
        // A lifetime.
        _ => None,
    }
}

/// The length up to and including the closing quote.
fn quoted(body: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, it) in body.char_indices() {
        match it {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if it == quote => return at + 1,
            _ => {}
        }
    }
    body.len()
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        let text = "a // b\n\"c \\\" {\" d r#\"e \" }\"# '{' '\\'' f<'g> /* h /* i */ j */ k";
        let code: Vec<String> = Code::of(text).0.split_whitespace().map(str::to_owned).collect();
        assert_eq!(code, ["a", "d", "f<'g>", "k"]);
        let with_literals = Code::with_literals("a /* b */ \"c // d\" // e\n");
        assert_eq!(with_literals.0, "a         \"c // d\"     \n");
    }

    #[test]
    fn a_function_ends_where_its_body_does() {
        let text = "fn a(x: [u8; 4]) -> u8 {\n    if x { \"}\" }\n    1\n}\ntrait T {\n    fn b();\n    fn c() {}\n}\n";
        let found = Code::of(text).functions();
        assert_eq!(found.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!((found[0].first, found[0].last, found[0].lines()), (1, 4, 4));
    }

    #[test]
    fn a_test_module_is_one_that_says_so() {
        let text = "mod a {\n}\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn t() {}\n}\n#[cfg(test)]\nmod elsewhere;\n";
        let found = Code::of(text).test_modules();
        assert_eq!(found, [Block { name: "tests".into(), first: 5, last: 7 }]);
    }
}
