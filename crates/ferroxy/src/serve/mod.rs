//! The HTTP servers of the node: health, health-check node ports, metrics. One thread; it reads the [`Status`] that the
//! agent writes and never waits for the agent.

mod accept;
pub(crate) mod body;
pub mod changes;
mod contents;
mod counts;
#[cfg(feature = "profiling")]
mod cpu_profile;
mod debug;
mod exposition;
pub(crate) mod frontends;
pub mod health;
mod healthz;
pub(crate) mod http;
pub mod idle;
mod left_out;
mod metrics;
mod metrics_server;
mod moment;
mod ports;
#[cfg(feature = "profiling")]
mod pprof;
pub mod probes;
mod process;
#[cfg(feature = "profiling")]
mod profile;
pub mod requests;
mod room;
mod service_health;
pub(crate) mod sockets;
pub mod status;
pub(crate) mod traffic;
mod without_local;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::Context;
use ferroxy_dataplane::Mode;
use ferroxy_platform::{process as this_process, sockets as listeners};
use tracing::warn;

use crate::config::Config;
use crate::flags::Flags;
use crate::modes::MODES;
use crate::{agent, page, panic};
pub use metrics_server::Counters;
pub(crate) use metrics_server::not_allowed;
use metrics_server::{About, Shared};
pub use moment::Moment;
use room::Limits;
pub use status::Status;

/// Connections at a time. A connection takes an open file and, after its first byte, up to 16 KiB for the head of a request.
/// If the limit of open files is low, health-check node ports and all connections together leave some files for the work
/// itself: tenants decide how many such ports exist, and any client may connect.
const METRICS: Limits = Limits { service: 64, socket: 64, peer: 32, silent: 256 };
const HEALTHZ: Limits = Limits { service: 128, socket: 128, peer: 32, silent: 1024 };
const PAGE: Limits = Limits { service: 64, socket: 64, peer: 48, silent: 256 };
const NODE_PORTS: Limits = Limits { service: 1024, socket: 128, peer: 32, silent: 1024 };

/// The link from the node's page to the agent.
#[derive(Debug)]
pub struct AgentLink {
    /// The name of the node.
    pub node: String,
    /// The queue for questions to the agent.
    pub inputs: agent::Sender,
}

/// Starts the servers that are configured. An address that cannot be bound is retried, or is an
/// error when `bindAddressHardFail` is set.
pub fn start(
    config: &Config,
    mode: &'static Mode,
    flags: &Flags,
    counters: Counters,
    agent_link: AgentLink,
    status: &Arc<Status>,
) -> anyhow::Result<()> {
    let files = allow_many_files();
    status.limit_traffic_series(config.traffic_metrics_max_series as usize);
    let about = About { config: config.clone(), mode, flags: flags.all(MODES), started: Moment::now() };
    let counters = Shared::from(counters);
    let mut servers = Vec::new();
    if let Some(page) = &config.page {
        let service = http::Service::new("page", PAGE.at_most(files / 16), status);
        let handler = page_handler(&about, &counters, agent_link, status)?;
        servers.push(Server::prepare(service, page.address, handler, config)?);
    }
    if let Some(address) = config.metrics_address() {
        let metrics = http::Service::new(metrics_server::NAME, METRICS.at_most(files / 16), status);
        let handler = metrics_server::handler(Arc::clone(status), about, counters);
        servers.push(Server::prepare(metrics, address, handler, config)?);
    }
    if let Some(address) = config.healthz {
        let healthz = http::Service::new("healthz", HEALTHZ.at_most(files / 8), status);
        servers.push(Server::prepare(healthz, address, healthz::handler(Arc::clone(status)), config)?);
    }
    let node_ports = http::Service::new("health-check node ports", NODE_PORTS.at_most(files / 8), status);
    let node_ports = service_health::run(Arc::clone(status), node_ports, files / 2);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // For slow requests: traffic counters, profiles, long answers of the page.
        .max_blocking_threads(4)
        .thread_name("serve-slowly")
        .build()
        .context("cannot prepare to serve health and metrics")?;
    let serve = move || {
        runtime.block_on(async {
            servers.into_iter().for_each(|server| drop(tokio::spawn(server.run())));
            node_ports.await
        });
    };
    std::thread::Builder::new()
        .name("serve".to_owned())
        .spawn(serve)
        .context("cannot start the thread that serves health and metrics")?;
    Ok(())
}

fn page_handler(
    about: &About,
    counters: &Shared,
    agent_link: AgentLink,
    status: &Arc<Status>,
) -> anyhow::Result<http::Handler> {
    page::handler(page::Setting {
        status: Arc::clone(status),
        config: about.config.clone(),
        mode: about.mode,
        node: agent_link.node,
        inputs: agent_link.inputs,
        traffic: Arc::clone(&counters.traffic),
        sockets: Arc::clone(&counters.sockets),
        started: about.started,
    })
}

/// A service on one address.
struct Server {
    service: http::Service,
    address: SocketAddr,
    /// `None` if the first attempt failed and will be retried.
    bound: Option<TcpListener>,
    handler: http::Handler,
}

impl Server {
    /// Serves as long as the process lives.
    async fn run(self) {
        let Server { service, address, bound, handler } = self;
        let what = format!("serving {} on {address}", service.name);
        let error = service.run(address, bound, handler).await;
        panic::ended(&what, &error);
    }

    /// Binds now, so that a failure can end the program.
    fn prepare(
        service: http::Service,
        address: SocketAddr,
        handler: http::Handler,
        config: &Config,
    ) -> anyhow::Result<Server> {
        let bound = match listeners::listen(address) {
            Ok(listener) => Some(listener),
            Err(error) if config.bind_address_hard_fail => {
                return Err(error).with_context(|| format!("cannot serve {} on {address}", service.name));
            }
            Err(error) => {
                service.complain(address, &error);
                None
            }
        };
        Ok(Server { service, address, bound, handler })
    }
}

/// Every health-check node port is an open file, and the usual limit is 1024. Returns the limit.
fn allow_many_files() -> usize {
    if let Err(error) = this_process::raise_open_files_limit() {
        warn!("cannot raise the limit of open files: {error}");
    }
    let limit = this_process::figures().open_files_limit.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}
