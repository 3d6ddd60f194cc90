//! How long a TCP connection takes to be made: to the endpoint itself and through its Service, by turns, over the same
//! cables and through the same node.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use super::{Figure, Figures, Result, Subject, quantile};

const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn measure(subject: &Subject<'_>, figures: &mut Figures) -> Result<()> {
    let (endpoint, service) = (subject.stage.endpoint(), subject.stage.service());
    let (mut direct, mut through) = subject.stage.client(subject.name)?.run(|| -> Result<_> {
        let (mut direct, mut through) = (Vec::new(), Vec::new());
        for round in 0..subject.options.connections {
            // The first of a pair is sometimes the slower one.
            if round % 2 == 0 {
                direct.push(connect(endpoint)?);
                through.push(connect(service)?);
            } else {
                through.push(connect(service)?);
                direct.push(connect(endpoint)?);
            }
        }
        Ok((direct, through))
    })??;
    let (direct, through) = (quantile(&mut direct, 0.5), quantile(&mut through, 0.5));
    figures.set_time(Figure::ConnectDirect, direct);
    figures.set_time(Figure::ConnectService, through);
    figures.set(Figure::ConnectRatio, through.as_secs_f64() / direct.as_secs_f64());
    Ok(())
}

/// Makes the neighbours known to each other before anything is measured.
pub(super) fn warm_up(subject: &Subject<'_>) -> Result<()> {
    let endpoint = subject.stage.endpoint();
    subject.stage.client(subject.name)?.run(|| connect(endpoint))??;
    Ok(())
}

fn connect(target: SocketAddr) -> Result<Duration> {
    let begun = Instant::now();
    let stream = TcpStream::connect_timeout(&target, TIMEOUT).map_err(|e| format!("{target}: {e}"))?;
    let time = begun.elapsed();
    // Reset, not closed: else thousands of them would linger.
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(time)
}
