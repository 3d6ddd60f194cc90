//! How many elements of Services need each shared element or chain, or how many more than before. Every Service needs some, so this
//! takes as little memory as possible.

use std::collections::BTreeMap;

use crate::shared::Shared;

#[derive(Debug, Default)]
pub(crate) struct Users {
    /// By the number of what is shared.
    numbered: BTreeMap<u64, i32>,
    /// What is too long to have a number.
    others: BTreeMap<Shared, i32>,
}

impl Users {
    pub(crate) fn get(&self, shared: Shared) -> i32 {
        let count = match shared.number() {
            Some(number) => self.numbered.get(&number),
            None => self.others.get(&shared),
        };
        count.copied().unwrap_or(0)
    }

    /// What has no user may stay, with a zero.
    pub(crate) fn add(&mut self, shared: Shared, more: i32) {
        let count = match shared.number() {
            Some(number) => self.numbered.entry(number).or_insert(0),
            None => self.others.entry(shared).or_insert(0),
        };
        *count += more;
    }

    pub(crate) fn remove(&mut self, shared: Shared) {
        match shared.number() {
            Some(number) => self.numbered.remove(&number),
            None => self.others.remove(&shared),
        };
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Shared, i32)> + Clone {
        let numbered = self.numbered.iter().filter_map(|(number, count)| {
            let shared = Shared::from_number(*number)?;
            Some((shared, *count))
        });
        numbered.chain(self.others.iter().map(|(shared, count)| (*shared, *count)))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Shared> + Clone {
        self.iter().map(|(shared, _)| shared)
    }

    /// Takes as little memory as possible. For when there are many new ones.
    pub(crate) fn shrink(&mut self) {
        // Keys that arrive in order leave the nodes of such a map half empty.
        self.numbered = std::mem::take(&mut self.numbered).into_iter().collect();
        self.others = std::mem::take(&mut self.others).into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::{Family, Protocol};

    use super::*;
    use crate::chain::ChainId;

    #[test]
    fn users_are_counted_with_and_without_a_number() {
        let addresses = ["10.96.0.80", "2001:db8::1"].map(|text| text.parse().unwrap());
        let chain = Shared::Chain(Family::V4, ChainId::To(80));
        let hairpins = addresses.map(|address| Shared::Hairpin(address, Protocol::Tcp, 80));
        let all: Vec<Shared> =
            addresses.map(Shared::ClusterIp).into_iter().chain(hairpins).chain([chain]).collect();
        let mut users = Users::default();
        for (index, shared) in all.iter().enumerate() {
            users.add(*shared, 1);
            users.add(*shared, index as i32);
        }
        users.shrink();
        let mut found: Vec<_> = users.iter().collect();
        found.sort_unstable_by_key(|(_, count)| *count);
        assert_eq!(found, all.iter().copied().zip(1..).collect::<Vec<_>>());
        for (shared, count) in found {
            assert_eq!(users.get(shared), count);
            users.remove(shared);
            assert_eq!(users.get(shared), 0);
        }
        assert_eq!(users.keys().count(), 0);
    }
}
