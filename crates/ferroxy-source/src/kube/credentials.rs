//! Keeps the link supplied with a client whose credentials are those in the files. A working client is never replaced
//! because of a configuration that cannot be read.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ::kube::client::Client;
use ferroxy_core::{Cause, Diagnostic, Object, ObjectKind};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};

use super::Options;
use super::access::Access;
use super::hub::Hub;
use super::link::{Link, Why};

/// How often the files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// An exec plugin is run again when requests fail, but not more often than this. (When the server rejects its
/// credentials, it is run at once.)
const RUN_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Timeout of an exec plugin.
const READ_LIMIT: Duration = Duration::from_secs(30);

pub(super) async fn keep(options: Options, access: Access, link: Rc<Link>, hub: Rc<Hub>) {
    let mut keeper = Keeper { options, access, link, hub, reading: Reading::default(), supplied: None };
    loop {
        keeper.look().await;
        // After the timeout or a notification, the files are checked again.
        let _ = timeout(LOOK_EVERY, keeper.link.attention.notified()).await;
    }
}

struct Keeper {
    options: Options,
    access: Access,
    link: Rc<Link>,
    hub: Rc<Hub>,
    reading: Reading,
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
            // After a 401, unchanged files are not read again: the watches would reconnect for nothing.
            Some(Why::Renewal) => (changed || program).then_some(Why::Renewal),
            Some(why) => Some(why),
            None => {
                let needed = self.supplied.is_none() || changed || (doubted && long_ago && program);
                needed.then_some(Why::Renewal)
            }
        }
    }

    async fn renew(&mut self, why: Why) {
        match self.reading.fresh(&self.options, READ_LIMIT).await {
            Ok((access, client)) => {
                let moved = self.supplied.is_some() && access.server() != self.access.server();
                let why = if moved { Why::Move } else { why };
                if access.trusts_anyone() && (self.supplied.is_none() || !self.access.trusts_anyone()) {
                    warn!(
                        "insecure-skip-tls-verify: the certificate of {} is not verified; an attacker who intercepts \
                         the connection gets the credentials and controls all Services of this node. Set certificate-authority \
                         in the kubeconfig instead",
                        access.server()
                    );
                }
                if self.supplied.is_some() {
                    info!("reconnecting to the API server {}: {}", access.server(), why.words());
                }
                self.access = access;
                self.supplied = Some(Instant::now());
                self.link.supply(client, &self.access.server(), why);
                self.hub.troubles(None, Vec::new());
            }
            Err(reason) => {
                self.hub.troubles(None, vec![self.trouble(reason)]);
                // Dead connections must be replaced even if the files cannot be read.
                if let (Why::Death, Some(lease)) = (why, self.link.current()) {
                    self.link.supply(lease.client, &lease.server, why);
                }
            }
        }
    }

    fn trouble(&self, reason: String) -> Diagnostic {
        let (effect, cause) = match self.supplied {
            Some(_) => ("the credentials in use stay in use", Cause::SourceStale),
            None => ("no request can be sent yet", Cause::SourceIncomplete),
        };
        Diagnostic {
            object: Object { kind: ObjectKind::ApiServer, name: self.access.server() },
            field: "credentials".to_owned(),
            reason,
            effect: effect.to_owned(),
            cause,
        }
    }
}

type Fresh = Result<(Access, Client), String>;

/// Reads everything again on a separate thread: it may run an exec plugin. A plugin that does not end is awaited again
/// the next time; a second one is not started beside it.
#[derive(Default)]
struct Reading(Option<JoinHandle<Fresh>>);

impl Reading {
    async fn fresh(&mut self, options: &Options, limit: Duration) -> Fresh {
        let options = options.clone();
        let read = move || {
            let access = Access::read(&options).map_err(|error| error.to_string())?;
            let client = access.client()?;
            Ok((access, client))
        };
        let mut reading = self.0.take().unwrap_or_else(|| spawn_blocking(read));
        match timeout(limit, &mut reading).await {
            Ok(Ok(fresh)) => fresh,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                self.0 = Some(reading);
                Err(format!("the exec plugin has not ended after {limit:?}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Credentials from an exec plugin that waits for a file.
    const KUBECONFIG: &str = r#"
apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: it}}]
clusters: [{name: it, cluster: {server: "http://127.0.0.1:1"}}]
users:
- name: it
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      interactiveMode: Never
      command: sh
      args:
      - -c
      - |
        echo run >>DIRECTORY/runs
        for i in $(seq 600); do [ -e DIRECTORY/go ] && break; sleep 0.1; done
        echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}'
"#;

    #[test]
    fn an_exec_plugin_that_does_not_end_is_not_started_twice() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let text = KUBECONFIG.replace("DIRECTORY", directory.path().to_str().unwrap());
        fs::write(&path, text).unwrap();
        let options = Options { kubeconfig: Some(path), ..Options::for_node("node") };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut reading = Reading::default();
            for _ in 0..3 {
                let error = reading.fresh(&options, Duration::from_millis(50)).await.err().unwrap();
                assert_eq!(error, "the exec plugin has not ended after 50ms");
            }
            fs::write(directory.path().join("go"), "").unwrap();
            reading.fresh(&options, Duration::from_secs(60)).await.unwrap();
        });
        assert_eq!(fs::read_to_string(directory.path().join("runs")).unwrap(), "run\n");
    }
}
