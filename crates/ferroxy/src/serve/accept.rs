//! Which form of a page a client wants (the header `Accept`): text for people, JSON or YAML for programs.

use hyper::HeaderMap;
use hyper::header::ACCEPT;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
    Yaml,
}

/// The form with the highest weight; of equal weights the first. `None` if the client accepts none of them.
pub fn format(headers: &HeaderMap) -> Option<Format> {
    let mut best: Option<(f32, Format)> = None;
    let mut asked = false;
    for header in headers.get_all(ACCEPT) {
        // A header that is not text matches no form.
        for range in header.to_str().unwrap_or_default().split(',') {
            asked = true;
            let Some((weight, format)) = read(range) else { continue };
            if weight > 0.0 && best.is_none_or(|(heaviest, _)| weight > heaviest) {
                best = Some((weight, format));
            }
        }
    }
    if asked { best.map(|(_, format)| format) } else { Some(Format::Text) }
}

/// `application/json;v=v1alpha1;q=0.5`: only the weight matters, other parameters are ignored.
fn read(range: &str) -> Option<(f32, Format)> {
    let mut parts = range.split(';').map(str::trim);
    let format = match parts.next()?.to_ascii_lowercase().as_str() {
        "application/json" => Format::Json,
        "application/yaml" => Format::Yaml,
        "text/plain" | "text/*" | "*/*" | "" => Format::Text,
        _ => return None,
    };
    let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
    Some((weight.unwrap_or(1.0), format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_gets_what_it_likes_best() {
        let cases = [
            ("application/json", Some(Format::Json)),
            ("application/yaml;v=v1alpha1;g=config.k8s.io;as=Statusz", Some(Format::Yaml)),
            ("text/html, application/xhtml+xml, */*;q=0.8", Some(Format::Text)),
            ("text/plain;q=0.5, application/json", Some(Format::Json)),
            ("application/json;q=0.1,application/yaml;q=0.2", Some(Format::Yaml)),
            ("application/yaml, application/json", Some(Format::Yaml)),
            ("APPLICATION/JSON", Some(Format::Json)),
            ("application/json;q=0", None),
            ("application/cbor", None),
        ];
        assert_eq!(format(&HeaderMap::new()), Some(Format::Text));
        for (accept, expected) in cases {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            assert_eq!(format(&headers), expected, "{accept}");
        }
    }
}
