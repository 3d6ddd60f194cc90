//! Notices changes that others make to iptables' chains of the nft variant, which are nf_tables': its notifications name the chain.
//! What to do about it is the agent's business. (Legacy tables tell nobody.)

use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use ferroxy_iptables::TableName;
use ferroxy_iptables::program::is_builtin;
use ferroxy_netlink::nftables::{Ignorer, Monitor, Notice};
use tracing::warn;

use crate::agent::Input;

/// Whether a chain is the mode's own.
type Owns = fn(TableName, &str) -> bool;

/// After an error of the watched socket, so that a broken one does not take a core.
const PAUSE: Duration = Duration::from_secs(1);

/// Says `Drift`, from a thread of its own, when somebody changes chains of ours, or chains that our jumps are in. Whom the
/// answer ignores is not listened to. `noticed` gets the generation of all that was told of.
pub fn watch(
    owns: Owns,
    noticed: impl Fn(u32) + Send + 'static,
    inputs: Sender<Input>,
) -> anyhow::Result<Ignorer> {
    let mut monitor = Monitor::open()?;
    let ignorer = monitor.ignorer()?;
    let follow = move || follow(&mut monitor, owns, noticed, &inputs);
    thread::Builder::new().name("rules".into()).spawn(follow)?;
    Ok(ignorer)
}

fn follow(monitor: &mut Monitor, owns: Owns, noticed: impl Fn(u32), inputs: &Sender<Input>) {
    loop {
        let input = match monitor.next(None) {
            Ok(Some(Notice::Changed { family: Some(_), table, what, chain, .. })) => {
                concerns_us(owns, &table, what, chain.as_deref()).then_some(Input::Drift(
                    "our chains, or chains that lead to them, were changed by somebody else",
                ))
            }
            Ok(Some(Notice::Generation { id, .. })) => {
                noticed(id);
                None
            }
            Ok(Some(Notice::Lost)) => Some(Input::Drift("notifications of the kernel were lost")),
            Ok(Some(Notice::Changed { .. }) | None) => None,
            Err(error) => {
                warn!("cannot follow changes of the kernel's rules: {error}");
                thread::sleep(PAUSE);
                Some(Input::Drift("changes of the kernel's rules may have been missed"))
            }
        };
        if input.is_some_and(|input| inputs.send(input).is_err()) {
            return;
        }
    }
}

fn concerns_us(owns: Owns, table: &str, what: &str, chain: Option<&str>) -> bool {
    let Some(table) = TableName::parse(table) else { return false };
    chain.map_or(what == "table", |chain| owns(table, chain) || is_builtin(chain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_others_are_none_of_our_business() {
        let (iptables, ipvs): (Owns, Owns) = (ferroxy_iptables::program::owns, ferroxy_ipvs::program::owns);
        for (table, what, chain, in_iptables_mode, in_ipvs_mode) in [
            ("nat", "rule", Some("KUBE-SERVICES"), true, true),
            ("nat", "rule", Some("PREROUTING"), true, true),
            ("nat", "chain", Some("KUBE-SVC-LOLE4ISW44XBNF3G"), true, false),
            ("filter", "rule", Some("KUBE-IPVS-FILTER"), false, true),
            ("filter", "table", None, true, true),
            ("nat", "rule", Some("CNI-DN-0123456789"), false, false),
            ("nat", "set", None, false, false),
            ("raw", "table", None, false, false),
            ("mine", "rule", Some("PREROUTING"), false, false),
        ] {
            let found = [iptables, ipvs].map(|owns| concerns_us(owns, table, what, chain));
            assert_eq!(found, [in_iptables_mode, in_ipvs_mode], "{table} {what} {chain:?}");
        }
    }
}
