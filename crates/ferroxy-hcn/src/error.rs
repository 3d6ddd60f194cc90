//! Why a call failed, and what that means for the caller.

use std::fmt;

/// One failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}{}: {code}{}", Of(object), Of(text))]
pub struct Error {
    /// The function, as documentation spells it: `HcnCreateLoadBalancer`.
    pub call: String,
    /// The object that the call was about; empty where there is none.
    pub object: String,
    pub code: Code,
    /// The message of the service; often empty.
    pub text: String,
}

impl Error {
    pub fn new(call: impl Into<String>, code: Code, text: impl Into<String>) -> Error {
        Error { call: call.into(), object: String::new(), code, text: text.into() }
    }

    /// An answer that cannot be read.
    pub fn unreadable(call: impl Into<String>, why: impl fmt::Display) -> Error {
        Error::new(call, Code::INVALID_DATA, why.to_string())
    }

    pub fn about(self, object: impl fmt::Display) -> Error {
        Error { object: object.to_string(), ..self }
    }

    pub fn kind(&self) -> ErrorKind {
        self.code.kind()
    }
}

struct Of<'a>(&'a str);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " ({})", self.0) }
    }
}

/// An HRESULT. Those that wrap a Win32 code are kept as that code, as HNS itself reports either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(u32);

impl Code {
    pub const NOT_RUNNING: Code = Code(0x6b5);
    /// The call timed out: the service may have carried it out or not.
    pub const TIMEOUT: Code = Code(0x5b4);
    pub const SERVER_UNAVAILABLE: Code = Code(0x6ba);
    pub const SERVER_BUSY: Code = Code(0x6bb);
    pub const CALL_FAILED: Code = Code(0x6be);
    pub const CALL_NOT_EXECUTED: Code = Code(0x6bf);
    /// The service starts, or stops: nothing listens for calls.
    pub const NO_LISTENER: Code = Code(0x6d9);
    pub const CALL_CANCELLED: Code = Code(0x71a);
    pub const OUT_OF_RESOURCES: Code = Code(0x6b9);
    /// The object that would have answered ended with its process.
    pub const DISCONNECTED: Code = Code(0x8001_0108);
    pub const NOT_FOUND: Code = Code(0x490);
    pub const ALREADY_EXISTS: Code = Code(0xb7);
    pub const INVALID_DATA: Code = Code(0xd);
    pub const INVALID_HANDLE: Code = Code(0x6);
    pub const ACCESS_DENIED: Code = Code(0x5);
    pub const LIBRARY_MISSING: Code = Code(0x7e);
    pub const FUNCTION_MISSING: Code = Code(0x7f);
    pub const NOT_IMPLEMENTED: Code = Code(0x8000_4001);
    pub const NETWORK_NOT_FOUND: Code = Code(0x803b_0001);
    pub const ENDPOINT_NOT_FOUND: Code = Code(0x803b_0002);
    pub const SWITCH_PORT_NOT_FOUND: Code = Code(0x803b_0007);
    pub const INVALID_POLICY: Code = Code(0x803b_000d);
    pub const POLICY_EXISTS: Code = Code(0x803b_0012);
    pub const PORT_EXISTS: Code = Code(0x803b_0013);
    pub const INVALID_JSON: Code = Code(0x803b_001b);
    pub const INVALID_REFERENCE: Code = Code(0x803b_001c);
    pub const INVALID_IP: Code = Code(0x803b_001e);
    pub const MANAGER_STOPPING: Code = Code(0x803b_0020);
    pub const HAS_REFERENCES: Code = Code(0x803b_002c);
    pub const INVALID_INTERNAL_PORT: Code = Code(0x803b_002d);

    const FACILITY_WIN32: u32 = 0x8007_0000;

    pub fn new(hresult: u32) -> Code {
        match hresult & 0xffff_0000 {
            Code::FACILITY_WIN32 => Code(hresult & 0xffff),
            _ => Code(hresult),
        }
    }

    /// As the C interface returns it.
    pub fn hresult(self) -> u32 {
        if self.0 != 0 && self.0 <= 0xffff { Code::FACILITY_WIN32 | self.0 } else { self.0 }
    }

    pub fn kind(self) -> ErrorKind {
        match self {
            Code::NOT_RUNNING
            | Code::TIMEOUT
            | Code::SERVER_UNAVAILABLE
            | Code::SERVER_BUSY
            | Code::CALL_FAILED
            | Code::CALL_NOT_EXECUTED
            | Code::NO_LISTENER
            | Code::CALL_CANCELLED
            | Code::OUT_OF_RESOURCES
            | Code::DISCONNECTED
            | Code::MANAGER_STOPPING
            | Code::SWITCH_PORT_NOT_FOUND => ErrorKind::Unknown,
            Code::NOT_FOUND | Code::ENDPOINT_NOT_FOUND => ErrorKind::NotFound,
            Code::NETWORK_NOT_FOUND => ErrorKind::NetworkNotFound,
            Code::ALREADY_EXISTS | Code::POLICY_EXISTS | Code::PORT_EXISTS => ErrorKind::Exists,
            Code::INVALID_REFERENCE => ErrorKind::StaleReference,
            Code::HAS_REFERENCES => ErrorKind::HasReferences,
            Code::NOT_IMPLEMENTED => ErrorKind::NotImplemented,
            Code::LIBRARY_MISSING | Code::FUNCTION_MISSING => ErrorKind::Unsupported,
            Code::ACCESS_DENIED => ErrorKind::NotPermitted,
            _ => ErrorKind::Refused,
        }
    }

    fn words(self) -> Option<&'static str> {
        Some(match self {
            Code::NOT_RUNNING => "the Host Networking Service does not run",
            Code::TIMEOUT => "no answer in time",
            Code::SERVER_UNAVAILABLE => "the Host Networking Service cannot be reached",
            Code::SERVER_BUSY => "the Host Networking Service is too busy",
            Code::CALL_FAILED => "the remote procedure call failed",
            Code::CALL_NOT_EXECUTED => "the call failed and was not carried out",
            Code::NO_LISTENER => "the Host Networking Service does not listen",
            Code::CALL_CANCELLED => "the call was cancelled",
            Code::OUT_OF_RESOURCES => "no resources left for the call",
            Code::DISCONNECTED => "the Host Networking Service ended during the call",
            Code::NOT_FOUND => "not found",
            Code::ALREADY_EXISTS => "already exists",
            Code::INVALID_DATA => "the answer cannot be read",
            Code::ACCESS_DENIED => "access denied",
            Code::LIBRARY_MISSING => "the library is not installed",
            Code::FUNCTION_MISSING => "the library lacks a function",
            Code::NOT_IMPLEMENTED => "not implemented by this version of Windows",
            Code::NETWORK_NOT_FOUND => "network not found",
            Code::ENDPOINT_NOT_FOUND => "endpoint not found",
            Code::SWITCH_PORT_NOT_FOUND => "switch port not found",
            Code::INVALID_POLICY => "policy refused",
            Code::POLICY_EXISTS => "policy already exists",
            Code::PORT_EXISTS => "port already exists",
            Code::INVALID_JSON => "invalid JSON",
            Code::INVALID_REFERENCE => "invalid reference",
            Code::INVALID_IP => "address in no subnet of the network",
            Code::MANAGER_STOPPING => "the service is stopping",
            Code::HAS_REFERENCES => "still referred to",
            Code::INVALID_INTERNAL_PORT => "invalid internal port",
            _ => return None,
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => write!(f, "{words} (0x{:x})", self.0),
            None => write!(f, "error 0x{:x}", self.0),
        }
    }
}

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The service does not answer: the object may exist or not.
    Unknown,
    /// The object is gone.
    NotFound,
    NetworkNotFound,
    /// Another program has that id or that frontend.
    Exists,
    /// A document names an endpoint that is gone.
    StaleReference,
    /// Load balancers still name the endpoint.
    HasReferences,
    NotImplemented,
    /// This Windows has no such library.
    Unsupported,
    NotPermitted,
    /// The service rejects this document.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_codes_are_equal_to_plain_ones() {
        assert_eq!(Code::new(0x8007_06b5), Code::NOT_RUNNING);
        assert_eq!(Code::NOT_RUNNING.hresult(), 0x8007_06b5);
        assert_eq!(Code::new(0x803b_0013).hresult(), 0x803b_0013);
    }

    #[test]
    fn a_message_names_call_object_code_and_words() {
        let error = Error::new("HcnDeleteEndpoint", Code::HAS_REFERENCES, "in use").about("10.0.0.1");
        let text = "HcnDeleteEndpoint (10.0.0.1): still referred to (0x803b002c) (in use)";
        assert_eq!(error.to_string(), text);
        assert_eq!(Code::new(0x8888_0001).to_string(), "error 0x88880001");
    }

    #[test]
    fn silence_is_not_absence() {
        let of_calls =
            [0x6b5, 0x8007_06b5, 0x5b4, 0x6ba, 0x8007_06bb, 0x6be, 0x6bf, 0x6d9, 0x71a, 0x8007_06b9];
        for code in of_calls.into_iter().chain([0x8001_0108, 0x803b_0007, 0x803b_0020]) {
            assert_eq!(Code::new(code).kind(), ErrorKind::Unknown, "{code:x}");
        }
    }
}
