//! The agent on this node, at the address of its page.

use std::io::{self, BufRead};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use super::{Api, Follow, http, value_of};

/// The port of the page unless the address has one. Not 10257 to 10260, which components of the control plane use.
pub const DEFAULT_PORT: u16 = 10261;

/// A line of an event stream is one entry or one status.
const LONGEST_LINE: usize = 1 << 20;

/// How a command finds the agent.
#[derive(Debug, Clone, Args)]
pub struct AgentAddress {
    /// Address of the agent's page, as its --page-address says: IP, or IP:port
    #[arg(long, value_name = "ADDRESS", default_value = AgentAddress::USUAL)]
    pub agent: String,
    /// File with the token of the page, if the agent has one
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
}

impl AgentAddress {
    /// The default address of an agent's page.
    pub const USUAL: &str = "127.0.0.1";

    pub fn open(&self) -> anyhow::Result<Local> {
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        Ok(Local { address: address(&self.agent)?, token })
    }
}

/// The agent that serves its page at an address of this node.
#[derive(Debug, Clone)]
pub struct Local {
    address: SocketAddr,
    token: Option<String>,
}

impl Local {
    pub fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// Whether a program listens there.
    pub fn is_there(&self) -> bool {
        http::is_there(self.address)
    }

    /// An error that says what to do when nothing answers there.
    fn unreachable(&self, error: &io::Error) -> anyhow::Error {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return anyhow::anyhow!(
                "the agent at {} does not answer in time: it may hang or be overloaded; look at its log and its /livez",
                self.address
            );
        }
        anyhow::anyhow!(
            "no agent answers at {} ({error}): start it with --page-address={}, or name its address with --agent",
            self.address,
            self.address
        )
    }
}

impl Local {
    /// The page of metrics as text, or the reason why it is not available. `configuration` says where it is served.
    pub fn metrics(&self, configuration: &Value) -> Value {
        let place = configuration["metricsBindAddress"].as_str().unwrap_or_default();
        let page = address(place).map_err(|_| format!("metricsBindAddress `{place}` is no address"));
        let page = page.and_then(|it| http::get(it, "/metrics", None).map_err(|error| error.to_string()));
        match page {
            Ok((200, body)) => String::from_utf8_lossy(&body).into(),
            Ok((code, _)) => format!("# not read: {place} answers {code}").into(),
            Err(reason) => format!("# not read: {reason}").into(),
        }
    }
}

impl Api for Local {
    fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = http::get(self.address, &format!("/api/v1/{path}"), self.token.as_deref());
        let (code, body) = answer.map_err(|error| self.unreachable(&error))?;
        value_of(code, &body, &self.who())
    }

    fn who(&self) -> String {
        self.address.to_string()
    }
}

impl Follow for Local {
    fn follow(&self, after: Option<u64>, each: &mut dyn FnMut(&str, &Value) -> bool) -> io::Result<()> {
        let after = after.map(|number| format!("?after={number}")).unwrap_or_default();
        let path = format!("/api/v1/events{after}");
        let (code, mut lines) = http::lines(self.address, &path, self.token.as_deref())?;
        if code != 200 {
            return Err(io::Error::other(format!("{} answers {code}", self.address)));
        }
        let (mut event, mut line) = (String::new(), String::new());
        loop {
            line.clear();
            if io::Read::take(&mut lines, LONGEST_LINE as u64).read_line(&mut line)? == 0 {
                return Ok(());
            }
            let text = line.trim_end();
            if let Some(name) = text.strip_prefix("event: ") {
                name.clone_into(&mut event);
            } else if let Some(data) = text.strip_prefix("data: ") {
                let data: Value = serde_json::from_str(data)?;
                if !each(&event, &data) {
                    return Ok(());
                }
            }
        }
    }
}

/// The port is [`DEFAULT_PORT`] unless there is one; a wildcard address is reached on loopback.
fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let port = text.strip_prefix("localhost").filter(|rest| rest.is_empty() || rest.starts_with(':'));
    let numbers = port.map_or_else(|| text.to_owned(), |port| format!("{}{port}", Ipv4Addr::LOCALHOST));
    let with_port = numbers.parse::<SocketAddr>();
    let parsed = with_port
        .or_else(|_| numbers.parse::<IpAddr>().map(|address| SocketAddr::new(address, DEFAULT_PORT)));
    let mut address =
        parsed.with_context(|| format!("--agent: `{text}` is neither an IP address nor one with a port"))?;
    if address.ip().is_unspecified() {
        let is_v4 = address.is_ipv4();
        address.set_ip(if is_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    Ok(address)
}

/// The token in a file, in the form of a header value.
pub fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("--token-file: cannot read {}", path.display()))?;
    let token = text.trim();
    // The token becomes part of a header line of the request.
    let is_printable = token.bytes().all(|byte| byte.is_ascii_graphic());
    anyhow::ensure!(
        is_printable && !token.is_empty(),
        "--token-file: {} holds no token: 16 to 512 printable characters",
        path.display()
    );
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_the_agent_takes_them() {
        for (text, expected) in [
            ("127.0.0.1", "127.0.0.1:10261"),
            ("::1", "[::1]:10261"),
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("192.0.2.1:81", "192.0.2.1:81"),
            ("localhost", "127.0.0.1:10261"),
            ("localhost:82", "127.0.0.1:82"),
        ] {
            assert_eq!(address(text).unwrap(), expected.parse().unwrap());
        }
        for text in ["nowhere:80", "localhostile"] {
            let error = address(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--agent: `{text}`")), "{error}");
        }
    }

    #[test]
    fn a_token_is_one_printable_word() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (content, is_fine) in [("0123456789abcdef\n", true), ("two words here!!", false), ("\n", false)] {
            std::fs::write(file.path(), content).unwrap();
            assert_eq!(read_token(file.path()).is_ok(), is_fine, "{content:?}");
        }
    }
}
