//! The query of a request: names and values, decoded.

use std::str::FromStr;

use ferroxy_core::ServiceName;
use hyper::StatusCode;

use super::Refused;

#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// An error names a parameter that the path does not know: otherwise a misspelled name would be ignored.
    pub fn read(text: Option<&str>, known: &[&str]) -> Result<Query, Refused> {
        let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let mut read = Vec::new();
        for pair in pairs {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            if !known.contains(&name.as_str()) {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(bad(format!("the parameter {name:?} is not known here (known: {known})")));
            }
            read.push((name, value));
        }
        Ok(Query(read))
    }

    /// The last value counts.
    pub fn one(&self, name: &str) -> Option<&str> {
        self.all(name).last()
    }

    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, Refused> {
        let read = |text: &str| text.parse().map_err(|_| bad(format!("{name}: {text:?} is not a number")));
        self.one(name).map(read).transpose()
    }

    pub fn service(&self, name: &str) -> Result<Option<ServiceName>, Refused> {
        self.one(name).filter(|text| !text.is_empty()).map(|text| service(name, text)).transpose()
    }
}

/// `namespace/name`
pub fn service(parameter: &str, text: &str) -> Result<ServiceName, Refused> {
    ServiceName::parse(text).ok_or_else(|| bad(format!("{parameter}: {text:?} is not NAMESPACE/NAME")))
}

pub fn bad(words: String) -> Refused {
    Refused::new(StatusCode::BAD_REQUEST, words)
}

/// `%2F` is `/`, and `+` is a space.
pub fn decoded(text: &str) -> Result<String, Refused> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next(), rest.next()].map(|it| (it? as char).to_digit(16));
                let [Some(high), Some(low)] = digits else {
                    return Err(bad(format!("{text:?}: two hexadecimal digits must follow %")));
                };
                (high * 16 + low) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| bad(format!("{text:?} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded() {
        let query =
            Query::read(Some("to=%5Bfd00%3A%3A1%5D:53%2Fudp&from=a+b&from=c&&x"), &["to", "from", "x"]);
        let query = query.unwrap();
        assert_eq!(query.one("to"), Some("[fd00::1]:53/udp"));
        assert_eq!((query.one("from"), query.all("from").count()), (Some("c"), 2));
        assert_eq!((query.one("x"), query.one("y")), (Some(""), None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let message = |text, known: &[&str]| Query::read(Some(text), known).unwrap_err().message;
        assert_eq!(message("limt=1", &["limit"]), "the parameter \"limt\" is not known here (known: limit)");
        assert_eq!(message("a=%4", &["a"]), "\"%4\": two hexadecimal digits must follow %");
        assert_eq!(message("a=%ff", &["a"]), "\"%ff\" is not UTF-8");
        let query = Query::read(Some("limit=x&after=a/b/c"), &["limit", "after"]).unwrap();
        assert_eq!(query.number::<u64>("limit").unwrap_err().message, "limit: \"x\" is not a number");
        assert_eq!(query.service("after").unwrap_err().message, "after: \"a/b/c\" is not NAMESPACE/NAME");
    }
}
