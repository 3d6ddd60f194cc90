//! Short texts that many objects have in common, such as names of ports: one copy of each.

use std::collections::HashSet;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Names {
    known: HashSet<Arc<str>>,
    prune_at: usize,
}

impl Names {
    pub(crate) fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.prune_at {
            // Those that nobody else has.
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.prune_at = (2 * self.known.len()).max(100);
        }
        let name: Arc<str> = text.into();
        self.known.insert(Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one_and_unused_ones_are_forgotten() {
        let mut names = Names::default();
        let http = names.share("http");
        assert!(Arc::ptr_eq(&http, &names.share("http")));
        for number in 0..10_000 {
            names.share(&format!("port-{number}"));
        }
        assert!(names.known.len() <= 100, "{}", names.known.len());
        assert!(Arc::ptr_eq(&http, &names.share("http")), "it is in use");
    }
}
