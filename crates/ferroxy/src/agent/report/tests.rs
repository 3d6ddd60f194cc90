//! Which diagnostics are logged, by a clock that the tests set.

use std::time::Duration;

use ferroxy_core::{Cause, Object};

use super::*;
use crate::agent::is_whole;

fn name(namespace: &str, name: &str) -> ServiceName {
    ServiceName::new(namespace, name)
}

fn problem(service: &ServiceName, field: usize) -> Diagnostic {
    Diagnostic {
        object: Object::service(service),
        field: format!("spec.ports[{field}]"),
        reason: "it cannot be used".into(),
        effect: "it is ignored".into(),
        cause: Cause::Field,
    }
}

/// How many lines a set of diagnostics causes.
fn lines(
    reports: &mut Reports,
    service: &ServiceName,
    fields: impl IntoIterator<Item = usize>,
    now: Instant,
) -> usize {
    let found = fields.into_iter().map(|field| problem(service, field)).collect();
    reports.news_of(service, found, now).lines.len()
}

#[test]
fn a_diagnostic_is_logged_when_it_appears_and_when_it_comes_back() {
    let (mut reports, now, web) = (Reports::default(), Instant::now(), name("default", "web"));
    let steps: [(&[usize], &[usize]); 6] =
        [(&[1, 2], &[1, 2]), (&[2, 1, 2], &[]), (&[2, 3], &[3]), (&[], &[]), (&[2], &[2]), (&[2], &[])];
    for (found, expected) in steps {
        let found = found.iter().map(|field| problem(&web, *field)).collect();
        let expected = expected.iter().map(|field| problem(&web, *field)).collect();
        assert_eq!(reports.news_of(&web, found, now), News { lines: expected, suppressed: 0 });
    }
}

#[test]
fn an_object_that_flaps_gets_a_few_lines_and_a_count_of_the_rest() {
    let (mut reports, start, web) = (Reports::default(), Instant::now(), name("default", "web"));
    let mut logged = 0;
    for tick in 0..600 {
        let now = start + Duration::from_millis(100 * tick);
        logged += lines(&mut reports, &web, [tick as usize % 2], now);
    }
    assert_eq!(logged, 10 + 1, "a burst, and one every 30 seconds");
    let later = start + Duration::from_secs(600);
    let news = reports.news_of(&web, vec![problem(&web, 7)], later);
    assert_eq!(news.lines.len(), 1);
    assert!((290..590).contains(&news.suppressed), "since the last line: {}", news.suppressed);
}

#[test]
fn a_namespace_with_many_broken_objects_does_not_hide_others() {
    let (mut reports, now) = (Reports::default(), Instant::now());
    let hostile: usize = (0..10_000)
        .map(|number| lines(&mut reports, &name("hostile", &format!("s{number}")), 0..5, now))
        .sum();
    assert_eq!(hostile, 50);
    assert_eq!(lines(&mut reports, &name("good", "web"), [1], now), 1);
}

#[test]
fn memory_has_a_bound_and_returns() {
    let (mut reports, start) = (Reports::default(), Instant::now());
    for number in 0..300 {
        lines(&mut reports, &name("hostile", &format!("s{number}")), 0..1000, start);
        assert!(reports.remembered <= MOST);
    }
    assert_eq!(reports.remembered, MOST);
    for number in 0..300 {
        lines(&mut reports, &name("hostile", &format!("s{number}")), [], start);
    }
    assert_eq!(reports.remembered, 0);
    let later = start + Duration::from_secs(3600);
    reports.prune_at = 0;
    assert_eq!(lines(&mut reports, &name("good", "web"), [1], later), 1);
    assert_eq!((reports.of_services.len(), reports.of_namespaces.len()), (1, 1));
}

#[test]
fn services_without_problems_are_not_remembered() {
    let (mut reports, now) = (Reports::default(), Instant::now());
    for number in 0..100 {
        lines(&mut reports, &name("good", &format!("s{number}")), [], now);
    }
    assert!(reports.of_services.is_empty() && reports.of_namespaces.is_empty());
}

#[test]
fn a_source_is_whole_unless_a_diagnostic_says_that_objects_may_be_missing() {
    let diagnostic = |kind, cause| Diagnostic {
        object: Object { kind, name: "it".into() },
        field: "Services".into(),
        reason: "one object cannot be used".into(),
        effect: "it is ignored".into(),
        cause,
    };
    assert!(is_whole(&[]));
    assert!(is_whole(&[diagnostic(ObjectKind::Service, Cause::Field)]));
    assert!(is_whole(&[diagnostic(ObjectKind::ApiServer, Cause::SourceStale)]));
    for kind in [ObjectKind::File, ObjectKind::ApiServer] {
        assert!(!is_whole(&[diagnostic(kind, Cause::SourceIncomplete)]), "{kind}");
    }
}
