//! The paths of the API: reads requests and answers them. `view/` has the JSON.

use std::sync::Arc;
use std::time::Duration;

use ferroxy_core::explain::{Finding, Standing};
use ferroxy_core::{Intent, ServiceName};
use ferroxy_dataplane::Mode;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde_json::Value;

use super::lists::{MOST, USUAL};
use super::query::{Query, bad, decoded, service};
use super::{Page, Refused, events};
use crate::agent::questions::{Explained, InForce, MOST_SERVICES, Question};
use crate::config::Config;
use crate::journal;
use crate::packet::Asked;
use crate::serve::http::{self, Answer, Pending};
use crate::view;
use crate::view::explanation::{OnHost, retried};

/// How long an answer about the status waits until Services with problems are counted for the first time.
const COUNTING: Duration = Duration::from_secs(1);

/// Entries of the journal in one answer, unless the request says how many.
const USUAL_ENTRIES: usize = 200;

pub fn answer(page: &Arc<Page>, request: &Request<Incoming>) -> Pending {
    let page = Arc::clone(page);
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().map(str::to_owned));
    if path == "/api/v1/events" {
        let last = request.headers().get("last-event-id").and_then(|it| it.to_str().ok()).map(str::to_owned);
        let is_head = request.method() == Method::HEAD;
        return http::at_once(
            events::answer(&page, query.as_deref(), last.as_deref(), is_head)
                .unwrap_or_else(|refused| refused.answer()),
        );
    }
    Box::pin(async move {
        match page.find(&path, query.as_deref()).await {
            Ok(answer) => answer,
            Err(refused) => refused.answer(),
        }
    })
}

/// An answer that can be written without delay.
fn json(value: &Value) -> Answer {
    http::answer(StatusCode::OK, http::JSON, value.to_string())
}

/// An answer that takes a while to write.
async fn written(make: impl FnOnce() -> Value + Send + 'static) -> Result<Answer, Refused> {
    Ok(http::elsewhere(move || json(&make())).await)
}

impl Page {
    async fn find(self: &Arc<Page>, path: &str, query: Option<&str>) -> Result<Answer, Refused> {
        let query = |known: &[&str]| Query::read(query, known);
        match path.strip_prefix("/api/v1/") {
            Some("status") => {
                query(&[])?;
                self.count_problems(COUNTING).await;
                Ok(json(&self.status_value()))
            }
            Some("config") => {
                query(&[])?;
                let configuration = self.config().to_json();
                Ok(json(&view::document(
                    "Configuration",
                    serde_json::json!({ "configuration": configuration }),
                )))
            }
            Some("services") => self.services(query(&["after", "limit", "name"])?).await,
            Some("traffic") => self.traffic(query(&["name"])?).await,
            Some("trace") => self.trace(query(&["from", "to", "interface"])?).await,
            Some("journal") => self.journal(query(&["after", "limit"])?).await,
            Some("objects") => self.objects(query(&["after", "limit"])?).await,
            Some(other) => match other.strip_prefix("services/") {
                Some(name) => {
                    query(&[])?;
                    self.explain(service("the path", &decoded(name)?)?).await
                }
                None => Err(unknown_path(path)),
            },
            None => Err(unknown_path(path)),
        }
    }

    async fn services(&self, query: Query) -> Result<Answer, Refused> {
        let names = query.all("name").map(|text| service("name", text)).collect::<Result<Vec<_>, _>>()?;
        if names.len() > MOST_SERVICES {
            return Err(bad(format!("name: more than {MOST_SERVICES} Services at a time")));
        }
        let part = if names.is_empty() {
            let (after, limit) = (query.service("after")?, query.number("limit")?.unwrap_or(USUAL));
            let question = |after, limit, reply| Question::Services { after, limit, reply };
            self.parts(after, limit, question).await?
        } else {
            self.asker.ask(|reply| Question::Named { names, reply }).await?
        };
        written(move || {
            let items = part.items.iter().map(view::services::row).collect();
            view::services::list(items, part.next.as_ref())
        })
        .await
    }

    async fn explain(self: &Arc<Page>, name: ServiceName) -> Result<Answer, Refused> {
        let explained = self.asker.ask(|reply| Question::Explain { name, reply }).await?;
        if let Standing::Unknown { .. } = explained.explanation.standing {
            let words = |it: &Finding| format!("{} {}", it.problem, it.fix);
            let words: Vec<String> = explained.explanation.findings.iter().map(words).collect();
            return Err(Refused::new(StatusCode::NOT_FOUND, words.join(" ")));
        }
        let page = Arc::clone(self);
        written(move || explanation(*explained, &page.config(), page.mode)).await
    }

    async fn traffic(self: &Arc<Page>, query: Query) -> Result<Answer, Refused> {
        let (page, name) = (Arc::clone(self), query.service("name")?);
        written(move || {
            let totals = page.traffic.totals(&page.status, name.as_ref());
            view::traffic::traffic(totals.as_ref(), page.started)
        })
        .await
    }

    /// Renders only Services that may affect the packet.
    async fn trace(self: &Arc<Page>, query: Query) -> Result<Answer, Refused> {
        let text = |name: &str| query.one(name).filter(|text| !text.is_empty()).map(str::to_owned);
        let needed = |name: &str| text(name).ok_or_else(|| bad(format!("{name}: the parameter is missing")));
        let asked = Asked { from: needed("from")?, to: needed("to")?, interface: text("interface") };
        let question = |reply| Question::Packet { asked: asked.clone(), reply };
        let described = self.asker.ask(question).await?.map_err(bad)?;
        let mut intent = Intent { node: described.node, ..Intent::default() };
        let (mut after, packet) = (None, &described.packet);
        loop {
            let question = |reply| Question::Concerned { packet: packet.clone(), after, reply };
            let part = self.asker.ask(question).await?;
            intent.services.extend(part.items.into_iter().map(|it| (it.name.clone(), it)));
            after = part.next;
            if after.is_none() {
                break;
            }
        }
        let (page, mut packet, addresses) = (Arc::clone(self), described.packet, described.host_addresses);
        written(move || {
            let ruleset = page.config().ruleset(page.mode, &intent, &addresses);
            let trace = asked.trace(&*ruleset, &mut packet);
            view::trace::to_json(&packet, &trace)
        })
        .await
    }

    async fn journal(&self, query: Query) -> Result<Answer, Refused> {
        let limit = query.number("limit")?.unwrap_or(USUAL_ENTRIES).clamp(1, journal::MOST);
        let Some(journal) = &self.status.journal else { return Err(unknown_path("/api/v1/journal")) };
        let part = match query.number("after")? {
            Some(after) => journal.after(after, limit),
            None => journal.newest(limit),
        };
        written(move || view::entry::journal(&part)).await
    }

    async fn objects(&self, query: Query) -> Result<Answer, Refused> {
        let (after, limit) =
            (query.service("after")?, query.number("limit")?.unwrap_or(USUAL).clamp(1, MOST));
        let host = match &after {
            None => self.asker.ask(|reply| Question::HostAddresses { reply }).await?,
            Some(_) => None,
        };
        let question = |after, limit, reply| Question::Objects { after, limit, reply };
        let part = self.parts(after, limit, question).await?;
        written(move || view::objects::list(part.items, part.next.as_ref(), host)).await
    }
}

fn explanation(explained: Explained, config: &Config, mode: &Mode) -> Value {
    let Explained { mut explanation, desired, in_force, shortcomings, node, host_addresses } = explained;
    let (words, problem) = in_force.words(&explanation.service);
    explanation.findings.extend(problem.filter(|_| desired.is_some()));
    let traits = desired.as_ref().map(|service| {
        let services = [(explanation.service.clone(), Arc::clone(service))].into();
        let alone = Intent { node, services };
        config.ruleset(mode, &alone, &host_addresses).traits_of(service, Some(&shortcomings))
    });
    let kernel = desired.map(|_| words);
    let on_host = OnHost { kernel, traits: traits.unwrap_or_default(), verdicts: None };
    view::explanation::to_json(&explanation, &on_host)
}

impl InForce {
    /// How much of a Service is in force, in words, and a problem if the kernel refused it.
    fn words(self, service: &ServiceName) -> (String, Option<Finding>) {
        match self {
            InForce::All => ("yes, the kernel has acknowledged all of it".to_owned(), None),
            InForce::NotYet => ("not yet: a change waits to be programmed".to_owned(), None),
            InForce::Refused(reason) => {
                let problem = format!("The kernel refused the Service: {reason}.");
                (format!("no: {reason}"), Some(Finding { problem, fix: retried(service) }))
            }
        }
    }
}

fn unknown_path(path: &str) -> Refused {
    Refused::new(StatusCode::NOT_FOUND, format!("there is nothing at {path}; docs/api.md lists all paths"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Flags;
    use crate::modes::Modes;
    use ferroxy_core::event::{Service, ServicePort};
    use ferroxy_core::explain::explain;
    use ferroxy_core::{Cause, Diagnostic, Event, Facts, NodeIntent, Object, Policy, resolve};
    use ferroxy_dataplane::testing::MEMORY;

    static LIST: [&Mode; 1] = [&MEMORY];

    /// A ruleset alone can only assume the newest kind of host; the dataplane has queried this one.
    #[test]
    fn a_service_has_the_limits_that_the_dataplane_found() {
        let name = ServiceName::new("default", "web");
        let limit = Diagnostic {
            object: Object::service(&name),
            field: "spec.sessionAffinity".to_owned(),
            reason: "this host has no session affinity".to_owned(),
            effect: "clients change endpoints".to_owned(),
            cause: Cause::Field,
        };
        let flags = Flags::parse(["--proxy-mode=memory".into()], Modes(&LIST)).unwrap();
        let (config, _) = Config::load(&flags, Modes(&LIST)).unwrap();
        let mut facts = Facts::new(Policy::default());
        facts.apply(Event::Service(Service {
            namespace: "default".into(),
            name: "web".into(),
            cluster_ip: "10.96.0.80".into(),
            cluster_ips: vec!["10.96.0.80".into()],
            ports: vec![ServicePort { port: 80, protocol: "TCP".into(), ..ServicePort::default() }],
            ..Service::default()
        }));
        let explained = Explained {
            explanation: explain(&facts, &name),
            desired: resolve::service(&facts, &name).intent.map(Arc::new),
            in_force: InForce::All,
            shortcomings: vec![limit],
            node: NodeIntent::default(),
            host_addresses: Vec::new(),
        };
        let value = explanation(explained, &config, &MEMORY);
        let expected = serde_json::json!([{ "name": "limit", "value": "this host has no session affinity" }]);
        assert_eq!(value["traits"], expected);
    }
}
