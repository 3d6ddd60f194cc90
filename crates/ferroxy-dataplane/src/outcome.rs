//! The inputs and results of a dataplane: changes, outcomes, repairs, previews.

use std::sync::Arc;

use ferroxy_core::{ServiceIntent, ServiceName};

/// A Service as it must be, or `None` when it must not exist.
pub type Change = (ServiceName, Option<Arc<ServiceIntent>>);

/// The result of an attempt that could be made.
#[derive(Debug, Default)]
pub struct Outcome {
    pub receipt: Receipt,
    /// How many operations took effect.
    pub operations: usize,
    /// The Services that were refused. All others are in force.
    pub refused: Vec<Refusal>,
    /// A refusal shows that the state in force differs from what the dataplane recorded: verify.
    pub drift: bool,
}

/// A Service that could not be programmed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub service: ServiceName,
    pub reason: String,
}

impl Outcome {
    pub fn add(&mut self, other: Outcome) {
        self.receipt.add(other.receipt);
        self.operations += other.operations;
        self.refused.extend(other.refused);
        self.drift |= other.drift;
    }
}

/// The cost of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Receipt {
    /// The number of commits, where changes are committed together.
    pub commits: usize,
    pub messages: usize,
    pub bytes: usize,
}

impl Receipt {
    pub fn add(&mut self, other: Receipt) {
        self.commits += other.commits;
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// What verification found and did.
#[derive(Debug, Default)]
pub struct Repair {
    pub receipt: Receipt,
    /// How many operations the repair took; 0 when nothing differed.
    pub operations: usize,
    /// Some of them, in the language of the mode's own tool.
    pub examples: Vec<String>,
    /// What still differs after the repair: repeating it at once does not help.
    pub unrepaired: Option<String>,
}

/// What `start` would do.
#[derive(Debug, Default)]
pub struct Preview {
    /// As the mode's own tool would read it.
    pub text: String,
    pub operations: Vec<String>,
}

/// How a dataplane chooses an endpoint, always at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChoiceOfEndpoints {
    /// As the Intent says: with policy `Local`, clients on this node reach other endpoints than external clients.
    #[default]
    ByClient,
    /// A frontend has one list of endpoints for all clients.
    ByFrontend,
}

/// How much of a Service is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programmed {
    /// The dataplane has no state of ours at all.
    Nothing,
    Parts {
        right: usize,
        wanted: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_add_up() {
        let refusal = Refusal { service: ServiceName::new("a", "b"), reason: "no".into() };
        let one = || Outcome {
            receipt: Receipt { commits: 1, messages: 2, bytes: 3 },
            operations: 4,
            refused: vec![refusal.clone()],
            drift: false,
        };
        let mut sum = one();
        sum.add(Outcome { drift: true, ..one() });
        assert_eq!(sum.receipt, Receipt { commits: 2, messages: 4, bytes: 6 });
        assert_eq!((sum.operations, sum.refused.len(), sum.drift), (8, 2, true));
    }
}
