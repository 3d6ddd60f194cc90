//! How many Services have problems. The count has to look at all of them: it runs only while the status is requested, in
//! small questions, and a completed count is followed by a pause of a hundred times its duration.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Page, Refused};
use crate::agent::questions::{MOST_SERVICES, Question, State};

const RARELY: Duration = Duration::from_secs(10);
/// The pause after a count, in multiples of its duration.
const SHARE: u32 = 100;
/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub struct Count {
    known: watch::Sender<Option<usize>>,
    run: Mutex<Run>,
}

#[derive(Debug, Default)]
struct Run {
    is_running: bool,
    /// No new count before this time.
    again: Option<Instant>,
    /// The number of the last entry of the journal when the count began.
    at_entry: Option<u64>,
}

impl Count {
    /// The last result.
    pub fn last(&self) -> Option<usize> {
        *self.known.borrow()
    }

    /// Whether to count now: the journal has new entries, and the last count is long enough ago.
    fn begin(&self, last_entry: Option<u64>) -> bool {
        let mut run = self.run();
        let is_due = run.again.is_none_or(|again| again <= Instant::now());
        let begins = !run.is_running && is_due && (self.last().is_none() || run.at_entry != last_entry);
        if begins {
            *run = Run { is_running: true, again: None, at_entry: last_entry };
        }
        begins
    }

    fn end(&self, found: Result<usize, Refused>, took: Duration) {
        let pause = match found {
            Ok(problems) => {
                self.known.send_replace(Some(problems));
                RARELY.max(took * SHARE)
            }
            // The agent was too busy to answer: most of the time was spent waiting for it.
            Err(_) => RARELY.max(took),
        };
        let mut run = self.run();
        run.is_running = false;
        run.again = Some(Instant::now() + pause);
    }

    fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    /// Starts a count if it is due, and waits for the first result for at most `patience`.
    pub(super) async fn count_problems(self: &Arc<Page>, patience: Duration) {
        // Before the first sync every Service is waiting, so a count would be meaningless.
        if !self.status.now().health.first_sync_done() {
            return;
        }
        if self.problems.begin(self.status.journal.as_ref().map(|journal| journal.last())) {
            let page = Arc::clone(self);
            tokio::spawn(async move {
                let began = Instant::now();
                let found = page.count().await;
                page.problems.end(found, began.elapsed());
            });
        }
        // The count stays unknown if this takes too long.
        let _ = timeout(patience, self.problems.known.subscribe().wait_for(Option::is_some)).await;
    }

    async fn count(&self) -> Result<usize, Refused> {
        let (mut after, mut problems) = (None, 0);
        loop {
            let services = |reply| Question::Services { after, limit: MOST_SERVICES, reply };
            let part = self.asker.ask(services).await?;
            let has_problem = |state: State| matches!(state, State::Problem | State::Refused);
            problems += part.items.iter().filter(|row| has_problem(row.state)).count();
            after = part.next;
            if after.is_none() {
                return Ok(problems);
            }
            sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    #[test]
    fn a_count_that_failed_is_repeated_sooner_than_one_that_took_as_long() {
        let took = Duration::from_secs(60);
        let pause_after = |found| {
            let count = Count::default();
            assert!(count.begin(None));
            count.end(found, took);
            assert!(!count.begin(None), "not at once");
            let again = count.run().again.unwrap();
            again.saturating_duration_since(Instant::now())
        };
        let refused = Refused::new(StatusCode::SERVICE_UNAVAILABLE, "the agent is busy".to_owned());
        assert!(pause_after(Err(refused)) <= took);
        assert!(pause_after(Ok(1)) > took);
    }
}
