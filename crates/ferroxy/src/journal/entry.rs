//! One entry of the journal, and its sentence.

use std::borrow::Cow;

use ferroxy_core::ServiceName;
use ferroxy_core::intent::{PortIntent, Route, ServiceIntent};

use crate::serve::Moment;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The first sync is done.
    Started,
    /// A Service was programmed: a new one, or one that changed.
    Changed,
    /// A Service has nothing on this node any more.
    Removed,
    /// The kernel refused a Service.
    Refused,
    /// A step failed, and is retried.
    Failed,
    /// Changes of other programs were repaired.
    Drift,
    /// The node's own settings were programmed.
    Node,
    /// A probe's verdict about an endpoint changed.
    Verdict,
    /// The source has problems, or none any more.
    Source,
    /// The configuration changed.
    Reconfigured,
}

impl What {
    pub fn word(self) -> &'static str {
        match self {
            What::Started => "started",
            What::Changed => "changed",
            What::Removed => "removed",
            What::Refused => "refused",
            What::Failed => "failed",
            What::Drift => "drift",
            What::Node => "node",
            What::Verdict => "verdict",
            What::Source => "source",
            What::Reconfigured => "reconfigured",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Entry {
    /// From 1 on, without gaps. The journal sets it.
    pub number: u64,
    pub time: Moment,
    pub what: What,
    pub service: Option<ServiceName>,
    /// Empty where the sizes say it all.
    pub text: Box<str>,
    /// The sizes of a Service, before and after.
    pub sizes: Option<[Sizes; 2]>,
    /// Seconds from the change of a pod to the kernel, where the EndpointSlice says when the pod changed.
    pub api_to_kernel: Option<f64>,
    /// Seconds that programming took, with everything that was programmed together.
    pub took: Option<f64>,
    /// Of these seconds, the part in which the kernel was programmed.
    pub in_kernel: Option<f64>,
    /// The number of operations that were sent to the kernel, for everything that was programmed together.
    pub operations: usize,
    /// How many Services were programmed together.
    pub together: usize,
}

/// Numbers and words are compared; moments are not.
impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        let key = |it: &Entry| (it.number, it.what, it.service.clone(), it.text.clone(), it.sizes);
        key(self) == key(other)
    }
}

/// How large a Service is on this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    pub frontends: usize,
    /// The endpoints in use, of the port that has most.
    pub endpoints: usize,
}

impl Sizes {
    pub fn of(service: Option<&ServiceIntent>) -> Sizes {
        let ports = service.map_or(&[][..], |service| &service.ports);
        Sizes {
            frontends: ports.iter().map(|port| port.frontends.len()).sum(),
            endpoints: ports.iter().map(used).max().unwrap_or(0),
        }
    }
}

/// How many endpoints of a port get traffic under its policies.
fn used(port: &PortIntent) -> usize {
    let of_route = |route: Route| match route {
        Route::Reject | Route::Drop => 0,
        Route::Cluster | Route::ExternalCluster => port.cluster.len(),
        Route::Local => port.local.len(),
        Route::ExternalLocal => port.cluster.len().max(port.local.len()),
    };
    port.frontends.iter().map(|frontend| of_route(frontend.route)).max().unwrap_or(0)
}

impl Entry {
    pub fn new(what: What, text: &str) -> Entry {
        Entry {
            number: 0,
            time: Moment::now(),
            what,
            service: None,
            text: text.into(),
            sizes: None,
            api_to_kernel: None,
            took: None,
            in_kernel: None,
            operations: 0,
            together: 0,
        }
    }

    /// For people.
    pub fn sentence(&self) -> Cow<'_, str> {
        let Some([before, after]) = self.sizes.filter(|_| self.text.is_empty()) else {
            return Cow::Borrowed(&self.text);
        };
        let all = |sizes: Sizes| format!("{}, {}", frontends(sizes.frontends), endpoints(sizes.endpoints));
        Cow::Owned(if before == after {
            format!("changed, still {}", all(after))
        } else if before == Sizes::default() {
            format!("programmed: {}", all(after))
        } else if after == Sizes::default() {
            format!("it had {}", all(before))
        } else if before.frontends == after.frontends {
            format!("{} → {}", before.endpoints, endpoints(after.endpoints))
        } else if before.endpoints == after.endpoints {
            format!("{} → {}", before.frontends, frontends(after.frontends))
        } else {
            format!("{} → {}", all(before), all(after))
        })
    }
}

fn frontends(number: usize) -> String {
    if number == 1 { "1 frontend".into() } else { format!("{number} frontends") }
}

fn endpoints(number: usize) -> String {
    if number == 1 { "1 endpoint".into() } else { format!("{number} endpoints") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_become_a_sentence() {
        let sentence = |before: (usize, usize), after: (usize, usize)| {
            let sizes = |(frontends, endpoints)| Sizes { frontends, endpoints };
            let sizes = Some([sizes(before), sizes(after)]);
            Entry { sizes, ..Entry::new(What::Changed, "") }.sentence().into_owned()
        };
        assert_eq!(sentence((0, 0), (1, 2)), "programmed: 1 frontend, 2 endpoints");
        assert_eq!(sentence((1, 2), (1, 3)), "2 → 3 endpoints");
        assert_eq!(sentence((1, 2), (2, 2)), "1 → 2 frontends");
        assert_eq!(sentence((1, 2), (1, 2)), "changed, still 1 frontend, 2 endpoints");
        assert_eq!(sentence((1, 2), (2, 1)), "1 frontend, 2 endpoints → 2 frontends, 1 endpoint");
        assert_eq!(sentence((1, 2), (0, 0)), "it had 1 frontend, 2 endpoints");
    }

    #[test]
    fn a_text_is_the_sentence() {
        let sizes = Some([Sizes::default(); 2]);
        assert_eq!(Entry { sizes, ..Entry::new(What::Refused, "too large") }.sentence(), "too large");
    }
}
