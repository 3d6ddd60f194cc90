//! Probes: tells the prober which endpoints to probe, and reports verdicts in the log, the journal and as Events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use ferroxy_core::event::Verdict;
use ferroxy_core::resolve::Probing;
use ferroxy_core::{Event, ServiceName, resolve};
use ferroxy_dataplane::Ejects;
use ferroxy_platform::privileges;
use ferroxy_probe::{Hooks, Prober};
use ferroxy_source::{Occurrence, Regarding};
use tracing::{info, warn};

use super::{Agent, Input, Sender};
use crate::bucket::{Bucket, Rate};
use crate::journal::{Entry, What};
use crate::log;
use crate::serve::Status;
use crate::serve::probes::{Failing, Standing};

/// The limit of log lines and Events about the verdicts of one Service.
const TOLD: Rate = Rate { burst: 10.0, per_second: 1.0 / 30.0 };

#[derive(Debug, Default)]
pub(super) struct Probes {
    /// `None`: this agent sends no probes.
    prober: Option<Prober>,
    /// The Services that ask for probes, and the log limit of each.
    asking: HashMap<ServiceName, Bucket>,
}

/// A prober whose verdicts are inputs of the agent; a passed probe ends an ejection. It starts no thread before there is something to probe.
pub fn prober(inputs: Sender, status: &Arc<Status>, ejects: Option<Box<dyn Ejects>>) -> Prober {
    let shared = Arc::clone(status);
    let prober = Prober::new(Hooks {
        begin: Box::new(|| {
            if let Err(error) = privileges::give_up_in_this_thread() {
                warn!("cannot drop privileges in the thread of the probes: {error}");
            }
        }),
        // Sending does not wait for room: of each endpoint only the newest verdict waits.
        deliver: Box::new(move |verdict| {
            inputs.send_now(Input::Events(vec![Event::Verdict(verdict)])).is_ok()
        }),
        passed: Box::new(move |ip, port| ejects.iter().for_each(|it| it.pardon(ip, port))),
        is_idle: Box::new(move |service| shared.idle.is_idle(service, Instant::now())),
    });
    status.probes.ask(prober.figures());
    prober
}

impl Agent {
    /// Sends the probes that Services ask for.
    pub fn set_prober(&mut self, prober: Prober) {
        self.probes.prober = Some(prober);
    }

    /// Applies the probe settings that the resolution of a Service returned.
    pub(super) fn follow_probes(&mut self, name: &ServiceName, probing: Option<Probing>) {
        let Some(probing) = probing else {
            if self.probes.asking.remove(name).is_some() {
                self.status.probes.replace(name, None);
                self.probe(name, None);
            }
            return;
        };
        self.probes.asking.entry(name.clone()).or_default();
        let all_down = self.facts.probed(name).into_iter().flat_map(|probed| probed.all_down());
        let used = all_down.filter(|(target, _, _)| probing.targets.contains_key(target));
        let failing =
            used.map(|(target, pod, down)| Failing { target: *target, pod: pod.into(), down: *down });
        let (endpoints, ignored) = (probing.targets.len(), probing.ignored);
        let standing = Standing { endpoints, ignored, down: failing.collect() };
        self.status.probes.replace(name, Some(standing));
        self.probe(name, Some(probing));
    }

    /// For the first sync, which resolves all Services without this step.
    pub(super) fn follow_all_probes(&mut self) {
        let names: Vec<ServiceName> = self.facts.probed_services().cloned().collect();
        for name in names {
            let probing = resolve::service(&self.facts, &name).probing;
            self.follow_probes(&name, probing);
        }
    }

    fn probe(&mut self, name: &ServiceName, probing: Option<Probing>) {
        if let Some(prober) = &mut self.probes.prober {
            prober.set(name, probing);
        }
    }

    /// A verdict has changed: reports it once in the log and as an Event of the Service, within the limit.
    pub(super) fn tell(&mut self, verdict: &Verdict, now: Instant) {
        self.status.probes.turned(verdict.down.is_some());
        let Verdict { service, target, down, .. } = verdict;
        let told = self.probes.asking.entry(service.clone()).or_default();
        if told.left(&TOLD, now) < 1.0 {
            return log::count_suppressed(1);
        }
        told.spend(&TOLD, 1.0, now);
        let pod = self.facts.probed(service).map(|probed| probed.pod(target)).filter(|pod| !pod.is_empty());
        let endpoint = pod.map_or(target.to_string(), |pod| format!("{target} ({pod})"));
        let words = match down {
            Some(down) => format!("endpoint {endpoint} fails its probe: {}", down.fault),
            None => format!("endpoint {endpoint} passes its probe again"),
        };
        info!("{service}: {words}");
        self.note(|| Entry { service: Some(service.clone()), ..Entry::new(What::Verdict, &words) });
        self.status.record_event(Occurrence {
            regarding: Regarding::Service {
                namespace: service.namespace().into(),
                name: service.name().into(),
            },
            reason: if down.is_some() { "EndpointDown" } else { "EndpointUp" }.into(),
            action: "Probe".into(),
            about: target.to_string(),
            note: format!("on node {}: {words}", self.facts.policy().node_name),
            warning: down.is_some(),
        });
    }
}
