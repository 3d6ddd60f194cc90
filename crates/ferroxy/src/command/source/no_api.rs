//! In place of `api.rs` in a binary that is built without the feature `api`: there is no client for the Kubernetes API, and
//! manifests are the only source.

use std::sync::Arc;
use std::time::Duration;

use ferroxy_core::{Diagnostic, Event};

use crate::agent::Sender;
use crate::command::input::Settings;
use crate::serve::Status;

/// Has no values: it cannot be opened.
#[derive(Debug)]
pub enum ApiSource {}

/// Has no values either.
#[derive(Debug)]
pub enum ApiWatch {}

impl ApiSource {
    pub fn open(_: &Settings, _: Option<&str>) -> anyhow::Result<ApiSource> {
        anyhow::bail!(
            "--manifests is required: this binary is built without the client for the Kubernetes API"
        )
    }

    pub fn server(&self) -> String {
        match *self {}
    }

    pub fn read_once(self, _: Duration) -> anyhow::Result<(Vec<Event>, Vec<Diagnostic>)> {
        match self {}
    }

    pub fn watch(self, _: Sender, _: &Arc<Status>) -> anyhow::Result<ApiWatch> {
        match self {}
    }
}
