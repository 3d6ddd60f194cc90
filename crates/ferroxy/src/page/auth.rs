//! Which requests are admitted: with a configured token, those that send it; without one, those from this host, unless a
//! foreign web page caused them.
//!
//! Without a token the address is a loopback one (`config` enforces that). A foreign web page could still make a browser on
//! this host send requests: through a name that resolves to 127.0.0.1 (DNS rebinding), which the `Host` header shows, or
//! across origins, which `Origin` and `Sec-Fetch-Site` show.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use tracing::{info, warn};

use super::Refused;

/// The API server's proxy removes `Authorization`, so there is another header.
const TOKEN: HeaderName = HeaderName::from_static("x-ferroxy-token");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

const SHORTEST: usize = 16;
const LONGEST: usize = 512;

/// The token file is read again after this time.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Door {
    /// `None`: no token is required.
    token: Option<Mutex<Token>>,
}

#[derive(Debug)]
struct Token {
    file: PathBuf,
    /// Or why there is no token: then every request is refused.
    known: Result<String, String>,
    read_at: Instant,
}

impl Door {
    /// An error if the file has no usable token.
    pub fn new(token_file: Option<PathBuf>) -> Result<Door, String> {
        let Some(file) = token_file else { return Ok(Door { token: None }) };
        let known = Ok(read(&file)?);
        Ok(Door { token: Some(Mutex::new(Token { file, known, read_at: Instant::now() })) })
    }

    /// Static files reveal nothing about the node, so they need no token.
    pub fn admit(&self, headers: &HeaderMap, is_api: bool) -> Result<(), Refused> {
        match &self.token {
            None => is_from_here(headers, is_api),
            Some(_) if !is_api => Ok(()),
            Some(token) => {
                let mut token = token.lock().unwrap_or_else(PoisonError::into_inner);
                token.refresh(Instant::now());
                let is_known = |given: &[u8]| token.known.as_ref().is_ok_and(|it| same(it.as_bytes(), given));
                match given(headers) {
                    Some(given) if is_known(given) => Ok(()),
                    Some(_) => Err(unauthorized("the token is wrong")),
                    None => Err(unauthorized(
                        "a token is needed: send it as `X-Ferroxy-Token` or as `Authorization: Bearer`",
                    )),
                }
            }
        }
    }
}

fn unauthorized(words: &str) -> Refused {
    Refused::new(StatusCode::UNAUTHORIZED, words)
}

impl Token {
    /// A token that cannot be read any more becomes invalid: removing the file revokes the token.
    fn refresh(&mut self, now: Instant) {
        if now.saturating_duration_since(self.read_at) < FRESH {
            return;
        }
        self.read_at = now;
        let read = read(&self.file);
        if read == self.known {
            return;
        }
        match &read {
            Ok(_) => info!("the token of the page has changed"),
            Err(reason) => warn!("{reason}; until it can be read, the page's API answers no request"),
        }
        self.known = read;
    }
}

fn read(file: &PathBuf) -> Result<String, String> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("pageTokenFile: cannot read {shown}: {error}"))?;
    let token = text.trim();
    let length = token.len();
    if !(SHORTEST..=LONGEST).contains(&length) {
        return Err(format!(
            "pageTokenFile: the token in {shown} has {length} characters, and must have {SHORTEST} to {LONGEST}"
        ));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("pageTokenFile: the token in {shown} has characters that no header can have"));
    }
    Ok(token.to_owned())
}

/// The token that a request has.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let own = headers.get(TOKEN).map(|value| value.as_bytes());
    own.or_else(|| {
        let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
    })
}

/// Takes the same time for every wrong token of the same length.
fn same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

fn is_from_here(headers: &HeaderMap, is_api: bool) -> Result<(), Refused> {
    let forbidden = |words: &str| Err(Refused::new(StatusCode::FORBIDDEN, words));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_loopback(host) {
        return forbidden("the Host header must be localhost or a loopback address");
    }
    let is_same = |origin: &str| origin.strip_prefix("http://") == Some(host);
    if headers.get(ORIGIN).is_some_and(|origin| !origin.to_str().is_ok_and(is_same)) {
        return forbidden("requests from other origins are refused");
    }
    let is_foreign = |site: &[u8]| site == b"cross-site" || site == b"same-site";
    if is_api && headers.get(FETCH_SITE).is_some_and(|site| is_foreign(site.as_bytes())) {
        return forbidden("requests from other sites are refused");
    }
    Ok(())
}

/// `localhost`, `127.0.0.1:10261`, `[::1]:10261`
fn is_loopback(host: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && !(host.starts_with('[') && host.ends_with(']')) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn code(door: &Door, list: &[(&'static str, &str)], is_api: bool) -> u16 {
        door.admit(&headers(list), is_api).map_or_else(|refused| refused.code.as_u16(), |()| 200)
    }

    #[test]
    fn without_a_token_only_requests_to_a_loopback_name_are_answered() {
        let door = Door::new(None).unwrap();
        for (host, expected) in [
            ("localhost", 200),
            ("LOCALHOST:10261", 200),
            ("127.0.0.1:10261", 200),
            ("127.8.8.8", 200),
            ("[::1]:10261", 200),
            ("[::1]", 200),
            ("evil.example", 403),
            ("evil.example:10261", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost.evil.example", 403),
            ("192.0.2.1:10261", 403),
            ("localhost:", 403),
            ("", 403),
        ] {
            assert_eq!(code(&door, &[("host", host)], true), expected, "{host}");
            assert_eq!(code(&door, &[("host", host)], false), expected, "{host}");
        }
        assert_eq!(code(&door, &[], true), 403);
    }

    #[test]
    fn without_a_token_other_origins_are_refused() {
        let door = Door::new(None).unwrap();
        let host = ("host", "localhost:10261");
        for (origin, expected) in [
            ("http://localhost:10261", 200),
            ("http://localhost:8080", 403),
            ("https://localhost:10261", 403),
            ("http://evil.example", 403),
            ("null", 403),
        ] {
            assert_eq!(code(&door, &[host, ("origin", origin)], true), expected, "{origin}");
        }
        let from = |site, is_api| code(&door, &[host, ("sec-fetch-site", site)], is_api);
        assert_eq!(
            (from("same-origin", true), from("none", true), from("cross-site", true)),
            (200, 200, 403)
        );
        assert_eq!((from("same-site", true), from("cross-site", false)), (403, 200), "a link to the page");
    }

    #[test]
    fn a_token_opens_the_api_from_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "  0123456789abcdef\n").unwrap();
        let door = Door::new(Some(file)).unwrap();
        let host = ("host", "node-7:10261");
        for (header, expected) in [
            (("x-ferroxy-token", "0123456789abcdef"), 200),
            (("authorization", "Bearer 0123456789abcdef"), 200),
            (("authorization", "bearer  0123456789abcdef"), 200),
            (("authorization", "Basic 0123456789abcdef"), 401),
            (("authorization", "0123456789abcdef"), 401),
            (("x-ferroxy-token", "0123456789abcdeX"), 401),
            (("x-ferroxy-token", "0123456789abcde"), 401),
            (("x-ferroxy-token", "0123456789abcdef0"), 401),
            (("x-ferroxy-token", ""), 401),
            (("accept", "*/*"), 401),
        ] {
            assert_eq!(code(&door, &[host, header], true), expected, "{header:?}");
        }
        assert_eq!(code(&door, &[host], false), 200, "files tell nothing");
        let local = ("host", "localhost:10261");
        assert_eq!(code(&door, &[local], true), 401, "a token is asked for on loopback, too");
    }

    #[test]
    fn a_token_must_be_usable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let refused = |content: &str| {
            std::fs::write(&file, content).unwrap();
            Door::new(Some(file.clone())).unwrap_err()
        };
        assert!(refused("short").ends_with("has 5 characters, and must have 16 to 512"));
        assert!(refused(" \n").contains("has 0 characters"));
        assert!(refused(&"x".repeat(513)).contains("has 513 characters"));
        assert!(refused("0123456789 abcdef").contains("characters that no header can have"));
        std::fs::remove_file(&file).unwrap();
        let missing = Door::new(Some(file)).unwrap_err();
        assert!(missing.starts_with("pageTokenFile: cannot read "), "{missing}");
    }

    #[test]
    fn a_token_that_changes_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "0123456789abcdef").unwrap();
        let now = Instant::now();
        let mut token = Token { known: read(&file), file: file.clone(), read_at: now };
        std::fs::write(&file, "fedcba9876543210").unwrap();
        token.refresh(now);
        assert_eq!(token.known.as_deref(), Ok("0123456789abcdef"), "it was just read");
        token.refresh(now + FRESH);
        assert_eq!(token.known.as_deref(), Ok("fedcba9876543210"));
        std::fs::remove_file(&file).unwrap();
        token.refresh(now + 2 * FRESH);
        assert!(token.known.is_err(), "it is revoked");
    }
}
