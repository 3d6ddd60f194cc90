//! A Diagnostic: an object, the field that is wrong, the reason, and the effect on traffic.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use crate::foreign::printable;

/// The object a diagnostic is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object {
    pub kind: ObjectKind,
    /// `namespace/name`, a bare name for cluster-wide kinds, a path, or a URL.
    pub name: String,
}

/// The kinds of objects that diagnostics are about. Sorted by the words they print as, so that sorted diagnostics are
/// in alphabetical order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    ApiServer,
    EndpointSlice,
    /// A manifest file, or a directory of them.
    File,
    Node,
    Service,
    ServiceCidr,
}

/// The category of a Diagnostic. Code branches on this and on [`ObjectKind`], never on the texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// A field is missing or has a value that cannot be used.
    Field,
    /// An endpoint of an EndpointSlice cannot be used.
    Endpoint,
    /// Another field or another object already owns what this one claims.
    Conflict,
    /// So many endpoints fail their probes that the verdicts are ignored.
    Probes,
    /// The source cannot read everything: objects may exist that it does not report. So kernel state must not be
    /// removed only because the source does not report the objects for it.
    SourceIncomplete,
    /// The source reported everything once, but currently receives no changes.
    SourceStale,
}

impl ObjectKind {
    /// The API's spelling, where the API has the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            ObjectKind::ApiServer => "API server",
            ObjectKind::EndpointSlice => "EndpointSlice",
            ObjectKind::File => "File",
            ObjectKind::Node => "Node",
            ObjectKind::Service => "Service",
            ObjectKind::ServiceCidr => "ServiceCIDR",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Object {
    pub fn service(name: impl fmt::Display) -> Object {
        Object { kind: ObjectKind::Service, name: name.to_string() }
    }

    pub fn slice(name: impl fmt::Display) -> Object {
        Object { kind: ObjectKind::EndpointSlice, name: name.to_string() }
    }

    pub fn node(name: impl Into<String>) -> Object {
        Object { kind: ObjectKind::Node, name: name.into() }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// One value that cannot be used as it is written. It never stops the processing of anything else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Diagnostic {
    pub object: Object,
    /// Path of the field, as in the manifest: `spec.ports[1].nodePort`.
    pub field: String,
    /// What is wrong: `node port 30080 already belongs to default/api`.
    pub reason: String,
    /// What it means: `port 8080 gets no node port`.
    pub effect: String,
    pub cause: Cause,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { object, field, reason, effect, .. } = self;
        f.write_str(&printable(&format!("{object}: {field}: {reason}; {effect}")))
    }
}

/// Keeps the first Diagnostics in sort order, and counts all others. The others are not even copied, because tenants
/// decide how many there are.
#[derive(Debug)]
pub(crate) struct Limited {
    most: usize,
    first: BTreeSet<Diagnostic>,
    /// A Diagnostic that is added twice, and is not among the first, counts twice.
    left_out: usize,
}

impl Limited {
    pub(crate) fn to(most: usize) -> Limited {
        Limited { most, first: BTreeSet::new(), left_out: 0 }
    }

    pub(crate) fn add(&mut self, diagnostic: Cow<'_, Diagnostic>) {
        let is_full = self.first.len() >= self.most;
        if is_full && self.first.last().is_none_or(|last| *last < *diagnostic) {
            self.left_out += 1;
        } else if self.first.insert(diagnostic.into_owned()) && is_full {
            self.first.pop_last();
            self.left_out += 1;
        }
    }

    /// Sorted. One more Diagnostic, about `object`, has the number of those left out.
    pub(crate) fn finish(self, object: impl FnOnce() -> Object) -> Vec<Diagnostic> {
        let mut all: Vec<Diagnostic> = self.first.into_iter().collect();
        if self.left_out > 0 {
            all.push(more(object(), self.left_out));
            all.sort();
        }
        all
    }
}

/// Stands for the Diagnostics that are only counted.
pub(crate) fn more(object: Object, left_out: usize) -> Diagnostic {
    Diagnostic {
        object,
        field: "(more)".to_owned(),
        reason: format!("and {left_out} more"),
        effect: "they are not listed".to_owned(),
        cause: Cause::Field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_sort_like_the_words_they_print_as() {
        let kinds = [
            ObjectKind::ServiceCidr,
            ObjectKind::File,
            ObjectKind::Node,
            ObjectKind::Service,
            ObjectKind::ApiServer,
            ObjectKind::EndpointSlice,
        ];
        let (mut by_kind, mut by_word) = (kinds, kinds);
        by_kind.sort();
        by_word.sort_by_key(|kind| kind.as_str());
        assert_eq!(by_kind, by_word);
    }

    #[test]
    fn a_diagnostic_stays_on_its_line() {
        let hostile = "x\u{1b}[2J\n\u{202e}";
        let diagnostic = Diagnostic {
            object: Object::node(hostile),
            field: hostile.into(),
            reason: hostile.into(),
            effect: hostile.into(),
            cause: Cause::Field,
        };
        assert!(diagnostic.to_string().chars().all(|c| c.is_ascii() && !c.is_ascii_control()));
    }

    #[test]
    fn the_rest_is_counted() {
        let one = |number: usize| Diagnostic { field: number.to_string(), ..more(Object::node("n"), 1) };
        let limited = |most: usize, numbers: &mut dyn Iterator<Item = usize>| {
            let mut limited = Limited::to(most);
            numbers.for_each(|number| limited.add(Cow::Owned(one(number))));
            limited.finish(|| Object::service("a/b"))
        };
        let few = limited(10, &mut (0..60).rev());
        assert_eq!(few.len(), 11);
        assert!(few.is_sorted());
        assert_eq!(few[10].to_string(), "Service a/b: (more): and 50 more; they are not listed");
        assert_eq!(few, limited(10, &mut (0..60)), "in whatever order they come");
        assert_eq!(limited(60, &mut (0..60).chain(0..60)).len(), 60, "each once");
        assert_eq!(limited(0, &mut (0..60)).len(), 1);
    }

    #[test]
    fn a_diagnostic_reads_as_one_line() {
        let diagnostic = Diagnostic {
            object: Object::service("default/web"),
            field: "spec.ports[1].nodePort".into(),
            reason: "node port 30080 already belongs to default/api".into(),
            effect: "port 8080 gets no node port".into(),
            cause: Cause::Conflict,
        };
        let text = "Service default/web: spec.ports[1].nodePort: node port 30080 already belongs to default/api; port 8080 gets no node port";
        assert_eq!(diagnostic.to_string(), text);
    }
}
