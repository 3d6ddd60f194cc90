//! What the agent writes into the journal, if there is one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferroxy_core::ServiceName;
use ferroxy_dataplane::{Change, Outcome, Refusal};

use super::Agent;
use super::round::Tried;
use crate::journal::{Entry, Sizes, What};

/// A larger round gets one entry for all of its Services, because the journal is bounded.
const MOST_OF_A_ROUND: usize = 100;

/// The Services of one round, with the details that the journal needs. Empty without a journal.
#[derive(Debug, Default)]
pub(super) struct Notes {
    services: BTreeMap<ServiceName, Note>,
    /// How many Services the round has, if they are too many for an entry each.
    many: Option<usize>,
}

/// How long a round took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    /// From the beginning of the round, with resolving.
    pub(super) whole: Duration,
    /// Programming alone.
    pub(super) in_kernel: Duration,
}

#[derive(Debug)]
struct Note {
    /// Before and after.
    sizes: [Sizes; 2],
    api_to_kernel: Option<f64>,
    is_gone: bool,
}

impl Notes {
    /// A change of this Service took `seconds` from the API to the kernel. The slower of both families counts.
    pub(super) fn waited(&mut self, name: &ServiceName, seconds: f64) {
        if let Some(note) = self.services.get_mut(name) {
            note.api_to_kernel = Some(note.api_to_kernel.map_or(seconds, |before| before.max(seconds)));
        }
    }
}

impl Agent {
    pub(super) fn note(&self, entry: impl FnOnce() -> Entry) {
        if let Some(journal) = &self.status.journal {
            journal.write(entry());
        }
    }

    /// Call it before the changes are made. It skips Services that do not change.
    pub(super) fn take_notes(&self, changes: &[Change]) -> Notes {
        if self.status.journal.is_none() {
            return Notes::default();
        }
        if changes.len() > MOST_OF_A_ROUND {
            return Notes { many: Some(changes.len()), ..Notes::default() };
        }
        let in_force = self.dataplane.acknowledged();
        let note = |(name, desired): &Change| {
            let before = in_force.service(name);
            (before != *desired).then(|| {
                let sizes = [Sizes::of(before.as_deref()), Sizes::of(desired.as_deref())];
                (name.clone(), Note { sizes, api_to_kernel: None, is_gone: desired.is_none() })
            })
        };
        Notes { services: changes.iter().filter_map(note).collect(), many: None }
    }

    /// The changes were made, except for those that were refused.
    pub(super) fn write_notes(&self, notes: Notes, tried: &Tried, outcome: &Outcome, took: Took) {
        let together = notes.many.unwrap_or(notes.services.len());
        let about = |entry: Entry| Entry {
            took: Some(took.whole.as_secs_f64()),
            in_kernel: Some(took.in_kernel.as_secs_f64()),
            operations: outcome.operations,
            together,
            ..entry
        };
        if let Some(many) = notes.many {
            self.note(|| {
                about(Entry::new(What::Changed, &format!("{many} Services were programmed together")))
            });
        }
        for (name, note) in notes.services {
            if outcome.refused.iter().any(|refusal| refusal.service == name) {
                continue;
            }
            let what = if note.is_gone { What::Removed } else { What::Changed };
            let text = if tried.parts.contains(&name) { "part of a large change" } else { "" };
            let sizes = Some(note.sizes);
            let api_to_kernel = note.api_to_kernel;
            self.note(|| {
                about(Entry { service: Some(name), sizes, api_to_kernel, ..Entry::new(what, text) })
            });
        }
    }

    /// A refusal is noted when it is new: it is retried for as long as it lasts.
    pub(super) fn note_refusals(&self, refused: &[Refusal]) {
        if self.status.journal.is_none() {
            return;
        }
        for Refusal { service, reason } in refused {
            if self.status.now().refused.get(service) != Some(reason) {
                self.note(|| Entry { service: Some(service.clone()), ..Entry::new(What::Refused, reason) });
            }
        }
    }

    pub(super) fn note_start(&self, words: &str, outcome: &Outcome, began: Instant) {
        self.note(|| Entry {
            took: Some(began.elapsed().as_secs_f64()),
            operations: outcome.operations,
            together: self.dataplane.acknowledged().len(),
            ..Entry::new(What::Started, words)
        });
    }
}
