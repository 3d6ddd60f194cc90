//! The decisions of `list_watch.rs` that `follow.rs` executes: what to send, when, and whether to read on.

use std::time::Instant;

/// What to send.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    StreamingList,
    Page { limit: u32, token: Option<String> },
    Watch { version: String },
}

/// When to send it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wait {
    pub(super) until: Instant,
    /// May end early when the server answers other requests.
    pub(super) until_recovery: bool,
}

/// What to do after a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Go {
    On,
    Reconnect,
}
