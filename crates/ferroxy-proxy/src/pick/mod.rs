//! Which endpoint a connection gets: a pure choice among members, from values and a random number. No clock, no I/O.

pub mod affinity;
pub mod ejection;
pub mod latency;
#[cfg(test)]
mod laws;
pub mod lru;
pub mod random;
pub mod slow_start;

use crate::config::Policy;
use random::Random;

/// The input of a choice. Members are numbered from 0 to `count() - 1`.
pub trait Members {
    fn count(&self) -> usize;
    /// Already tried for this connection.
    fn is_tried(&self, member: usize) -> bool;
    /// Open connections.
    fn active(&self, member: usize) -> u64;
    /// The estimated latency in nanoseconds; `None` while nothing was measured.
    fn latency(&self, member: usize) -> Option<u64>;
    /// 1.0, or less in slow start; greater than 0.
    fn share(&self, member: usize) -> f32;
}

/// Chooses a member that was not tried yet; `None` if there is none. `turn` is the number of choices that were made before.
pub fn choose(policy: Policy, members: &impl Members, turn: usize, random: &mut Random) -> Option<usize> {
    match policy {
        Policy::RoundRobin => weighted(members, random, |_| turn),
        Policy::Random => weighted(members, random, |random| random.next() as usize),
        Policy::LeastConnections => least(members, turn),
        Policy::Latency => better_of_two(members, random),
    }
}

/// Proposes members; a member in slow start is taken with the probability of its share. After a few refusals the next
/// proposal is taken anyway, because members that are all in slow start have equal shares.
fn weighted(
    members: &impl Members,
    random: &mut Random,
    mut propose: impl FnMut(&mut Random) -> usize,
) -> Option<usize> {
    const REFUSALS: usize = 8;
    let mut start = propose(random);
    for _ in 0..REFUSALS {
        let member = untried_from(members, start)?;
        let share = members.share(member);
        if share >= 1.0 || random.fraction() < share {
            return Some(member);
        }
        // A random member next: the neighbour would get all connections that a new endpoint does not get.
        start = random.next() as usize;
    }
    untried_from(members, start)
}

fn untried_from(members: &impl Members, start: usize) -> Option<usize> {
    let count = members.count();
    (0..count).map(|step| start.wrapping_add(step) % count).find(|member| !members.is_tried(*member))
}

fn least(members: &impl Members, turn: usize) -> Option<usize> {
    let count = members.count();
    let round = (0..count).map(|step| turn.wrapping_add(step) % count);
    let load = |member: usize| (members.active(member) + 1) as f32 / members.share(member);
    // The first of equals in the round: `min_by` returns it.
    round.filter(|member| !members.is_tried(*member)).min_by(|a, b| load(*a).total_cmp(&load(*b)))
}

fn better_of_two(members: &impl Members, random: &mut Random) -> Option<usize> {
    let one = untried_from(members, random.next() as usize)?;
    let others = members.count().saturating_sub(1);
    if others == 0 {
        return Some(one);
    }
    // Any member but the first, each as likely.
    let other = (one + 1 + random.below(others)) % members.count();
    if members.is_tried(other) {
        return Some(one);
    }
    let load = |member: usize| (members.active(member) + 1) as f32 / members.share(member);
    let cost = |member: usize| match (members.latency(one), members.latency(other)) {
        // While one of the two is not measured, only connections can be compared.
        (Some(_), Some(_)) => members.latency(member).unwrap_or(0).max(1) as f32 * load(member),
        _ => load(member),
    };
    Some(if cost(other) < cost(one) { other } else { one })
}
