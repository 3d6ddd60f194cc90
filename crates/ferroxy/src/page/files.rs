//! The static files of the page, compiled in. They are the same for every node and reveal nothing about it.

use std::hash::{DefaultHasher, Hash, Hasher};

use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH};
use hyper::{Request, StatusCode};

use crate::serve::body::Body;
use crate::serve::http::{self, Answer};

struct File {
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($name:literal: $content_type:expr,)*) => {
        &[$(File {
            path: concat!("/", $name),
            content_type: $content_type,
            content: include_str!(concat!("files/", $name)),
        }),*]
    };
}

/// The first file is also served at `/`.
const FILES: &[File] = files! {
    "index.html": HTML,
    "page.css": CSS,
    "page.js": SCRIPT,
    "agent.js": SCRIPT,
    "api.js": SCRIPT,
    "chart.js": SCRIPT,
    "dom.js": SCRIPT,
    "header.js": SCRIPT,
    "journal.js": SCRIPT,
    "list.js": SCRIPT,
    "rates.js": SCRIPT,
    "service.js": SCRIPT,
    "services.js": SCRIPT,
    "store.js": SCRIPT,
    "trace.js": SCRIPT,
};

pub fn answer(request: &Request<Incoming>) -> Answer {
    let path = if request.uri().path() == "/" { FILES[0].path } else { request.uri().path() };
    let Some(file) = FILES.iter().find(|file| file.path == path) else { return http::not_found() };
    let tag = tag(file.content);
    let is_known = request.headers().get(IF_NONE_MATCH).is_some_and(|known| is_listed(known, &tag));
    let mut answer = http::answer(StatusCode::OK, file.content_type, file.content);
    if is_known {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        *answer.body_mut() = Body::from("");
    }
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    answer
}

/// Different content has a different tag.
fn tag(content: &str) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

fn is_listed(known: &HeaderValue, tag: &str) -> bool {
    let is_it = |listed: &str| listed.trim().trim_start_matches("W/") == tag;
    known.to_str().is_ok_and(|list| list.split(',').any(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_in_a_list() {
        let tag = tag("content");
        let known = |list: &str| is_listed(&HeaderValue::from_str(list).unwrap(), &tag);
        assert!(known(&tag) && known(&format!("\"x\", W/{tag}")));
        assert!(!known("\"x\"") && !known(""));
    }

    /// Users in a hurry load these files, and every binary contains them.
    #[test]
    fn all_files_are_served_and_are_small() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page/files");
        let mut there: Vec<String> =
            folder.read_dir().unwrap().map(|it| format!("/{}", it.unwrap().file_name().display())).collect();
        let mut served: Vec<&str> = FILES.iter().map(|file| file.path).collect();
        there.sort();
        served.sort_unstable();
        assert_eq!(there, served);
        let bytes: usize = FILES.iter().map(|file| file.content.len()).sum();
        assert!(bytes < 120 * 1024, "{bytes} bytes");
    }

    /// The page's content security policy forbids these, so the page would not work.
    #[test]
    fn nothing_is_inline_or_from_elsewhere() {
        for file in FILES {
            for forbidden in ["http://", "https://", "innerHTML", "style=\"", "onclick=", "eval("] {
                let is_allowed = file.content.contains("http://www.w3.org/") && forbidden == "http://";
                assert!(is_allowed || !file.content.contains(forbidden), "{}: {forbidden}", file.path);
            }
        }
    }
}
