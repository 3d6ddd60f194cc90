//! The collector: its address, and one request at a time over plain HTTP. `spans.rs` has the content.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The port of OTLP over HTTP.
const PORT: u16 = 4318;

/// How long the collector may take to accept, and to send the next bytes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Only the first line of an answer is read.
const LONGEST_LINE: u64 = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `collector:4318`
    authority: String,
    /// `/v1/traces`
    path: String,
}

impl Endpoint {
    /// `http://HOST[:PORT][/PATH]`; `/v1/traces` is appended, as OpenTelemetry's own exporters do.
    pub fn parse(text: &str) -> Result<Endpoint, String> {
        let rest = text.strip_prefix("http://").ok_or_else(|| {
            format!(
                "{text:?} is not http://HOST[:PORT][/PATH] (there is no TLS: use a collector on the node)"
            )
        })?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_plain =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && !b"@?#".contains(&byte));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().ok()),
            _ => (authority, Some(PORT)),
        };
        let is_bare_v6 = host.contains(':') && !host.starts_with('[');
        match port {
            Some(port) if !host.is_empty() && is_plain(rest) && !is_bare_v6 => Ok(Endpoint {
                authority: format!("{host}:{port}"),
                path: format!("{}/v1/traces", path.trim_end_matches('/')),
            }),
            _ => Err(format!("{text:?} is not http://HOST[:PORT][/PATH]")),
        }
    }

    pub(super) fn post(&self, body: &[u8]) -> io::Result<()> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let Endpoint { authority, path } = self;
        let head = format!(
            "POST {path} HTTP/1.0\r\nHost: {authority}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat())?;
        let mut answer = Vec::new();
        stream.take(LONGEST_LINE).read_to_end(&mut answer)?;
        let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let code = line.strip_prefix(b"HTTP/1.").and_then(|rest| rest.split(|byte| *byte == b' ').nth(1));
        match code {
            Some([b'2', _, _]) => Ok(()),
            Some(code) => Err(io::Error::other(format!("it answers {}", code.escape_ascii()))),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "it does not answer with HTTP")),
        }
    }

    /// Tries all addresses of the name.
    fn connect(&self) -> io::Result<TcpStream> {
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_as_other_exporters_take_them() {
        for (text, expected) in [
            ("http://collector", "http://collector:4318/v1/traces"),
            ("http://127.0.0.1:80/", "http://127.0.0.1:80/v1/traces"),
            ("http://[fd00::1]", "http://[fd00::1]:4318/v1/traces"),
            ("http://[fd00::1]:9/otlp", "http://[fd00::1]:9/otlp/v1/traces"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), expected);
        }
        for wrong in [
            "collector:4318",
            "https://collector",
            "http://",
            "http://a:x",
            "http://a b",
            "http://u@a",
            "http://fd00::1",
        ] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
    }
}
