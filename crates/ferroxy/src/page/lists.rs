//! Lists of many Services: several questions, one answer.

use ferroxy_core::ServiceName;
use tokio::sync::oneshot;

use super::{Page, Refused};
use crate::agent::questions::{Part, Question};

/// The most items of one answer.
pub const MOST: usize = 1_000;
pub const USUAL: usize = 200;

impl Page {
    /// Requests parts until there are enough items, or no more. `question` takes the last Service so far, and a limit.
    pub(super) async fn parts<T>(
        &self,
        after: Option<ServiceName>,
        limit: usize,
        question: impl Fn(Option<ServiceName>, usize, oneshot::Sender<Part<T>>) -> Question,
    ) -> Result<Part<T>, Refused> {
        let limit = limit.clamp(1, MOST);
        let mut all = Part { items: Vec::new(), next: after };
        loop {
            let (after, left) = (all.next.take(), limit - all.items.len());
            let part = self.asker.ask(|reply| question(after, left, reply)).await?;
            all.items.extend(part.items);
            all.next = part.next;
            if all.next.is_none() || all.items.len() >= limit {
                return Ok(all);
            }
        }
    }
}
