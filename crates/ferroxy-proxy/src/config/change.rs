//! A change: objects to add, replace and remove. Its cost depends on its own size only, not on the number of objects
//! served.

use std::collections::BTreeMap;

use super::{Frontend, Key, Pool, Redirect};

/// `Some` adds or replaces, `None` removes. Objects that are not named stay as they are. Pools are changed before
/// frontends are opened, and frontends are closed before pools are removed.
#[derive(Debug, Clone, Default)]
pub struct Change {
    pub pools: BTreeMap<Key, Option<Pool>>,
    pub frontends: BTreeMap<Key, Option<Frontend>>,
    pub redirects: BTreeMap<Key, Option<Redirect>>,
}

impl Change {
    pub fn set_pool(&mut self, key: impl Into<Key>, pool: Pool) -> &mut Change {
        self.pools.insert(key.into(), Some(pool));
        self
    }

    pub fn remove_pool(&mut self, key: impl Into<Key>) -> &mut Change {
        self.pools.insert(key.into(), None);
        self
    }

    pub fn set_frontend(&mut self, key: impl Into<Key>, frontend: Frontend) -> &mut Change {
        self.frontends.insert(key.into(), Some(frontend));
        self
    }

    pub fn remove_frontend(&mut self, key: impl Into<Key>) -> &mut Change {
        self.frontends.insert(key.into(), None);
        self
    }

    pub fn set_redirect(&mut self, key: impl Into<Key>, redirect: Redirect) -> &mut Change {
        self.redirects.insert(key.into(), Some(redirect));
        self
    }

    pub fn remove_redirect(&mut self, key: impl Into<Key>) -> &mut Change {
        self.redirects.insert(key.into(), None);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.frontends.is_empty() && self.redirects.is_empty()
    }
}
