//! The kernel's numbers of ipsets: the text of `-m set` has the name of a set, the kernel's struct has the number.

use std::collections::BTreeMap;

/// The names of the existing sets by number: all that reading and writing rules needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sets(BTreeMap<u16, Box<str>>);

impl Sets {
    pub fn number(&self, name: &str) -> Option<u16> {
        self.0.iter().find(|(_, known)| ***known == *name).map(|(number, _)| *number)
    }

    pub fn name(&self, number: u16) -> Option<&str> {
        self.0.get(&number).map(|name| &**name)
    }
}

impl FromIterator<(u16, String)> for Sets {
    fn from_iter<I: IntoIterator<Item = (u16, String)>>(sets: I) -> Sets {
        Sets(sets.into_iter().map(|(number, name)| (number, name.into())).collect())
    }
}
