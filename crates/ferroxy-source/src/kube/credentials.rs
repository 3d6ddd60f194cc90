//! Keeps the link supplied with a client whose credentials are those in the files. A client that works is never given
//! up for a configuration that cannot be read.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ::kube::client::Client;
use ferroxy_core::{Diagnostic, Object};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::info;

use super::Options;
use super::access::Access;
use super::hub::Hub;
use super::link::{Link, Why};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A program that makes credentials is run again when requests fail, but not more often than this. (When the server
/// says that it does not take them, it is run at once.)
const RUN_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// A program that makes credentials has so long.
const READ_LIMIT: Duration = Duration::from_secs(30);

pub(super) async fn keep(options: Options, access: Access, link: Rc<Link>, hub: Rc<Hub>) {
    let mut keeper = Keeper { options, access, link, hub, supplied: None };
    loop {
        keeper.look().await;
        // Elapsed or called, it is looked again.
        let _ = timeout(LOOK_EVERY, keeper.link.attention.notified()).await;
    }
}

struct Keeper {
    options: Options,
    access: Access,
    link: Rc<Link>,
    hub: Rc<Hub>,
    supplied: Option<Instant>,
}

impl Keeper {
    async fn look(&mut self) {
        match self.reason_to_renew() {
            Some(why) => self.renew(why).await,
            None => self.hub.troubles(None, Vec::new()),
        }
    }

    fn reason_to_renew(&self) -> Option<Why> {
        let doubted = self.link.take_doubted();
        let long_ago = self.supplied.is_none_or(|at| at.elapsed() >= RUN_AGAIN_AFTER);
        let changed = !self.access.is_current();
        let program = self.access.runs_a_program();
        match self.link.take_wanted() {
            // A refusal is no reason to read again what has not changed: the watches would move for nothing.
            Some(Why::Renewal) => (changed || program).then_some(Why::Renewal),
            Some(why) => Some(why),
            None => {
                let needed = self.supplied.is_none() || changed || (doubted && long_ago && program);
                needed.then_some(Why::Renewal)
            }
        }
    }

    async fn renew(&mut self, why: Why) {
        match fresh(self.options.clone()).await {
            Ok((access, client)) => {
                let moved = self.supplied.is_some() && access.server() != self.access.server();
                let why = if moved { Why::Move } else { why };
                if self.supplied.is_some() {
                    info!("connecting anew to the API server {}: {}", access.server(), why.words());
                }
                self.access = access;
                self.supplied = Some(Instant::now());
                self.link.supply(client, &self.access.server(), why);
                self.hub.troubles(None, Vec::new());
            }
            Err(reason) => {
                self.hub.troubles(None, vec![self.trouble(reason)]);
                // Dead connections are dead, whatever the files say.
                if let (Why::Death, Some(lease)) = (why, self.link.current()) {
                    self.link.supply(lease.client, &lease.server, why);
                }
            }
        }
    }

    fn trouble(&self, reason: String) -> Diagnostic {
        let effect = match self.supplied {
            Some(_) => "those in use stay in use",
            None => "nothing can be asked yet",
        };
        Diagnostic {
            object: Object { kind: "API server", name: self.access.server() },
            field: "credentials".to_owned(),
            reason,
            effect: effect.to_owned(),
        }
    }
}

/// Reads everything anew. On a thread of its own: it may run a program.
async fn fresh(options: Options) -> Result<(Access, Client), String> {
    let read = move || {
        let access = Access::read(&options).map_err(|error| error.to_string())?;
        let client = access.client()?;
        Ok((access, client))
    };
    match timeout(READ_LIMIT, spawn_blocking(read)).await {
        Ok(Ok(fresh)) => fresh,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            Err(format!("the program that makes them has not ended after {} seconds", READ_LIMIT.as_secs()))
        }
    }
}
