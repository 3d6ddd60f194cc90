//! Whether the agent on this node really translates the sockets of a Service's clients. Only the agent knows that.

use ferroxy_core::ServiceName;
use serde_json::Value;

use super::agent_page::page;
use super::input::Settings;
use crate::wrapper;

/// In words; `None` if no sockets are to be translated, or for a bundle.
pub(super) fn in_force(service: &ServiceName, settings: &Settings) -> Option<String> {
    if settings.recorded.is_some() || !wrapper::is_on(&settings.config.sockets) {
        return None;
    }
    Some(match page(settings) {
        Ok((page, address)) if page.is_null() => {
            format!("not known: the server at {address} is not a Ferroxy agent")
        }
        Ok((page, _)) => words(&page["sockets"], service),
        Err(reason) => format!("not known: {reason}"),
    })
}

/// `sockets`: the agent's report about sockets.
fn words(sockets: &Value, service: &ServiceName) -> String {
    let Some(clients) = sockets["clients"].as_array() else {
        return "no, the agent on this node runs without --accelerate-sockets".to_owned();
    };
    let left_out = sockets["leftOut"].as_array().map_or(&[][..], Vec::as_slice);
    if let Some(it) = left_out.iter().find(|it| it["service"] == service.as_str()) {
        return format!("no, packet rules only: {}", text(&it["reason"]));
    }
    let client = |it: &Value| match it["translated"].as_bool() {
        Some(true) => format!("{}: yes", text(&it["clients"])),
        _ => format!("{}: no, {}", text(&it["clients"]), text(&it["reason"])),
    };
    let mut words: Vec<String> = clients.iter().map(client).collect();
    let unlisted = sockets["leftOutCount"].as_u64().unwrap_or_default().saturating_sub(left_out.len() as u64);
    if unlisted > 0 {
        words
            .push(format!("{unlisted} more Services, which the agent does not name, have packet rules only"));
    }
    words.join("; ")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_agent_says_is_repeated() {
        let web = ServiceName::new("default", "web");
        let report = |left_out: Value, count: u64| {
            json!({
                "clients": [
                    { "clients": "host", "translated": false, "reason": "the self-test failed" },
                    { "clients": "pods", "translated": true, "reason": null },
                ],
                "leftOut": left_out,
                "leftOutCount": count,
            })
        };
        assert_eq!(words(&report(json!([]), 0), &web), "host: no, the self-test failed; pods: yes");
        let this = json!([{ "service": "default/web", "reason": "more than 8 elements are needed" }]);
        assert_eq!(words(&report(this, 1), &web), "no, packet rules only: more than 8 elements are needed");
        let other = json!([{ "service": "default/other", "reason": "no room" }]);
        let expected = "host: no, the self-test failed; pods: yes; 2 more Services, which the agent does not name, have packet rules only";
        assert_eq!(words(&report(other, 3), &web), expected);
        assert_eq!(words(&Value::Null, &web), "no, the agent on this node runs without --accelerate-sockets");
    }
}
