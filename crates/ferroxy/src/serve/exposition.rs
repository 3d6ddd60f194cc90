//! The Prometheus text format (0.0.4), and histograms, for any figures.

use std::fmt::{Display, Write};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Counts observed values in buckets.
#[derive(Debug, Clone)]
pub struct Histogram {
    bounds: Vec<f64>,
    /// One count for each bound, and one for all greater values.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// 15 buckets from a millisecond on, each twice as wide: kube-proxy's buckets for most durations.
    pub fn of_durations() -> Histogram {
        Histogram::new((0..15).map(|k| 0.001 * f64::from(1 << k)).collect())
    }

    /// kube-proxy's buckets for the network programming latency, up to 5 minutes.
    pub fn of_network_programming() -> Histogram {
        let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
        Histogram::new([0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect())
    }

    /// The buckets of Kubernetes' Go client, for requests to the API server.
    pub fn of_requests() -> Histogram {
        Histogram::new(vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
    }

    fn new(bounds: Vec<f64>) -> Histogram {
        let counts = vec![0; bounds.len() + 1];
        Histogram { bounds, counts, sum: 0.0 }
    }

    /// How many values were observed.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }
}

/// A page of metrics, written family by family.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    /// A metric without labels.
    pub fn single(&mut self, kind: Kind, name: &str, help: &str, value: impl Display) {
        self.begin(kind, name, help);
        self.sample(name, &[], value);
    }

    /// Writes the type and the help text of a metric; its samples follow.
    pub fn begin(&mut self, kind: Kind, name: &str, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n")));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{}}} {value}", labels.join(",")));
        }
    }

    pub fn histogram(&mut self, name: &str, labels: Labels<'_>, histogram: &Histogram) {
        let bounds = histogram.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        let mut so_far = 0;
        for (bound, count) in bounds.zip(&histogram.counts) {
            so_far += count;
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample(&format!("{name}_bucket"), &labels, so_far);
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum);
        self.sample(&format!("{name}_count"), labels, so_far);
    }

    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_the_text_format_of_prometheus() {
        let mut page = Exposition::default();
        page.single(Kind::Gauge, "length", "How many\nwait.", 3);
        page.begin(Kind::Counter, "seen_total", "Seen.");
        page.sample("seen_total", &[("code", "200"), ("why", "a \"b\" \\")], 1.5);
        let expected = "# HELP length How many\\nwait.\n# TYPE length gauge\nlength 3\n# HELP seen_total Seen.\n\
                        # TYPE seen_total counter\nseen_total{code=\"200\",why=\"a \\\"b\\\" \\\\\"} 1.5\n";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn a_bucket_holds_values_up_to_its_bound() {
        let mut histogram = Histogram::new(vec![1.0, 2.0]);
        [0.5, 1.0, 1.5, 9.0].into_iter().for_each(|value| histogram.observe(value));
        let mut page = Exposition::default();
        page.histogram("took", &[("ip_family", "IPv4")], &histogram);
        let lines: Vec<String> = page.finish().lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "took_bucket{ip_family=\"IPv4\",le=\"1\"} 2",
                "took_bucket{ip_family=\"IPv4\",le=\"2\"} 3",
                "took_bucket{ip_family=\"IPv4\",le=\"+Inf\"} 4",
                "took_sum{ip_family=\"IPv4\"} 12",
                "took_count{ip_family=\"IPv4\"} 4",
            ]
        );
    }

    #[test]
    fn the_bounds_are_those_of_kube_proxy() {
        let bounds: Vec<String> = Histogram::of_durations().bounds.iter().map(ToString::to_string).collect();
        let expected =
            "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384";
        assert_eq!(bounds.join(" "), expected);
        let bounds = Histogram::of_network_programming().bounds;
        assert_eq!((bounds.len(), bounds.is_sorted()), (2 + 59 + 12 + 7, true));
        for bound in [0.25, 0.5, 1.0, 59.0, 60.0, 65.0, 115.0, 120.0, 150.0, 300.0] {
            assert!(bounds.contains(&bound), "{bound}");
        }
    }
}
