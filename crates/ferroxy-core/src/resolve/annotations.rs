//! Rule: annotations of Services that the mode reads. The mode defines what they mean.

use std::sync::Arc;

use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::facts::Service;
use crate::facts::field::quoted;
use crate::policy::Policy;

/// The valid annotations, in the order of the mode's list. A mode ignores the annotations of other modes.
pub(crate) fn chosen(
    service: &Service,
    policy: &Policy,
    diagnostics: &mut Vec<Diagnostic>,
) -> Vec<(&'static str, Arc<str>)> {
    let mut chosen = Vec::new();
    for annotation in policy.annotations {
        let written = service.annotations.iter().find(|(key, _)| **key == *annotation.key);
        let Some((_, value)) = written else { continue };
        match (annotation.check)(value) {
            Ok(()) => chosen.push((annotation.key, Arc::from(&**value))),
            Err(reason) => diagnostics.push(Diagnostic {
                object: Object::service(&service.name),
                field: format!("metadata.annotations[{}]", annotation.key),
                reason: format!("{} {reason}", quoted(value)),
                effect: annotation.otherwise.to_owned(),
                cause: Cause::Field,
            }),
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::policy::Annotation;
    use crate::resolve::tests::read;

    static COLOURS: [Annotation; 1] = [Annotation {
        key: "ferroxy.io/colour",
        check: |value| if value == "red" { Ok(()) } else { Err("is not red".to_owned()) },
        otherwise: "it has no colour",
    }];

    fn check(written: &[(&str, &str)], expected: &[&str], complaints: &[&str]) {
        let annotations = written.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let service = read(event::Service { annotations, ..Default::default() });
        let policy = Policy { annotations: &COLOURS, ..Policy::default() };
        let mut diagnostics = Vec::new();
        let found = chosen(&service, &policy, &mut diagnostics);
        assert_eq!(found.iter().map(|(_, value)| &**value).collect::<Vec<_>>(), expected);
        let said: Vec<String> =
            diagnostics.iter().map(|it| format!("{}: {}", it.reason, it.effect)).collect();
        assert_eq!(said, complaints);
        assert_eq!(
            chosen(&service, &Policy::default(), &mut Vec::new()),
            [],
            "another mode does not read it"
        );
    }

    #[test]
    fn a_valid_value_is_kept_and_another_is_reported() {
        check(&[], &[], &[]);
        check(&[("ferroxy.io/colour", "red"), ("ferroxy.io/size", "7")], &["red"], &[]);
        check(&[("ferroxy.io/colour", "blue")], &[], &["`blue` is not red: it has no colour"]);
    }
}
