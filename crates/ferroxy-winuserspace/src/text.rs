//! A State as text: a line for each address, pool and listener.

use std::fmt;

use ferroxy_pools::text::{frontend_text, pool_text};

use crate::state::State;

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.addresses.iter().try_for_each(|ip| writeln!(f, "address {ip}"))?;
        self.pools.iter().try_for_each(|(key, it)| writeln!(f, "{}", pool_text(key, it)))?;
        self.frontends.values().try_for_each(|it| writeln!(f, "{}", frontend_text(it)))
    }
}
