//! The time to establish a TCP connection: directly to an endpoint and through its Service, by turns, over the same cables
//! and through the same node.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use ferroxy_lab::Namespace;
use rustix::net::sockopt::set_socket_linger;

use super::{Figure, Figures, Options, Result, Stage, Subject, quantile};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The node without a proxy.
pub(super) const BY_HAND: &str = "by-hand";

pub(super) fn measure(subject: &Subject<'_>, figures: &mut Figures) -> Result<()> {
    let (stage, count) = (subject.stage, subject.options.connections);
    let mut times = Times::of_all(&stage.clients(subject.name)?, stage, count)?;
    figures.set(Figure::ConnectRatio, times.ratio());
    figures.set_time(Figure::ConnectDirect, quantile(&mut times.direct, 0.5));
    figures.set_time(Figure::ConnectService, quantile(&mut times.service, 0.5));
    Ok(())
}

/// The same ratio with a single hand-written rule instead of the Service: the time the kernel needs to rewrite an address. A
/// proxy that lets the kernel rewrite addresses cannot be much faster.
pub(super) fn by_hand(stage: &Stage, options: &Options) -> Result<f64> {
    let service = stage.service();
    let to = match stage.endpoints().as_slice() {
        [sole] => format!("dnat to {sole}"),
        several => {
            let slots = several.iter().enumerate();
            let slots = slots.map(|(slot, to)| format!("{slot} : {} . {}", to.ip(), to.port()));
            let slots = slots.collect::<Vec<_>>().join(", ");
            format!("dnat ip to numgen random mod {} map {{ {slots} }}", several.len())
        }
    };
    let rules = format!(
        "add table ip alone\n\
         add chain ip alone before {{ type nat hook prerouting priority -100; }}\n\
         add chain ip alone after {{ type nat hook postrouting priority 100; }}\n\
         add rule ip alone before ip daddr {} tcp dport {} {to}",
        service.ip(),
        service.port()
    );
    let made = stage.node(BY_HAND)?.run(|| Command::new("nft").arg(rules).output())?;
    let made = made.map_err(|error| format!("nft: {error}"))?;
    if !made.status.success() {
        return Err(format!("nft: {}", String::from_utf8_lossy(&made.stderr).trim()).into());
    }
    Ok(Times::of_all(&stage.clients(BY_HAND)?, stage, options.connections)?.ratio())
}

/// The times of connections, in the order in which they were made.
#[derive(Default)]
struct Times {
    direct: Vec<Duration>,
    service: Vec<Duration>,
}

impl Times {
    /// Each client makes its share. A single client would soon use its ports again, and the kernel, which remembers closed
    /// connections for seconds, would first have to forget the old connection. Through a Service, this would happen sooner
    /// than directly, because several endpoints have several addresses.
    fn of_all(clients: &[&Namespace], stage: &Stage, count: u32) -> Result<Times> {
        let mut all = Times::default();
        for client in clients {
            let times = Times::take(client, &stage.direct(), stage.service(), count / clients.len() as u32)?;
            all.direct.extend(times.direct);
            all.service.extend(times.service);
        }
        Ok(all)
    }

    /// Connects directly to each of the endpoints in turn, so that each gets as many connections as through the Service.
    fn take(client: &Namespace, direct: &[SocketAddr], service: SocketAddr, count: u32) -> Result<Times> {
        client.run(|| {
            let mut times = Times::default();
            // With few connections, the ratio is higher, and differs more from run to run.
            let unmeasured = count / 10;
            let mut endpoints = direct.iter().cycle();
            let mut next = || endpoints.next().copied().ok_or("a Service without endpoints");
            for _ in 0..unmeasured {
                connect(next()?)?;
                connect(service)?;
            }
            for round in 0..count {
                // The first connection of a pair is sometimes the slower one.
                if round % 2 == 0 {
                    times.direct.push(connect(next()?)?);
                    times.service.push(connect(service)?);
                } else {
                    times.service.push(connect(service)?);
                    times.direct.push(connect(next()?)?);
                }
            }
            Ok(times)
        })?
    }

    /// The median, over blocks of connections, of the ratio of the block's medians: now and then all connections take a
    /// third longer or shorter from one moment on (presumably a process was moved to another processor).
    fn ratio(&self) -> f64 {
        const BLOCK: usize = 100;
        let blocks = self.direct.chunks(BLOCK).zip(self.service.chunks(BLOCK));
        let median = |times: &[Duration]| quantile(&mut times.to_vec(), 0.5).as_secs_f64();
        let mut ratios: Vec<f64> = blocks.map(|(direct, service)| median(service) / median(direct)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    }
}

/// Fills the neighbour tables before anything is measured.
pub(super) fn warm_up(subject: &Subject<'_>) -> Result<()> {
    for client in subject.stage.clients(subject.name)? {
        client.run(|| subject.stage.direct().into_iter().try_for_each(|to| connect(to).map(drop)))??;
    }
    Ok(())
}

fn connect(target: SocketAddr) -> Result<Duration> {
    let begun = Instant::now();
    let stream = TcpStream::connect_timeout(&target, TIMEOUT).map_err(|e| format!("{target}: {e}"))?;
    let time = begun.elapsed();
    // Reset, not closed: else thousands of sockets would stay in TIME_WAIT.
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(time)
}
