//! The random numbers of this thread.

use std::cell::RefCell;

use crate::pick::random::Random;

thread_local! {
    static RANDOM: RefCell<Random> = RefCell::new(Random::new());
}

pub fn with<T>(use_it: impl FnOnce(&mut Random) -> T) -> T {
    RANDOM.with_borrow_mut(use_it)
}
