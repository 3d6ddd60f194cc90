//! The time from the API's answer to an endpoint change until the kernel has the change: one change at a time, and many
//! each second. Also counts the kernel's notifications for one change.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use super::{Change, Figure, Figures, Listener, Proxy, Result, Subject, quantile};

/// Longer than kube-proxy keeps changes back after a sync (a second), so that each is met by a proxy at rest.
const REST: Duration = Duration::from_millis(1_200);
const PATIENCE: Duration = Duration::from_secs(120);

/// The first change number of each step: no two changes have the same number.
pub(super) const FIRST_ALONE: usize = 0;
const FIRST_CHURN: usize = 10_000;
pub(super) const FIRST_RESTART: usize = 9_000;

pub(super) fn alone(
    subject: &Subject<'_>,
    listener: &Listener,
    proxy: &mut Proxy,
    figures: &mut Figures,
) -> Result<()> {
    let count = subject.options.changes as usize;
    let mut times = Vec::new();
    let (before, server_before) = (listener.announced(), subject.stage.spent_by_server()?);
    for number in FIRST_ALONE..FIRST_ALONE + count {
        let change = subject.change(number);
        let made = subject.stage.make(&change)?;
        let arrived = listener
            .wait_for(change.address, PATIENCE)
            .ok_or("a change was never announced by the kernel")?;
        times.push(arrived.saturating_duration_since(made));
        thread::sleep(REST);
        proxy.check()?;
    }
    let announced = listener.announced().since(before);
    let server = subject.stage.spent_by_server()?.since(server_before);
    figures.set_time(Figure::ChangeServerCpu, server.cpu / subject.options.changes);
    figures.set(Figure::ChangeServerBytes, server.bytes as f64 / count as f64);
    figures.set_time(Figure::Change50, quantile(&mut times, 0.5));
    figures.set_time(Figure::Change99, quantile(&mut times, 0.99));
    figures.set(Figure::ChangeMessages, announced.messages as f64 / count as f64);
    figures.set(Figure::ChangeBytes, announced.bytes as f64 / count as f64);
    if announced.lost {
        figures.at_least.extend([Figure::ChangeMessages, Figure::ChangeBytes]);
    }
    Ok(())
}

pub(super) fn churn(
    subject: &Subject<'_>,
    listener: &Listener,
    proxy: &mut Proxy,
    figures: &mut Figures,
) -> Result<()> {
    let (rate, seconds) = (subject.options.churn_rate, subject.options.churn_seconds);
    // Create the changes before, so that this is not part of the measurement.
    let numbers = FIRST_CHURN..FIRST_CHURN + (rate * seconds) as usize;
    let changes: Vec<Change> = numbers.map(|number| subject.change(number)).collect();
    let (cpu_before, server_before) = (proxy.cpu()?, subject.stage.spent_by_server()?);
    let begun = Instant::now();
    let made = make_all(subject, &changes, Duration::from_secs(1) / rate)?;
    figures.set(Figure::ChurnRate, changes.len() as f64 / begun.elapsed().as_secs_f64());
    // The time to catch up counts as well. If the proxy never catches up, some changes count as unseen.
    if let Some(last) = changes.last() {
        listener.wait_for(last.address, PATIENCE);
    }
    let took = begun.elapsed().as_secs_f64();
    proxy.check()?;
    figures.set(Figure::ChurnCores, (proxy.cpu()? - cpu_before).as_secs_f64() / took);
    let server = subject.stage.spent_by_server()?.since(server_before);
    figures.set(Figure::ChurnServerCores, server.cpu.as_secs_f64() / took);
    figures.set(Figure::ChurnServerBytes, server.bytes as f64 / changes.len() as f64);
    // The last change need not be the last to arrive.
    thread::sleep(REST);
    let (mut times, unseen) = delays(&changes, &made, listener);
    if !times.is_empty() {
        figures.set_time(Figure::Churn50, quantile(&mut times, 0.5));
        figures.set_time(Figure::Churn99, quantile(&mut times, 0.99));
    }
    figures.set(Figure::ChurnUnseen, unseen as f64);
    Ok(())
}

/// Makes the changes at an even pace. Returns the times of the API's answers.
fn make_all(subject: &Subject<'_>, changes: &[Change], pace: Duration) -> Result<Vec<Instant>> {
    let begun = Instant::now();
    let mut answered = Vec::with_capacity(changes.len());
    for (due, change) in (0u32..).map(|turn| pace * turn).zip(changes) {
        thread::sleep(due.saturating_sub(begun.elapsed()));
        answered.push(subject.stage.make(change)?);
    }
    Ok(answered)
}

/// The delays from each answer until the kernel had that change, or a later change of the same Service: a proxy may merge
/// changes that come close together. Also returns how many changes neither arrived nor were superseded.
fn delays(changes: &[Change], made: &[Instant], listener: &Listener) -> (Vec<Duration>, usize) {
    let (mut later, mut times, mut unseen) = (HashMap::new(), Vec::new(), 0);
    for (change, made) in changes.iter().zip(made).rev() {
        let own = listener.arrival(change.address);
        let arrived = own.into_iter().chain(later.get(&change.service).copied()).min();
        match arrived {
            Some(arrived) => {
                times.push(arrived.saturating_duration_since(*made));
                later.insert(change.service, arrived);
            }
            None => unseen += 1,
        }
    }
    (times, unseen)
}
