//! A stand-in for computenetwork.dll and vmcompute.dll, for tests under wine. Copied to both names.
//!
//! Each function sends its arguments to the service in memory (`ferroxy_hcn::testing::serve`) whose address is in
//! [`ADDRESS`](forward::ADDRESS), or which a test in the same process has named for its thread, and returns what it answers.
//! Without a service it answers as if HNS did not run.

#![cfg(windows)]

mod exports;
mod forward;
