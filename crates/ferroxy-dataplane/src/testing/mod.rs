//! Dataplanes for tests: one in memory, and a wrapper that makes any dataplane refuse, fail and lose notifications.

mod faulty;
mod memory;
mod mode;

pub use faulty::{Faults, Faulty, Injected};
pub use memory::{Kernel, Memory};
pub use mode::{GREETING, MEMORY};
