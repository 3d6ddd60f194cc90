//! How long a test waits for what must come. One value for all of them.

use std::time::Duration;

/// Only a test that fails waits this long, so it is far more than anything takes on a busy machine or in an emulated one. A test
/// must not be decided by how fast the machine is: where no answer is the right answer, wait for a sign of it instead.
pub const PATIENCE: Duration = Duration::from_secs(600);
