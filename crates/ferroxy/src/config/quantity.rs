//! Sizes as Kubernetes writes them: `0`, `512k`, `1Mi`. Only whole, non-negative numbers of bytes.

const SUFFIXES: [(&str, u64); 8] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

pub fn bytes(text: &str) -> Result<u64, String> {
    let suffix = SUFFIXES.into_iter().find_map(|(name, scale)| Some((text.strip_suffix(name)?, scale)));
    let (number, scale) = suffix.unwrap_or((text, 1));
    let digits = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    let number = number.parse::<u64>().ok().filter(|_| digits);
    number
        .and_then(|number| number.checked_mul(scale))
        .ok_or_else(|| format!("{text:?} is not a size such as 0, 512k or 1Mi"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in
            [("0", 0), ("17", 17), ("2k", 2_000), ("1Mi", 1_048_576), ("3G", 3_000_000_000)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "Mi", "-1", "+1", "1.5Mi", "1 Mi", "1mi", "99999999999999Ti"] {
            assert_eq!(bytes(text), Err(format!("{text:?} is not a size such as 0, 512k or 1Mi")));
        }
    }
}
