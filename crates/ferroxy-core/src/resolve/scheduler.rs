//! Rule: how the kernel's balancer chooses among a Service's endpoints (annotation `ferroxy.io/scheduler`).

use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::facts::Service;
use crate::policy::Policy;
use crate::scheduler::Scheduler;

/// `None`: as the node does by default. Where nothing can be chosen, the annotation is nobody's business.
pub(crate) fn chosen(
    service: &Service,
    policy: &Policy,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Scheduler> {
    let written = service.scheduler.as_ref().filter(|_| policy.schedulers)?;
    match written {
        Ok(scheduler) => Some(*scheduler),
        Err(text) => {
            diagnostics.push(Diagnostic {
                object: Object::service(&service.name),
                field: "metadata.annotations[ferroxy.io/scheduler]".to_owned(),
                reason: format!("{text} is not one of {}", Scheduler::ALL.map(Scheduler::as_str).join(", ")),
                effect: "the node's own scheduler chooses".to_owned(),
                cause: Cause::Field,
            });
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::resolve::tests::read;

    fn check(written: Option<&str>, expected: Option<Scheduler>, complaints: &[&str]) {
        let service = read(event::Service { scheduler: written.map(Into::into), ..Default::default() });
        let mut diagnostics = Vec::new();
        let policy = Policy { schedulers: true, ..Policy::default() };
        assert_eq!(chosen(&service, &policy, &mut diagnostics), expected, "{written:?}");
        let reasons: Vec<&str> = diagnostics.iter().map(|it| it.reason.as_str()).collect();
        assert_eq!(reasons, complaints);
        assert_eq!(chosen(&service, &Policy::default(), &mut diagnostics), None, "{written:?}");
        assert_eq!(diagnostics.len(), complaints.len(), "in other modes it is not judged");
    }

    #[test]
    fn a_scheduler_of_the_kernel_or_a_complaint() {
        check(None, None, &[]);
        for scheduler in Scheduler::ALL {
            check(Some(scheduler.as_str()), Some(scheduler), &[]);
        }
        let all = "rr, wrr, lc, wlc, lblc, lblcr, sh, dh, sed, nq, mh, fo, ovf";
        for (wrong, shown) in [("least", "`least`"), ("RR", "`RR`"), ("", "``")] {
            check(Some(wrong), None, &[&format!("{shown} is not one of {all}")]);
        }
    }
}
