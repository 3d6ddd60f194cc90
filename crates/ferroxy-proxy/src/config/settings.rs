//! Settings of the engine as a whole, fixed at its start.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Threads that serve traffic; `None`: one for each core, at most eight.
    pub threads: Option<usize>,
    /// The mark of our own connections to endpoints (`SO_MARK`), which packet rules skip. Without it, a connection to
    /// an endpoint that is itself a frontend of this node would come back to the engine. Needs CAP_NET_ADMIN. Linux
    /// only.
    pub mark: Option<u32>,
    /// TCP connections at a time, of all pools; `None`: as many as the limit of open files allows. Beyond it, accepting
    /// pauses.
    pub connections: Option<usize>,
    /// Descriptors that are left to the rest of the process.
    pub spare_descriptors: usize,
    /// Connections that may wait to be accepted, for each socket.
    pub backlog: u32,
    /// A peer from which nothing was received for this long gets keepalive probes; `None` turns keepalive off.
    pub keepalive: Option<Duration>,
    /// How long sent data may stay unacknowledged (`TCP_USER_TIMEOUT`; Linux only). `None` leaves it to the kernel:
    /// about fifteen minutes. Beware: it also ends a connection if one side does not read for this long.
    pub user_timeout: Option<Duration>,
    /// Whether bulk data is moved inside the kernel (`splice`; Linux only).
    pub splice: bool,
    pub udp: UdpLimits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpLimits {
    /// Sessions at a time, of all pools. Beyond it, the session that has been idle for the longest time is evicted.
    pub sessions: usize,
    /// Sessions of one source address at a time on each thread: no client can push out the sessions of all others.
    pub sessions_per_source: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            threads: None,
            mark: None,
            connections: None,
            spare_descriptors: 512,
            backlog: 4096,
            keepalive: Some(Duration::from_secs(60)),
            user_timeout: None,
            splice: true,
            udp: UdpLimits::default(),
        }
    }
}

impl Default for UdpLimits {
    fn default() -> UdpLimits {
        UdpLimits { sessions: 16_384, sessions_per_source: 1024 }
    }
}
