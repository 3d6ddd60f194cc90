//! How long a test waits for an event that must happen. One value for all tests.

use std::time::Duration;

/// Only a test that fails waits this long, so it is far more than anything takes on a busy machine or in an emulated one. A test
/// must not be decided by how fast the machine is: where no answer is the right answer, wait for a sign of it instead. (An emulated
/// machine beside a load average of twenty took 760 seconds for a test that takes fifty on an idle one.)
pub const PATIENCE: Duration = Duration::from_secs(1800);

/// How long the answer to one request may take before it counts as lost. A busy machine delays answers by seconds. Tests that expect
/// silence wait this long for nothing, so it is not [`PATIENCE`].
pub const ANSWER: Duration = Duration::from_secs(30);
