//! Errors as API servers send them: `Status` objects with the same code, reason and message.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::kind::Kind;

#[derive(Debug, Clone)]
pub(super) struct Status {
    pub code: u16,
    reason: &'static str,
    message: String,
    details: Option<Value>,
    pub retry_after: Option<Duration>,
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Status {
        Status { code, reason, message: message.into(), details: None, retry_after: None }
    }

    /// The answer with a status code, for faults.
    pub fn of_code(code: u16, retry_after: Option<Duration>) -> Status {
        let (reason, message) = match code {
            400 => ("BadRequest", "the server rejected our request for an unknown reason"),
            401 => ("Unauthorized", "Unauthorized"),
            403 => ("Forbidden", "forbidden: User \"system:anonymous\" cannot do this"),
            404 => ("NotFound", "the server could not find the requested resource"),
            406 => ("NotAcceptable", "only the following media types are accepted: application/json"),
            410 => ("Expired", "The resourceVersion for the provided watch is too old."),
            422 => ("Invalid", "the server rejected our request due to an error in our request"),
            429 => ("TooManyRequests", "too many requests, please try again later"),
            500 => ("InternalError", "an error on the server has prevented the request from succeeding"),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => ("Timeout", "the server was unable to return a response in the time allotted"),
            _ => ("", "unknown"),
        };
        Status { retry_after, ..Status::new(code, reason, message) }
    }

    pub fn unauthorized() -> Status {
        Status::of_code(401, None)
    }

    pub fn no_such_path() -> Status {
        Status::of_code(404, None)
    }

    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::new(400, "BadRequest", message)
    }

    pub fn not_found(kind: Kind, name: &str) -> Status {
        let resource = kind.resource();
        let full =
            if kind.group().is_empty() { resource.into() } else { format!("{resource}.{}", kind.group()) };
        let details = json!({"name": name, "group": kind.group(), "kind": resource});
        let message = format!("{full} {name:?} not found");
        Status { details: Some(details), ..Status::new(404, "NotFound", message) }
    }

    /// An object that breaks rules: each field, and what is wrong with it.
    pub fn invalid(kind: Kind, name: &str, causes: &[(&'static str, String)]) -> Status {
        let each: Vec<String> =
            causes.iter().map(|(field, why)| format!("{field}: Invalid value: {why}")).collect();
        let listed: Vec<Value> = causes
            .iter()
            .map(|(field, why)| json!({"reason": "FieldValueInvalid", "message": why, "field": field}))
            .collect();
        let details = json!({"name": name, "group": kind.group(), "kind": kind.name(), "causes": listed});
        let message = format!("{kind} {name:?} is invalid: {}", each.join(", "));
        Status { details: Some(details), ..Status::new(422, "Invalid", message) }
    }

    pub fn internal(message: impl Into<String>) -> Status {
        Status::new(500, "InternalError", message)
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn method_not_allowed() -> Status {
        Status::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub fn media_type(content_type: &str) -> Status {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json (and not {content_type:?})"
        );
        Status::new(415, "UnsupportedMediaType", message)
    }

    /// The port of a pod does not answer.
    pub fn unreachable(error: &str) -> Status {
        Status::new(503, "ServiceUnavailable", format!("error trying to reach service: {error}"))
    }

    pub fn not_acceptable() -> Status {
        Status::of_code(406, None)
    }

    /// A watch or an exact list of a version that has expired.
    pub fn expired(asked: u64, oldest: u64) -> Status {
        Status::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    pub fn continue_expired() -> Status {
        Status::new(
            410,
            "Expired",
            "The provided continue parameter is too old to display a consistent list result. You must start a new \
             list without the continue parameter.",
        )
    }

    /// A list that is not older than a version in the future.
    pub fn too_large_version(asked: u64, current: u64) -> Status {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        Status {
            details: Some(json!({"causes": causes, "retryAfterSeconds": 1})),
            retry_after: Some(Duration::from_secs(1)),
            ..Status::new(504, "Timeout", format!("Timeout: {message}"))
        }
    }

    /// A query parameter that is not allowed.
    pub fn forbidden_option(field: &'static str, message: &str) -> Status {
        let cause = format!("Forbidden: {message}");
        let causes = json!([{"reason": "FieldValueForbidden", "message": cause, "field": field}]);
        Status {
            details: Some(json!({"group": "meta.k8s.io", "kind": "ListOptions", "causes": causes})),
            ..Status::new(
                422,
                "Invalid",
                format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: {cause}"),
            )
        }
    }

    pub fn text(&self) -> Bytes {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        if let Some(after) = self.retry_after {
            status["details"]["retryAfterSeconds"] = after.as_secs().into();
        }
        status.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(status: &Status) -> Value {
        serde_json::from_slice(&status.text()).unwrap()
    }

    #[test]
    fn statuses_are_as_the_original_writes_them() {
        let gone = parsed(&Status::expired(5, 9));
        assert_eq!(gone["kind"], "Status");
        assert_eq!(gone["apiVersion"], "v1");
        assert_eq!(gone["status"], "Failure");
        assert_eq!((&gone["code"], &gone["reason"]), (&json!(410), &json!("Expired")));
        assert_eq!(gone["message"], "too old resource version: 5 (9)");

        let slice = parsed(&Status::not_found(Kind::EndpointSlice, "web-1"));
        assert_eq!(slice["message"], "endpointslices.discovery.k8s.io \"web-1\" not found");
        let node = parsed(&Status::not_found(Kind::Node, "ka"));
        assert_eq!(node["message"], "nodes \"ka\" not found");
        assert_eq!(node["details"], json!({"name": "ka", "group": "", "kind": "nodes"}));

        let busy = parsed(&Status::of_code(429, Some(Duration::from_secs(3))));
        assert_eq!(busy["details"]["retryAfterSeconds"], 3);
        assert_eq!(busy["reason"], "TooManyRequests");
    }
}
