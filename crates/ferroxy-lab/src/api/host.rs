//! Operations that tests use with any API server, ours or the real one.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::kind::Kind;
use super::kubeconfig::Login;
use super::server::Server;
use crate::error::{LabError, Result};

pub trait ApiHost: Send + Sync {
    /// Creates or replaces an object.
    fn put(&self, object: &Value) -> Result<()>;

    /// An empty namespace for cluster-wide kinds. A missing object is an error.
    fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<()>;

    /// Writes a kubeconfig for the user of kube-proxy, and the files that it names, into a folder.
    fn kubeconfig(&self, folder: &Path, login: Login) -> Result<PathBuf>;

    /// The documents of a YAML stream, such as `objects.yaml` of a conformance case.
    fn load(&self, yaml: &str) -> Result<()> {
        read_documents(yaml)?.iter().try_for_each(|object| self.put(object))
    }
}

pub(super) fn read_documents(yaml: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(yaml).map_err(|error| LabError::Api(format!("not YAML: {error}")))
}

impl ApiHost for Server {
    fn put(&self, object: &Value) -> Result<()> {
        Server::put(self, object).map(drop)
    }

    fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<()> {
        Server::delete(self, kind, namespace, name).map(drop)
    }

    fn kubeconfig(&self, folder: &Path, login: Login) -> Result<PathBuf> {
        Server::kubeconfig(self, folder, login)
    }
}
