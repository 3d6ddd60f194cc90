//! Events for people (`kubectl get events`), in the form that kube-proxy uses. Nothing waits for them; while the API
//! server is unreachable they are lost.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::kube::client::Body;
use http::Request;
use http::header::CONTENT_TYPE;
use serde::Serialize;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::link::{Link, usable};
use crate::occurrence::{Occurrence, Regarding};
use crate::wire::time::write_micros;

const QUEUE: usize = 64;
/// An event is not repeated within this time.
const SILENCE: Duration = Duration::from_secs(600);
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(10);
/// The API rejects longer notes.
const LONGEST_NOTE: usize = 1024;
const LONGEST_INSTANCE: usize = 128;
const LONGEST_NAME: usize = 253;
const CONTROLLER: &str = "kube-proxy";

/// Sends occurrences to the API server, in the background.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: Sender<Occurrence>,
}

impl Recorder {
    /// Never blocks. Drops the event if too many are waiting.
    pub fn emit(&self, occurrence: Occurrence) {
        if let Err(error) = self.queue.try_send(occurrence) {
            debug!(%error, "event dropped");
        }
    }

    pub(super) fn new() -> (Recorder, Receiver<Occurrence>) {
        let (queue, occurrences) = mpsc::channel(QUEUE);
        (Recorder { queue }, occurrences)
    }
}

/// Sends the emitted events. Ends when all recorders are dropped.
pub(super) async fn record(mut occurrences: Receiver<Occurrence>, link: Rc<Link>, node_name: String) {
    let instance = format!("{CONTROLLER}-{}", ferroxy_platform::host::name().unwrap_or(node_name));
    let mut leases = link.leases();
    let mut recent = Recent::default();
    while let Some(occurrence) = occurrences.recv().await {
        if !recent.is_new(&occurrence, Instant::now()) {
            continue;
        }
        #[allow(clippy::disallowed_methods, reason = "for people")]
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let event = Event::new(&occurrence, &instance, since_1970);
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            let lease = usable(&mut leases).await;
            match post(&link, &lease, &event).await {
                Posted::Done => break,
                Posted::Refused(reason) => {
                    debug!(reason, event.reason, "event refused");
                    break;
                }
                Posted::Failed(reason) if attempt == ATTEMPTS => {
                    debug!(reason, event.reason, "event dropped")
                }
                Posted::Failed(_) => {
                    sleep(pause).await;
                    pause *= 2;
                }
            }
        }
    }
}

enum Posted {
    Done,
    Refused(String),
    Failed(String),
}

async fn post(link: &Link, lease: &super::link::Lease, event: &Event<'_>) -> Posted {
    let target = format!("/apis/events.k8s.io/v1/namespaces/{}/events", event.metadata.namespace);
    let body = match serde_json::to_vec(event) {
        Ok(body) => body,
        Err(error) => return Posted::Refused(error.to_string()),
    };
    let request = match Request::post(target).header(CONTENT_TYPE, "application/json").body(Body::from(body))
    {
        Ok(request) => request,
        Err(error) => return Posted::Refused(error.to_string()),
    };
    match timeout(LIMIT * 2, link.send(lease, request, LIMIT)).await {
        Err(_) => Posted::Failed("waited too long".to_owned()),
        Ok(Err(reason)) => Posted::Failed(reason),
        Ok(Ok(response)) => match response.status().as_u16() {
            // 409: an earlier attempt did arrive.
            200..=299 | 409 => Posted::Done,
            code @ (401 | 429 | 500..) => Posted::Failed(format!("answered {code}")),
            code => Posted::Refused(format!("answered {code}")),
        },
    }
}

/// The events of the last minutes.
#[derive(Debug, Default)]
struct Recent(HashMap<(Regarding, String, String, String), Instant>);

impl Recent {
    fn is_new(&mut self, occurrence: &Occurrence, now: Instant) -> bool {
        self.0.retain(|_, at| now.saturating_duration_since(*at) < SILENCE);
        let Occurrence { regarding, reason, action, about, .. } = occurrence;
        let key = (regarding.clone(), reason.clone(), action.clone(), about.clone());
        let new = !self.0.contains_key(&key);
        if new {
            self.0.insert(key, now);
        }
        new
    }
}

/// An `events.k8s.io/v1` Event.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata<'a>,
    event_time: String,
    reporting_controller: &'static str,
    reporting_instance: &'a str,
    action: &'a str,
    reason: &'a str,
    regarding: Reference<'a>,
    note: &'a str,
    r#type: &'static str,
}

#[derive(Debug, Serialize)]
struct Metadata<'a> {
    name: String,
    namespace: &'a str,
}

#[derive(Debug, Serialize)]
struct Reference<'a> {
    kind: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    uid: String,
}

impl<'a> Event<'a> {
    fn new(occurrence: &'a Occurrence, instance: &'a str, since_1970: Duration) -> Event<'a> {
        // The uids are not those of the objects, which a proxy does not read: kube-proxy writes the same.
        let regarding = match &occurrence.regarding {
            Regarding::Node(name) => Reference { kind: "Node", name, namespace: "", uid: name.clone() },
            Regarding::Service { namespace, name } => {
                Reference { kind: "Service", name, namespace, uid: format!("{namespace}/{name}") }
            }
        };
        let namespace = if regarding.namespace.is_empty() { "default" } else { regarding.namespace };
        Event {
            api_version: "events.k8s.io/v1",
            kind: "Event",
            metadata: Metadata { name: event_name(regarding.name, since_1970), namespace },
            event_time: write_micros(since_1970),
            reporting_controller: CONTROLLER,
            reporting_instance: cut(instance, LONGEST_INSTANCE),
            action: &occurrence.action,
            reason: &occurrence.reason,
            regarding,
            note: cut(&occurrence.note, LONGEST_NOTE),
            r#type: if occurrence.warning { "Warning" } else { "Normal" },
        }
    }
}

/// `ka.17a3…`: unique, and a DNS name however long the name of the object is.
fn event_name(of: &str, since_1970: Duration) -> String {
    let number = format!("{:x}", since_1970.as_nanos());
    let room = LONGEST_NAME - 1 - number.len();
    format!("{}.{number}", cut(of, room).trim_end_matches(['.', '-']))
}

fn cut(text: &str, longest: usize) -> &str {
    &text[..text.floor_char_boundary(longest)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn occurrence(regarding: Regarding) -> Occurrence {
        Occurrence {
            regarding,
            reason: "Starting".into(),
            action: "StartKubeProxy".into(),
            about: String::new(),
            note: "n".repeat(1023) + "é",
            warning: false,
        }
    }

    #[test]
    fn events_have_the_form_of_kube_proxy() {
        let node = occurrence(Regarding::Node("ka".into()));
        let written =
            serde_json::to_value(Event::new(&node, "kube-proxy-ka", Duration::from_micros(1))).unwrap();
        let expected = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "ka.3e8", "namespace": "default"},
            "eventTime": "1970-01-01T00:00:00.000001Z",
            "reportingController": "kube-proxy", "reportingInstance": "kube-proxy-ka",
            "action": "StartKubeProxy", "reason": "Starting", "note": "n".repeat(1023), "type": "Normal",
            "regarding": {"kind": "Node", "name": "ka", "uid": "ka"},
        });
        assert_eq!(written, expected);
        let mut service = occurrence(Regarding::Service { namespace: "n".into(), name: "s".into() });
        service.warning = true;
        let written = serde_json::to_value(Event::new(&service, "i", Duration::ZERO)).unwrap();
        assert_eq!(written["metadata"]["namespace"], "n");
        assert_eq!(written["type"], "Warning");
        assert_eq!(
            written["regarding"],
            json!({"kind": "Service", "name": "s", "namespace": "n", "uid": "n/s"})
        );
    }

    /// Names of Nodes may be as long as the API lets any name be.
    #[test]
    fn a_long_node_name_does_not_make_the_event_invalid() {
        let name = format!("{}.{}", "n".repeat(235), "m".repeat(17));
        let node = occurrence(Regarding::Node(name.clone()));
        let now = Duration::from_secs(1_800_000_000);
        let written = serde_json::to_value(Event::new(&node, &name, now)).unwrap();
        assert_eq!(written["metadata"]["name"], format!("{}.18fae27693b40000", "n".repeat(235)));
        assert_eq!(written["reportingInstance"], "n".repeat(128));
        assert_eq!(written["regarding"]["name"], name);
    }

    #[test]
    fn an_event_is_not_repeated_for_ten_minutes() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        let node = occurrence(Regarding::Node("ka".into()));
        let other = Occurrence { reason: "Other".into(), ..node.clone() };
        let minutes = |count: u64| now + Duration::from_secs(60 * count);
        assert!(recent.is_new(&node, now));
        assert!(recent.is_new(&other, now));
        assert!(recent.is_new(&Occurrence { about: "10.0.0.1:80/tcp".into(), ..node.clone() }, now));
        assert!(!recent.is_new(&Occurrence { note: String::new(), ..node.clone() }, minutes(9)));
        assert!(recent.is_new(&node, minutes(10)));
        assert!(!recent.is_new(&node, minutes(19)));
    }

    #[test]
    fn a_full_queue_does_not_block() {
        let (recorder, occurrences) = Recorder::new();
        for _ in 0..2 * QUEUE {
            recorder.emit(occurrence(Regarding::Node("ka".into())));
        }
        assert_eq!(occurrences.len(), QUEUE);
    }
}
