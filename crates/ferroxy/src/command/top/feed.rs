//! Asks the agent on a thread of its own, so that keys never wait for an answer.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::model::Model;
use crate::client::rates::{Rates, rates};
use crate::client::{Api, Local, encoded};

/// All Services are listed again after this many intervals: there may be 10,000 of them, and rates change faster.
const LIST_EVERY: u32 = 5;

/// The most parts of a list: 100,000 Services.
const MOST_PARTS: usize = 100;

/// News for the model.
pub enum News {
    Failed(String),
    Status(Value),
    Services(Vec<Value>),
    Traffic { is_counted: bool, rates: Rates },
    Details { name: String, service: Result<Value, String>, rates: Rates },
}

impl News {
    /// `known`: the latest rates of all Services, kept between calls.
    pub fn tell(self, model: &mut Model, known: &mut Rates) {
        model.error = None;
        match self {
            News::Failed(error) => model.error = Some(ferroxy_core::foreign::printable(&error).into_owned()),
            News::Status(status) => model.status(&status),
            News::Services(items) => model.services(&items, known),
            News::Traffic { is_counted, rates } => {
                model.is_counted = is_counted;
                model.rates(&rates);
                *known = rates;
            }
            News::Details { name, service, rates } => model.details(&name, &service, &rates),
        }
    }
}

/// The thread ends when the receiver of its news, or the sender of wishes, is gone.
pub struct Feed {
    pub news: Receiver<News>,
    /// The Service whose endpoints are wanted.
    pub wishes: Sender<Option<String>>,
}

impl Feed {
    pub fn start(agent: Local, interval: Duration) -> std::io::Result<Feed> {
        let (send, news) = channel();
        let (wishes, wished) = channel();
        let work = move || {
            let mut asker = Asker { agent, send, traffic: Value::Null, of_service: Value::Null };
            asker.work(&wished, interval);
        };
        thread::Builder::new().name("feed".to_owned()).spawn(work)?;
        Ok(Feed { news, wishes })
    }
}

struct Asker {
    agent: Local,
    send: Sender<News>,
    /// The last answers, for rates.
    traffic: Value,
    of_service: Value,
}

/// The program has ended.
struct Ended;

impl Asker {
    fn work(&mut self, wished: &Receiver<Option<String>>, interval: Duration) {
        let (mut round, mut open) = (0, None);
        loop {
            if self.round(round % LIST_EVERY == 0, open.as_deref()).is_err() {
                return;
            }
            match wished.recv_timeout(interval) {
                // A Service was opened: query it at once.
                Ok(wish) => {
                    open = wish;
                    self.of_service = Value::Null;
                    round = round.max(1);
                }
                Err(RecvTimeoutError::Timeout) => round += 1,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn round(&mut self, is_whole: bool, open: Option<&str>) -> Result<(), Ended> {
        let asked = self.ask(is_whole);
        let news = match asked {
            Ok(news) => news,
            Err(error) => vec![News::Failed(format!("{error:#}"))],
        };
        for it in news {
            self.send.send(it).map_err(|_| Ended)?;
        }
        if let Some(name) = open {
            let details = self.details(name);
            self.send.send(details).map_err(|_| Ended)?;
        }
        Ok(())
    }

    fn ask(&mut self, is_whole: bool) -> anyhow::Result<Vec<News>> {
        let mut news = vec![News::Status(self.agent.get("status")?)];
        let traffic = self.agent.get("traffic")?;
        let rates = rates(&self.traffic, &traffic, "items");
        news.push(News::Traffic { is_counted: traffic["counted"] == true, rates });
        self.traffic = traffic;
        if is_whole {
            news.push(News::Services(services(&self.agent)?));
        }
        Ok(news)
    }

    fn details(&mut self, name: &str) -> News {
        let service = self.agent.get(&format!("services/{}", encoded(name))).map_err(|it| format!("{it:#}"));
        let traffic = self.agent.get(&format!("traffic?name={}", encoded(name))).unwrap_or_default();
        let rates = rates(&self.of_service, &traffic, "endpoints");
        self.of_service = traffic;
        News::Details { name: name.to_owned(), service, rates }
    }
}

/// All Services, part by part.
pub fn services(agent: &Local) -> anyhow::Result<Vec<Value>> {
    let (mut all, mut after) = (Vec::new(), String::new());
    for _ in 0..MOST_PARTS {
        let mut part = agent.get(&format!("services?limit=1000{after}"))?;
        if let Value::Array(items) = part["items"].take() {
            all.extend(items);
        }
        match part["next"].as_str() {
            Some(next) => after = format!("&after={}", encoded(next)),
            None => break,
        }
    }
    Ok(all)
}
