//! The steps that measure a proxy, in this order: start, connections, changes, restarts. One proxy at a time, so that
//! proxies do not compete for the processors.

mod change;
mod connect;
mod restart;
mod start;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::figures::{Figure, Figures, Results, Run};
use super::kernel::Listener;
use super::options::{MOST_CHURN, Options};
use super::proxy::Proxy;
use super::quantile::quantile;
use super::size::Size;
use super::stage::{Change, POD_RANGE, Stage};
use super::{Result, progress};

/// Measures every size, and before them a cluster with one Service, for the time that a connection takes.
pub fn all(options: &Options) -> Result<Results> {
    let mut results = Results { mode: options.mode, setting: setting(options)?, runs: Vec::new() };
    for size in std::iter::once(Size::ONE).chain(options.sizes.iter().copied()) {
        progress(&format!("{size}: making the cluster"));
        let binaries = options.binaries().into_iter().map(|(name, _)| name);
        let nodes: Vec<&str> = binaries.chain([connect::BY_HAND]).collect();
        let stage = Stage::new(size, &nodes, options)?;
        progress(&format!("{size}: a rule by hand: connecting"));
        let by_hand = connect::by_hand(&stage, options)
            .inspect_err(|error| progress(&format!("{size}: a rule by hand: {error}")))
            .ok();
        let mut run = Run { size, ours: Figures::default(), peer: None };
        for (index, (name, program)) in options.binaries().into_iter().enumerate() {
            let first_change = index * CHANGES;
            let subject = Subject { name, program, stage: &stage, options, first_change };
            let mut figures = Figures::default();
            if let Some(ratio) = by_hand {
                figures.set(Figure::ConnectByHand, ratio);
            }
            let measured =
                subject.measure(size, &mut figures).map_err(|error| format!("{size}: {name}: {error}"));
            if name == "ours" {
                measured?;
                run.ours = figures;
            } else {
                // If the peer fails, keep its figures so far and go on.
                measured.unwrap_or_else(|error| progress(&error));
                run.peer = Some(figures);
            }
        }
        results.runs.push(run);
    }
    Ok(results)
}

/// A binary on its node.
#[derive(Clone, Copy)]
struct Subject<'a> {
    name: &'a str,
    program: &'a Path,
    stage: &'a Stage,
    options: &'a Options,
    first_change: usize,
}

/// Each binary has its own range of change numbers: the API server is the same, and keeps the changes made for other binaries.
const CHANGES: usize = MOST_CHURN as usize + 20_000;

impl Subject<'_> {
    fn measure(&self, size: Size, figures: &mut Figures) -> Result<()> {
        connect::warm_up(self)?;
        self.announce(size, "starting");
        let mut proxy = start::measure(self, figures)?;
        self.announce(size, "connecting");
        connect::measure(self, figures)?;
        if size != Size::ONE {
            // Not earlier: a listener slows down every program that changes rules.
            let listener = Listener::open(self.stage.node(self.name)?)?;
            self.announce(size, "changing one endpoint at a time");
            change::alone(self, &listener, &mut proxy, figures)?;
            self.announce(size, "churning");
            change::churn(self, &listener, &mut proxy, figures)?;
            self.announce(size, "restarting");
            proxy = restart::measure(self, &listener, proxy, figures)?;
        }
        proxy.stop()
    }

    /// Starts the binary with kube-proxy's flags. conntrack's settings belong to the host and are left alone.
    fn start(&self) -> Result<Proxy> {
        let stage = self.stage;
        let arguments = [
            format!("--kubeconfig={}", stage.kubeconfig()?.display()),
            format!("--hostname-override={}", stage.node_name()),
            format!("--proxy-mode={}", self.options.mode.name()),
            format!("--cluster-cidr={POD_RANGE}"),
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0s".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0s".to_owned(),
        ];
        let log = stage.folder().join(format!("{}.log", self.name));
        Proxy::start(self.program, &arguments, stage.node(self.name)?, log)
    }

    /// The timeout of steps that take long in a large cluster.
    fn patience(&self) -> Duration {
        Duration::from_secs(self.options.patience.into())
    }

    fn change(&self, number: usize) -> Change {
        self.stage.change(self.first_change + number)
    }

    fn announce(&self, size: Size, what: &str) {
        progress(&format!("{size}: {}: {what}", self.name));
    }
}

fn setting(options: &Options) -> Result<Vec<(&'static str, String)>> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let load = fs::read_to_string("/proc/loadavg")?;
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let server =
        if options.assets.is_some() { "kube-apiserver" } else { "ferroxy-lab's, TLS, JSON and protobuf" };
    let mut setting = vec![
        ("mode", options.mode.name().to_owned()),
        ("kernel", format!("Linux {}", kernel.trim())),
        ("processors", cores.to_string()),
        ("load before", load.split_whitespace().next().unwrap_or("?").to_owned()),
        ("API server", server.to_owned()),
        ("changes alone", options.changes.to_string()),
        ("churn", format!("{} changes/s for {} s", options.churn_rate, options.churn_seconds)),
    ];
    if let Some(peer) = &options.peer {
        setting.push(("peer", peer.display().to_string()));
    }
    Ok(setting)
}
