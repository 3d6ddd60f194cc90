//! A client of the agent's page (docs/api.md): for the commands that show a running node. It decides nothing.

mod http;
mod local;
#[cfg(any(feature = "api", all(feature = "top", target_os = "linux")))]
pub mod rates;

use std::io;

use anyhow::{Context, bail};
use serde_json::Value;

#[cfg(feature = "api")]
pub use local::read_token;
pub use local::{AgentAddress, DEFAULT_PORT, Local};

/// Where answers come from: the agent of this node, or one that is reached through the API server.
pub trait Api {
    /// The answer to `GET` of a path below `/api/v1/`; an error in words if there is none.
    fn get(&self, path: &str) -> anyhow::Result<Value>;

    /// The agent's address, for messages: `127.0.0.1:10261`.
    fn who(&self) -> String;
}

/// The event stream of an agent: `event` and `data` of each event.
pub trait Follow {
    /// Calls back for each event until the connection ends, or until the callback returns `false`.
    fn follow(&self, after: Option<u64>, each: &mut dyn FnMut(&str, &Value) -> bool) -> io::Result<()>;
}

/// The answer of an agent: its value, or the text of its error.
fn value_of(code: u16, body: &[u8], who: &str) -> anyhow::Result<Value> {
    let value: Value = serde_json::from_slice(body)
        .with_context(|| format!("{who}: the answer ({code}) is not that of a Ferroxy agent"))?;
    if code == 200 {
        return Ok(value);
    }
    let message = value["message"].as_str().unwrap_or("no reason given");
    match code {
        401 => bail!("{who}: {message} (--token-file names the file with the token)"),
        _ => bail!("{who}: {message}"),
    }
}

/// A query value, percent-encoded: everything but letters, digits and a few marks becomes `%XX`.
pub fn encoded(text: &str) -> String {
    let mut query = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'/' => query.push(byte.into()),
            _ => query.push_str(&format!("%{byte:02X}")),
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_no_other_marks() {
        assert_eq!(encoded("kube-system/dns"), "kube-system/dns");
        assert_eq!(encoded("[fd00::80]:53/udp&x=ü"), "%5Bfd00%3A%3A80%5D%3A53/udp%26x%3D%C3%BC");
    }

    #[test]
    fn an_error_has_the_words_of_the_agent() {
        let body = br#"{"kind":"Error","code":404,"message":"There is no Service default/wbe."}"#;
        let error = value_of(404, body, "127.0.0.1:10261").unwrap_err();
        assert_eq!(error.to_string(), "127.0.0.1:10261: There is no Service default/wbe.");
        let error = value_of(401, b"{}", "10.0.0.1:10261").unwrap_err().to_string();
        assert!(error.contains("--token-file"), "{error}");
        let error = value_of(200, b"<html>", "10.0.0.1:80").unwrap_err().to_string();
        assert!(error.contains("not that of a Ferroxy agent"), "{error}");
    }
}
