//! All objects that the agent on this node knows, and the ones in force, read part by part.

use anyhow::bail;
use serde_json::{Value, json};

use crate::client::{Api, encoded};
use crate::progress::Step;

#[derive(Debug)]
pub struct Known {
    pub objects: Vec<Value>,
    /// The addresses of the agent's host.
    pub host_addresses: Value,
    /// The Intents that the dataplane has in force.
    pub ledger: Value,
}

pub fn objects(agent: &impl Api, step: &Step) -> anyhow::Result<Known> {
    let (mut objects, mut services, mut after) = (Vec::new(), Vec::new(), String::new());
    let (mut host_addresses, mut node) = (Value::Null, Value::Null);
    loop {
        step.is(format!("reading objects ({} so far)", objects.len()));
        let mut part = agent.get(&format!("objects?limit=1000{after}"))?;
        match part["items"].take() {
            Value::Array(items) => objects.extend(items),
            _ => bail!("{}: the list of objects has no items", agent.who()),
        }
        if let Value::Array(entries) = part["ledger"]["services"].take() {
            services.extend(entries);
        }
        if after.is_empty() {
            (host_addresses, node) = (part["hostAddresses"].take(), part["ledger"]["node"].take());
        }
        match part["next"].as_str() {
            Some(next) => after = format!("&after={}", encoded(next)),
            None => break,
        }
    }
    Ok(Known { objects, host_addresses, ledger: json!({ "node": node, "services": services }) })
}
