//! One client's connection, from the moment it was accepted to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::dial::{Refusal, dial};
use super::pump::{End, Pump, Rules};
use super::{proxy_header, reset};
use crate::config::{Class, Policy, Pool as Config, Settings};
use crate::pool::Pool;
use crate::pool::lease::Lease;
use crate::shared::Accepted;
use crate::system;
use crate::system::runtime::TcpStream;
use crate::table::{Frontend, Table};

/// How a listener finds the frontend.
#[derive(Debug, Clone)]
pub enum Entry {
    Frontend(Arc<Frontend>, Class),
    Redirect(Arc<Table>, Class),
}

/// A connection that was accepted, possibly by another thread.
#[derive(Debug)]
pub struct Arrived {
    pub stream: TcpStream,
    pub peer: SocketAddr,
    pub entry: Entry,
    pub accepted: Accepted,
}

/// Connects the client to an endpoint and stays until both are done. A client that gets no endpoint is reset.
pub async fn serve(arrived: Arrived) {
    let Arrived { stream: client, peer, entry, accepted } = arrived;
    let shared = accepted.shared().clone();
    let Some((pool, destination)) = find(&client, peer, &entry) else {
        shared.tally.unrouted.fetch_add(1, Relaxed);
        return reset(client);
    };
    let limit = pool.snapshot().config.limits.connections;
    let Some(_lease) = Lease::take(&pool, |totals| &totals.active, limit) else {
        return refuse(client, &pool, Refusal::Limit);
    };
    let (server, in_use) = match dial(&shared, &pool, peer.ip().to_canonical()).await {
        Ok(dialled) => dialled,
        Err(refusal) => return refuse(client, &pool, refusal),
    };
    let config = pool.snapshot().config.clone();
    let first = if config.proxy_protocol { header(&client, peer, destination) } else { Vec::new() };
    let rules = rules(&shared.settings, &config);
    let end = Pump::new(client, server, in_use.0.clone(), first, rules).await;
    if end == End::TimedOut {
        pool.totals.timed_out.fetch_add(1, Relaxed);
    }
}

/// The pool, and the original destination if there is one.
fn find(client: &TcpStream, peer: SocketAddr, entry: &Entry) -> Option<(Arc<Pool>, Option<SocketAddr>)> {
    match entry {
        Entry::Frontend(frontend, class) => Some((frontend.pool(peer.ip(), *class)?, None)),
        Entry::Redirect(table, class) => {
            let destination =
                system::original_destination(&*client.options(), local_address(client)?).ok()?;
            let frontend = table.find(destination)?;
            Some((frontend.pool(peer.ip(), *class)?, Some(destination)))
        }
    }
}

fn local_address(client: &TcpStream) -> Option<SocketAddr> {
    client.options().local_addr().ok()?.as_socket()
}

/// The PROXY protocol header, which the endpoint gets first.
fn header(client: &TcpStream, peer: SocketAddr, destination: Option<SocketAddr>) -> Vec<u8> {
    let destination = destination.or_else(|| local_address(client));
    destination.map_or_else(Vec::new, |destination| proxy_header::encode(peer, destination))
}

fn refuse(client: TcpStream, pool: &Pool, refusal: Refusal) {
    let totals = &pool.totals;
    let counter = match refusal {
        Refusal::Empty => &totals.refused_empty,
        Refusal::Unreachable => &totals.refused_unreachable,
        Refusal::Limit => &totals.refused_limit,
    };
    counter.fetch_add(1, Relaxed);
    reset(client);
}

fn rules(settings: &Settings, config: &Config) -> Rules {
    Rules {
        idle: config.timeouts.idle,
        half_close: config.timeouts.half_close,
        keepalive: settings.keepalive,
        user_timeout: settings.user_timeout,
        splice: settings.splice,
        measure: config.policy == Policy::Latency,
    }
}
