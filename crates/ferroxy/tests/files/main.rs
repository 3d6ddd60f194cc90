//! Files that are not Rust: manifests, chart, unit, image, packages, alerts, documented schemas and the list of advisories.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod advisories;
mod deploy;
mod image;
mod monitoring;
mod packages;
mod schema;
#[path = "../support/mod.rs"]
mod support;
