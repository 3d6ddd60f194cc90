//! `/healthz` and `/livez` as kube-proxy answers them, and `/readyz`. Details that kube-proxy does not have are under the
//! key `ferroxy`.
//!
//! | | fails when | who acts |
//! |---|---|---|
//! | `/healthz` | changes wait for too long, a thread ended, or the node is about to be removed | load balancers leave the node |
//! | `/livez` | changes wait for too long, or a thread ended | the kubelet restarts the proxy |
//! | `/readyz` | the first sync is not done, or the source does not report changes | rollouts wait |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde::Serialize;
use tokio::time::sleep;

use super::http::{self, Answer, Handler};
use super::moment::Moment;
use super::status::{Now, Status, Watch};

/// Failing objects beyond this number are counted, not listed.
const MOST_LISTED: usize = 20;

/// The kubelet probes as soon as the process runs, and reports every 503 as an Event. So until the proxy has been ready once,
/// `/readyz` waits up to this long before it answers. The probes in `deploy/` allow five seconds.
const FIRST_READY_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub fn handler(status: Arc<Status>) -> Handler {
    Arc::new(move |request| {
        let status = Arc::clone(&status);
        match request.uri().path() {
            "/readyz" => Box::pin(async move {
                first_ready(&status, FIRST_READY_WITHIN).await;
                respond(&status, "/readyz")
            }),
            path => http::at_once(respond(&status, path)),
        }
    })
}

/// Returns when the proxy is ready, was ready before or has failed, or after `patience`.
async fn first_ready(status: &Status, patience: Duration) {
    let deadline = Instant::now() + patience;
    while is_starting(&mut status.refreshed()) && Instant::now() < deadline {
        sleep(LOOK_AGAIN).await;
    }
}

fn is_starting(now: &mut Now) -> bool {
    now.was_ready |= now.is_ready(Moment::now());
    !now.was_ready && now.health.failing().is_empty() && now.source.ended.is_none()
}

fn respond(status: &Status, path: &str) -> Answer {
    let mut now = status.refreshed();
    let (path, question) = match path {
        "/healthz" => ("/healthz", Question::Healthy),
        "/livez" => ("/livez", Question::Alive),
        "/readyz" => ("/readyz", Question::Ready),
        _ => return http::not_found(),
    };
    let (code, answer) = answer(&now, question, Moment::now());
    *now.counts.health_answers.entry((path, code.as_u16())).or_default() += 1;
    answer
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// `/healthz`: may traffic be sent to this node?
    Healthy,
    /// `/livez`: does the proxy do its work?
    Alive,
    /// `/readyz`: is the first sync done, and does the source report changes?
    Ready,
}

/// The first five fields are kube-proxy's.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    status: BTreeMap<String, FamilyBody>,
    ferroxy: More,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct More {
    ready: bool,
    first_sync_done: bool,
    /// Seconds since the kernel last accepted a change; null before the first sync.
    last_apply_age_seconds: Option<f64>,
    source_alive: bool,
    /// Seconds since the last sign of life of the source.
    source_age_seconds: Option<f64>,
    /// The same for each kind of object, if the source is an API server.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    watches: Vec<WatchBody>,
    queue_length: usize,
    failing_count: usize,
    failing: Vec<Failing>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WatchBody {
    resource: &'static str,
    alive: bool,
    age_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Failing {
    object: String,
    reason: String,
}

fn answer(now: &Now, question: Question, moment: Moment) -> (StatusCode, Answer) {
    let healthy = now.is_healthy(moment);
    let is_well = match question {
        Question::Healthy => healthy && now.node_eligible,
        Question::Alive => healthy,
        Question::Ready => now.is_ready(moment),
    };
    let updated = now.health.updated();
    // kube-proxy reports the present time while it is healthy; clients rely on it.
    let last_updated = if is_well && question != Question::Ready { moment } else { updated };
    let of_family = || FamilyBody { last_updated: updated.rfc3339(), healthy };
    let body = Body {
        last_updated: last_updated.rfc3339(),
        current_time: moment.rfc3339(),
        node_eligible: (question == Question::Healthy).then_some(now.node_eligible),
        healthy,
        status: now.families.iter().map(|family| (family.to_string(), of_family())).collect(),
        ferroxy: more(now, moment),
    };
    let code = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // A struct of plain values always becomes JSON.
    let json = serde_json::to_vec(&body).unwrap_or_default();
    (code, http::answer(code, http::JSON, json))
}

fn more(now: &Now, moment: Moment) -> More {
    let services = now.refused.iter().map(|(name, reason)| (format!("Service {name}"), reason));
    let services = services.map(|(object, reason)| (object, reason.as_str()));
    let failing = now.health.failing();
    let steps = failing.iter().map(|(step, failing)| (step.words().to_owned(), failing.reason.as_str()));
    let source = now.source.ended.map(|why| ("source".to_owned(), why));
    let listed = source.into_iter().chain(steps).chain(services).take(MOST_LISTED);
    let seconds = |since: Moment| since.age(moment).as_secs_f64();
    let watch = |watch: &Watch| WatchBody {
        resource: watch.resource,
        alive: watch.alive,
        age_seconds: watch.last_activity.map(seconds),
    };
    More {
        ready: now.is_ready(moment),
        first_sync_done: now.health.first_sync_done(),
        last_apply_age_seconds: now.health.first_sync_done().then(|| seconds(now.health.updated())),
        source_alive: now.source.is_alive(moment),
        source_age_seconds: now.source.state.last_sign.map(seconds),
        watches: now.source.state.watches.iter().map(watch).collect(),
        queue_length: now.progress.waiting,
        failing_count: now.refused.len() + failing.len() + usize::from(now.source.ended.is_some()),
        failing: listed.map(|(object, reason)| Failing { object, reason: reason.to_owned() }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::health::Step;
    use crate::serve::status::SourceState;
    use ferroxy_core::{Family, ServiceName};
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use std::time::UNIX_EPOCH;

    /// A proxy that has started at 2026-11-15T21:48:56Z on an eligible node.
    struct Proxy {
        status: Status,
        started: Moment,
    }

    impl Proxy {
        fn new() -> Proxy {
            let wall = UNIX_EPOCH + Duration::from_secs(1_794_779_336);
            let started = Moment { instant: Instant::now(), wall };
            let status = Status::new(&Family::ALL, Duration::from_secs(30));
            let mut now = status.refreshed();
            now.health = crate::serve::health::Health::new(Duration::from_secs(30), started);
            now.node_eligible = true;
            drop(now);
            Proxy { status, started }
        }

        fn at(&self, seconds: u64) -> Moment {
            let later = Duration::from_secs(seconds);
            Moment { instant: self.started.instant + later, wall: self.started.wall + later }
        }

        /// A source that reports changes, and worked last at this time.
        fn followed_at(&self, seconds: u64) -> SourceState {
            SourceState { last_sign: Some(self.at(seconds)), is_following: true, watches: Vec::new() }
        }

        fn ask(&self, question: Question, seconds: u64) -> (u16, Value) {
            let (code, answer) = answer(&self.status.now(), question, self.at(seconds));
            assert_eq!(answer.headers()["content-type"], "application/json");
            assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let body = runtime.block_on(answer.into_body().collect()).unwrap().to_bytes();
            (code.as_u16(), serde_json::from_slice(&body).unwrap())
        }
    }

    fn without_ours(mut body: Value) -> Value {
        body.as_object_mut().unwrap().remove("ferroxy");
        body
    }

    #[test]
    fn healthy_from_the_start_and_ready_later() {
        let proxy = Proxy::new();
        let (code, body) = proxy.ask(Question::Healthy, 5);
        let family = json!({ "lastUpdated": "2026-11-15T21:48:56Z", "healthy": true });
        let expected = json!({
            "lastUpdated": "2026-11-15T21:49:01Z", "currentTime": "2026-11-15T21:49:01Z",
            "nodeEligible": true, "healthy": true, "status": { "IPv4": family, "IPv6": family },
        });
        assert_eq!((code, without_ours(body)), (200, expected));
        assert_eq!(proxy.ask(Question::Ready, 5).0, 503);
        proxy.status.now().health.done(Step::Start, proxy.at(6));
        assert_eq!(proxy.ask(Question::Ready, 7).0, 503, "the source has not reported anything");
        proxy.status.now().source.state = proxy.followed_at(7);
        assert_eq!(proxy.ask(Question::Ready, 7).0, 200);
    }

    #[test]
    fn a_silent_source_is_only_not_ready() {
        let proxy = Proxy::new();
        proxy.status.now().health.done(Step::Start, proxy.at(1));
        proxy.status.now().source.state = proxy.followed_at(10);
        assert_eq!(proxy.ask(Question::Ready, 69).0, 200);
        assert_eq!(proxy.ask(Question::Ready, 70).0, 503, "no sign of life for a minute");
        assert_eq!(proxy.ask(Question::Healthy, 70).0, 200, "load balancers stay");
        assert_eq!(proxy.ask(Question::Alive, 70).0, 200, "a restart does not help");
    }

    #[test]
    fn readiness_is_awaited_once_and_a_failure_is_answered_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let wait = |status: &Status, patience| runtime.block_on(first_ready(status, patience));
        let for_ever = Duration::from_secs(100_000);
        let (ready, failed) = (Proxy::new(), Proxy::new());
        assert!(is_starting(&mut ready.status.now()));
        wait(&ready.status, Duration::ZERO);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                runtime.block_on(first_ready(&ready.status, for_ever));
            });
            let mut now = ready.status.now();
            now.health.done(Step::Start, Moment::now());
            now.source.state = SourceState { last_sign: Some(Moment::now()), ..ready.followed_at(0) };
            drop(now);
            waiting.join().unwrap();
        });
        ready.status.now().source.state = SourceState::default();
        wait(&ready.status, for_ever);
        failed.status.failed(Step::Start, &"no");
        wait(&failed.status, for_ever);
    }

    #[test]
    fn the_end_of_the_sources_thread_fails_every_check() {
        let proxy = Proxy::new();
        proxy.status.now().health.done(Step::Start, proxy.at(1));
        proxy.status.now().source.state = proxy.followed_at(5);
        assert_eq!(proxy.ask(Question::Ready, 6).0, 200);
        proxy.status.source_ended("the thread has ended");
        for question in [Question::Healthy, Question::Alive, Question::Ready] {
            let (code, body) = proxy.ask(question, 6);
            let failing = json!([{ "object": "source", "reason": "the thread has ended" }]);
            assert_eq!((code, &body["ferroxy"]["failing"]), (503, &failing), "{question:?}");
        }
    }

    #[test]
    fn late_is_unhealthy_and_says_since_when() {
        let proxy = Proxy::new();
        proxy.status.now().health.done(Step::Start, proxy.at(1));
        proxy.status.now().health.failed(Step::Services, "no memory".into(), proxy.at(10));
        assert_eq!(proxy.ask(Question::Alive, 69).0, 200);
        let (code, body) = proxy.ask(Question::Alive, 70);
        let family = json!({ "lastUpdated": "2026-11-15T21:48:57Z", "healthy": false });
        let expected = json!({
            "lastUpdated": "2026-11-15T21:48:57Z", "currentTime": "2026-11-15T21:50:06Z",
            "healthy": false, "status": { "IPv4": family, "IPv6": family },
        });
        let failing = json!([{ "object": "changes of Services", "reason": "no memory" }]);
        assert_eq!(body["ferroxy"]["failing"], failing);
        assert_eq!(body["ferroxy"]["lastApplyAgeSeconds"], json!(69.0));
        assert_eq!((code, without_ours(body)), (503, expected));
    }

    #[test]
    fn a_node_that_goes_away_is_only_unfit_for_traffic() {
        let proxy = Proxy::new();
        proxy.status.now().node_eligible = false;
        let (code, body) = proxy.ask(Question::Healthy, 1);
        assert_eq!((code, &body["nodeEligible"], &body["healthy"]), (503, &json!(false), &json!(true)));
        assert_eq!(proxy.ask(Question::Alive, 1).0, 200);
    }

    #[test]
    fn readiness_needs_every_watch_and_the_body_names_them() {
        let proxy = Proxy::new();
        proxy.status.now().health.done(Step::Start, proxy.at(1));
        let watch = |resource, alive, last: Option<u64>| Watch {
            resource,
            alive,
            last_activity: last.map(|seconds| proxy.at(seconds)),
        };
        let watches = vec![watch("services", true, Some(5)), watch("endpointslices", false, None)];
        proxy.status.now().source.state = SourceState::of_watches(watches);
        let (code, body) = proxy.ask(Question::Ready, 9);
        let expected = json!([
            { "resource": "services", "alive": true, "ageSeconds": 4.0 },
            { "resource": "endpointslices", "alive": false, "ageSeconds": null },
        ]);
        assert_eq!((code, &body["ferroxy"]["watches"]), (503, &expected));
        assert_eq!(body["ferroxy"]["sourceAgeSeconds"], json!(4.0));
        let watches = vec![watch("services", true, Some(5)), watch("endpointslices", true, Some(6))];
        proxy.status.now().source.state = SourceState::of_watches(watches);
        assert_eq!(proxy.ask(Question::Ready, 9).0, 200);
    }

    #[test]
    fn refused_services_are_listed_up_to_a_limit() {
        let proxy = Proxy::new();
        for i in 0..30 {
            proxy.status.now().refused.insert(ServiceName::new("a", &format!("s{i:02}")), "too large".into());
        }
        let (code, body) = proxy.ask(Question::Healthy, 1);
        assert_eq!((code, &body["ferroxy"]["failingCount"]), (200, &json!(30)));
        assert_eq!(body["ferroxy"]["failing"].as_array().unwrap().len(), MOST_LISTED);
        assert_eq!(
            body["ferroxy"]["failing"][0],
            json!({ "object": "Service a/s00", "reason": "too large" })
        );
    }
}
