//! A State as text: the rules as their tools print them, and the proxy's listeners and pools.

use std::fmt;

pub use ferroxy_pools::text::{frontend_text, pool_text};
use ferroxy_proxy::Redirect;

use crate::ports::LOCAL;
use crate::state::State;

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.rules.nftables, self.rules.iptables)?;
        self.routes.iter().try_for_each(|address| writeln!(f, "route local {address} dev lo"))?;
        self.redirects.iter().try_for_each(|(key, it)| writeln!(f, "{}", redirect_text(key, it)))?;
        self.pools.iter().try_for_each(|(key, it)| writeln!(f, "{}", pool_text(key, it)))?;
        self.frontends.values().try_for_each(|it| writeln!(f, "{}", frontend_text(it)))
    }
}

pub fn redirect_text(_: &str, redirect: &Redirect) -> String {
    let class = if redirect.class == LOCAL { "local" } else { "cluster" };
    format!("listen tcp {} for redirected clients ({class})", redirect.address)
}
