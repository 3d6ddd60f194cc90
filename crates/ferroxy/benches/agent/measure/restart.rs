//! A restart with the rules in place, twice: once when nothing has changed, to count needless changes of rules; once when
//! an endpoint has moved meanwhile, to measure how long the proxy takes to be up to date again. All the time, a client makes
//! connections through the Service that does not change.

use std::thread;
use std::time::{Duration, Instant};

use ferroxy_lab::Protocol;
use ferroxy_lab::load::{Load, LoadPlan};

use super::change::FIRST_RESTART;
use super::{Figure, Figures, Listener, Proxy, Result, Subject};

const PACE: Duration = Duration::from_millis(5);

pub(super) fn measure(
    subject: &Subject<'_>,
    listener: &Listener,
    mut proxy: Proxy,
    figures: &mut Figures,
) -> Result<Proxy> {
    let patience = subject.patience();
    // Tidying after the churn must not be counted for the restart.
    wait_for_silence(listener, &mut proxy, patience)?;
    let plan = LoadPlan {
        interval: PACE,
        max_time: patience * 2,
        ..LoadPlan::back_to_back(Protocol::Tcp, subject.stage.service())
    };
    let load = Load::start(subject.stage.client(subject.name)?, plan)?;

    let before = listener.announced();
    proxy.stop()?;
    let mut proxy = subject.start()?;
    wait_for_silence(listener, &mut proxy, patience)?;
    let announced = listener.announced().since(before);
    figures.set(Figure::RestartMessages, announced.messages as f64);
    if announced.lost {
        figures.at_least.push(Figure::RestartMessages);
    }

    let change = subject.change(FIRST_RESTART);
    proxy.stop()?;
    subject.stage.make(&change)?;
    let mut proxy = subject.start()?;
    let arrived =
        listener.wait_for(change.address, patience).ok_or("what changed meanwhile never arrived")?;
    figures.set_time(Figure::RestartCurrent, arrived - proxy.started());
    proxy.check()?;
    figures.set(Figure::RestartMemory, proxy.memory()?.peak as f64 / 1e6);
    let report = load.stop()?;
    if report.successes() == 0 {
        return Err("no connection was made during the restarts".into());
    }
    figures.set(Figure::RestartFailures, report.failures.len() as f64);
    Ok(proxy)
}

/// Waits until the proxy is idle, and the kernel has announced nothing for some seconds.
fn wait_for_silence(listener: &Listener, proxy: &mut Proxy, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        let before = listener.announced();
        proxy.settle(patience)?;
        thread::sleep(Duration::from_secs(2));
        if listener.announced() == before {
            return Ok(());
        }
    }
    Err("the kernel's rules change all the time, and nobody has changed anything".into())
}
