//! The figures: their names and units, their goals, and the values published for kube-proxy. `measure/` measures them,
//! `report` and `picture` show them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::options::Mode;
use super::size::Size;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    FirstPacket,
    Waited,
    Cpu,
    PeakMemory,
    SteadyMemory,
    ChildrenMemory,
    ServerCpu,
    ServerBytes,
    Change50,
    Change99,
    ChangeMessages,
    ChangeBytes,
    ChangeServerCpu,
    ChangeServerBytes,
    ChurnRate,
    Churn50,
    Churn99,
    ChurnCores,
    ChurnUnseen,
    ChurnServerCores,
    ChurnServerBytes,
    RestartMessages,
    RestartCurrent,
    RestartMemory,
    RestartFailures,
    ConnectDirect,
    ConnectService,
    ConnectRatio,
    ConnectByHand,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    Megabytes,
    Cores,
    Count,
    Bytes,
    Ratio,
}

impl Figure {
    pub const ALL: [Figure; 29] = [
        Figure::FirstPacket,
        Figure::Waited,
        Figure::Cpu,
        Figure::PeakMemory,
        Figure::SteadyMemory,
        Figure::ChildrenMemory,
        Figure::ServerCpu,
        Figure::ServerBytes,
        Figure::Change50,
        Figure::Change99,
        Figure::ChangeMessages,
        Figure::ChangeBytes,
        Figure::ChangeServerCpu,
        Figure::ChangeServerBytes,
        Figure::ChurnRate,
        Figure::Churn50,
        Figure::Churn99,
        Figure::ChurnCores,
        Figure::ChurnUnseen,
        Figure::ChurnServerCores,
        Figure::ChurnServerBytes,
        Figure::RestartMessages,
        Figure::RestartCurrent,
        Figure::RestartMemory,
        Figure::RestartFailures,
        Figure::ConnectDirect,
        Figure::ConnectService,
        Figure::ConnectRatio,
        Figure::ConnectByHand,
    ];

    /// Its name in the JSON.
    pub fn key(self) -> &'static str {
        self.description().0
    }

    /// Its name in the table.
    pub fn title(self) -> &'static str {
        self.description().1
    }

    pub fn unit(self) -> Unit {
        self.description().2
    }

    fn description(self) -> (&'static str, &'static str, Unit) {
        match self {
            Figure::FirstPacket => (
                "first_packet_seconds",
                "start: exec to first packet through the last Service",
                Unit::Seconds,
            ),
            Figure::Waited => (
                "start_waited_seconds",
                "start: (its threads waited for a processor until then)",
                Unit::Seconds,
            ),
            Figure::Cpu => ("start_cpu_seconds", "start: CPU, children included", Unit::Seconds),
            Figure::PeakMemory => ("peak_memory_megabytes", "start: peak memory", Unit::Megabytes),
            Figure::SteadyMemory => {
                ("steady_memory_megabytes", "start: memory when settled", Unit::Megabytes)
            }
            Figure::ChildrenMemory => {
                ("children_peak_memory_megabytes", "start: peak memory of children", Unit::Megabytes)
            }
            Figure::ServerCpu => {
                ("start_api_server_cpu_seconds", "start: CPU of the API server", Unit::Seconds)
            }
            Figure::ServerBytes => {
                ("start_api_server_megabytes", "start: bytes from the API server", Unit::Megabytes)
            }
            Figure::Change50 => {
                ("change_p50_milliseconds", "one change: API to kernel, p50", Unit::Milliseconds)
            }
            Figure::Change99 => {
                ("change_p99_milliseconds", "one change: API to kernel, p99", Unit::Milliseconds)
            }
            Figure::ChangeMessages => {
                ("change_kernel_messages", "one change: messages of the kernel", Unit::Count)
            }
            Figure::ChangeBytes => ("change_kernel_bytes", "one change: their bytes", Unit::Bytes),
            Figure::ChangeServerCpu => (
                "change_api_server_cpu_milliseconds",
                "one change: CPU of the API server",
                Unit::Milliseconds,
            ),
            Figure::ChangeServerBytes => {
                ("change_api_server_bytes", "one change: bytes from the API server", Unit::Bytes)
            }
            Figure::ChurnRate => {
                ("churn_changes_per_second", "churn: (changes made each second)", Unit::Count)
            }
            Figure::Churn50 => ("churn_p50_milliseconds", "churn: API to kernel, p50", Unit::Milliseconds),
            Figure::Churn99 => ("churn_p99_milliseconds", "churn: API to kernel, p99", Unit::Milliseconds),
            Figure::ChurnCores => ("churn_cpu_cores", "churn: CPU, children included", Unit::Cores),
            Figure::ChurnUnseen => ("churn_changes_unseen", "churn: changes that never arrived", Unit::Count),
            Figure::ChurnServerCores => {
                ("churn_api_server_cpu_cores", "churn: CPU of the API server", Unit::Cores)
            }
            Figure::ChurnServerBytes => (
                "churn_api_server_bytes_per_change",
                "churn: bytes from the API server for each change",
                Unit::Bytes,
            ),
            Figure::RestartMessages => {
                ("restart_kernel_messages", "restart: messages of the kernel", Unit::Count)
            }
            Figure::RestartCurrent => (
                "restart_current_seconds",
                "restart: exec to kernel has what changed meanwhile",
                Unit::Seconds,
            ),
            Figure::RestartMemory => {
                ("restart_peak_memory_megabytes", "restart: peak memory", Unit::Megabytes)
            }
            Figure::RestartFailures => {
                ("restart_failed_connections", "restart: failed connections", Unit::Count)
            }
            Figure::ConnectDirect => {
                ("connect_direct_microseconds", "connect: direct, median", Unit::Microseconds)
            }
            Figure::ConnectService => {
                ("connect_service_microseconds", "connect: through a Service, median", Unit::Microseconds)
            }
            Figure::ConnectRatio => ("connect_ratio", "connect: Service / direct", Unit::Ratio),
            Figure::ConnectByHand => {
                ("connect_by_hand_ratio", "connect: (one rule by hand, no proxy / direct)", Unit::Ratio)
            }
        }
    }

    /// Whether it measures the proxy itself: neither its environment nor a ratio. Only such figures can be compared.
    pub fn is_of_the_proxy(self) -> bool {
        !matches!(
            self,
            Figure::Waited
                | Figure::ChurnRate
                | Figure::ConnectDirect
                | Figure::ConnectService
                | Figure::ConnectRatio
                | Figure::ConnectByHand
        )
    }

    /// The goal in nftables mode: at most this.
    fn goal(self, size: Size) -> Option<f64> {
        match (self, (size.services, size.endpoints)) {
            // A twentieth of the published time below, and a tenth of the published CPU.
            (Figure::FirstPacket, (10_000, 10)) => Some(1.65),
            (Figure::Cpu, (10_000, 10)) => Some(3.2),
            (Figure::FirstPacket, (5_000, 50)) => Some(5.0),
            (Figure::SteadyMemory, (10_000, 10)) => Some(50.0),
            (Figure::Change50, _) => Some(10.0),
            (Figure::Churn99, _) => Some(50.0),
            (Figure::ChurnCores, _) => Some(0.25),
            (Figure::ChurnUnseen | Figure::RestartMessages | Figure::RestartFailures, _) => Some(0.0),
            (Figure::ConnectRatio, _) => Some(1.03),
            _ => None,
        }
    }

    /// The values of kube-proxy 1.37 in nftables mode on a machine with two cores and a real API server. For the starts at
    /// the two other sizes, the times that users have reported (13 and 16 minutes).
    fn published(self, size: Size) -> Option<f64> {
        match (self, (size.services, size.endpoints)) {
            (Figure::FirstPacket, (10_000, 10)) => Some(33.0),
            (Figure::FirstPacket, (5_000, 50)) => Some(13.0 * 60.0),
            (Figure::FirstPacket, (44_000, 1)) => Some(16.0 * 60.0),
            (Figure::Cpu, (10_000, 10)) => Some(32.0),
            (Figure::SteadyMemory, (10_000, 10)) => Some(241.0),
            (Figure::Change50, (10_000, 10)) => Some(474.0),
            _ => None,
        }
    }
}

/// The figures of one binary at one size. A figure that could not be measured is missing.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    values: BTreeMap<Figure, f64>,
    /// Figures that are too small, because some notifications were lost.
    pub at_least: Vec<Figure>,
}

impl Figures {
    pub fn set(&mut self, figure: Figure, value: f64) {
        self.values.insert(figure, value);
    }

    pub fn set_time(&mut self, figure: Figure, time: Duration) {
        let factor = match figure.unit() {
            Unit::Milliseconds => 1e3,
            Unit::Microseconds => 1e6,
            _ => 1.0,
        };
        self.set(figure, time.as_secs_f64() * factor);
    }

    pub fn get(&self, figure: Figure) -> Option<f64> {
        self.values.get(&figure).copied()
    }
}

/// One size, and the figures of each binary there.
#[derive(Debug, Clone)]
pub struct Run {
    pub size: Size,
    pub ours: Figures,
    pub peer: Option<Figures>,
}

/// All runs, and the machine that they were measured on.
#[derive(Debug, Clone)]
pub struct Results {
    pub mode: Mode,
    /// Names and values.
    pub setting: Vec<(&'static str, String)>,
    pub runs: Vec<Run>,
}

impl Results {
    pub fn has_peer(&self) -> bool {
        self.runs.iter().any(|run| run.peer.is_some())
    }

    /// The figure of the peer. Without a peer, the published figure.
    pub fn other(&self, run: &Run, figure: Figure) -> Option<f64> {
        match &run.peer {
            Some(peer) => peer.get(figure),
            None => self.published(run, figure),
        }
    }

    pub fn published(&self, run: &Run, figure: Figure) -> Option<f64> {
        figure.published(run.size).filter(|_| self.mode == Mode::Nftables)
    }

    pub fn goal(&self, run: &Run, figure: Figure) -> Option<f64> {
        figure.goal(run.size).filter(|_| self.mode == Mode::Nftables)
    }
}
