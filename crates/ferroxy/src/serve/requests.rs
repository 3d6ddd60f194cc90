//! Requests to the API server, counted under the metric names of Kubernetes' Go client.

use std::collections::BTreeMap;
use std::time::Duration;

use super::exposition::{Exposition, Histogram, Kind};

/// One request, after the first byte of its answer or after its failure.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub method: &'a str,
    /// Host and port of the API server.
    pub host: &'a str,
    /// `None` if there was no answer.
    pub code: Option<u16>,
    pub took: Duration,
}

#[derive(Debug, Default)]
pub struct Requests {
    /// By code, host and method.
    totals: BTreeMap<(String, String, String), u64>,
    /// By host and method.
    durations: BTreeMap<(String, String), Histogram>,
}

impl Requests {
    pub fn count(&mut self, request: Request<'_>) {
        let code = request.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let (host, method) = (request.host.to_owned(), request.method.to_owned());
        *self.totals.entry((code, host.clone(), method.clone())).or_default() += 1;
        let durations = self.durations.entry((host, method)).or_insert_with(Histogram::of_requests);
        durations.observe(request.took.as_secs_f64());
    }

    /// Writes nothing without requests: with manifests, no API server is used.
    pub fn write(&self, page: &mut Exposition) {
        if self.totals.is_empty() {
            return;
        }
        let name = "rest_client_requests_total";
        page.begin(
            Kind::Counter,
            name,
            "[ALPHA] Requests to the API server, by code of the answer, method and host.",
        );
        for ((code, host, method), number) in &self.totals {
            page.sample(name, &[("code", code), ("host", host), ("method", method)], number);
        }
        let name = "rest_client_request_duration_seconds";
        page.begin(
            Kind::Histogram,
            name,
            "[ALPHA] Time until the API server began to answer, by host and method.",
        );
        for ((host, method), durations) in &self.durations {
            page.histogram(name, &[("host", host), ("verb", method)], durations);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_answer() {
        let mut requests = Requests::default();
        let mut page = Exposition::default();
        requests.write(&mut page);
        assert_eq!(page.finish(), "", "nobody was asked");
        for code in [Some(200), Some(200), None] {
            let took = Duration::from_millis(10);
            requests.count(Request { method: "GET", host: "10.96.0.1:443", code, took });
        }
        let mut page = Exposition::default();
        requests.write(&mut page);
        let text = page.finish();
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"10.96.0.1:443\",method=\"GET\"} 2",
            "rest_client_requests_total{code=\"<error>\",host=\"10.96.0.1:443\",method=\"GET\"} 1",
            "rest_client_request_duration_seconds_bucket{host=\"10.96.0.1:443\",verb=\"GET\",le=\"0.025\"} 3",
            "rest_client_request_duration_seconds_count{host=\"10.96.0.1:443\",verb=\"GET\"} 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }
}
