//! Slow start: the share of an endpoint by its age.

use crate::clock::Nanos;

/// The share at the beginning.
const FIRST: f32 = 0.1;

/// From a tenth to 1.0, in proportion to the time since the endpoint joined.
pub fn share(age: Nanos, window: Nanos) -> f32 {
    if age >= window { 1.0 } else { FIRST + (1.0 - FIRST) * (age as f32 / window as f32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_grows_to_one() {
        assert_eq!(share(0, 100), 0.1);
        assert!((0.54..0.56).contains(&share(50, 100)));
        assert_eq!(share(100, 100), 1.0);
        assert_eq!(share(0, 0), 1.0, "no window");
    }
}
