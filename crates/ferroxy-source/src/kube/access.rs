//! Address and credentials of the API server: read from a kubeconfig, from the pod's service account, or
//! from `--master` alone. Does not use the network.

mod personal;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::kube::client::{Body, Client, ConfigExt};
use ::kube::config::{AuthInfo, Config, Kubeconfig, KubeconfigError};
use ferroxy_platform::sandbox;
use http::header::USER_AGENT;
use http::uri::Scheme;
use http::{HeaderValue, Uri};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tower::{BoxError, ServiceBuilder};

use super::Options;
use personal::Found;

/// TCP keep-alive detects dead peers: after 10 seconds of silence a probe every 5 seconds, and 20 seconds without an
/// answer end the connection. A proxy in between may answer for a dead server; `probe.rs` detects that.
const SILENCE: Duration = Duration::from_secs(10);
const ASK_EVERY: Duration = Duration::from_secs(5);
#[cfg(target_os = "linux")]
const UNANSWERED: Duration = Duration::from_secs(20);

/// Where a pod has its service account, and the environment variables that name the API server.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Why a source cannot be opened. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "no API server configured: set --kubeconfig, --master or --manifests, or run in a pod ({variable} is not set here)"
    )]
    Nowhere { variable: &'static str },
    #[error(
        "there is no kubeconfig at {looked_for}: set --kubeconfig or $KUBECONFIG, or run in a pod ({variable} is not set here)"
    )]
    NoKubeconfig { looked_for: String, variable: &'static str },
    #[error("kubeconfig {path}: {reason}", path = path.display())]
    Kubeconfig { path: PathBuf, reason: String },
    #[error("service account of the pod: {reason}")]
    ServiceAccount { reason: String },
    #[error("--master {url:?}: {reason}")]
    Master { url: String, reason: String },
    #[error("credentials: cannot read {path}: {reason}", path = path.display())]
    Credentials { path: PathBuf, reason: io::Error },
    #[error("credentials for {server}: {reason}")]
    Unusable { server: String, reason: String },
    #[error("user agent {text:?}: cannot be a header")]
    UserAgent { text: String },
}

/// A configuration that was read, and the files it came from.
#[derive(Debug)]
pub(super) struct Access {
    config: Config,
    files: BTreeSet<PathBuf>,
    digest: u64,
}

impl Access {
    pub(super) fn read(options: &Options) -> Result<Access, OpenError> {
        // The digest is computed first: a file that changes while it is read then counts as changed and is read again.
        let (_, files) = configuration(options)?;
        let digest = digest(&files);
        let (mut config, files) = configuration(options)?;
        let agent = HeaderValue::from_str(&options.user_agent)
            .map_err(|_| OpenError::UserAgent { text: options.user_agent.clone() })?;
        config.headers.push((USER_AGENT, agent));
        read_token(&mut config.auth_info)?;
        let access = Access { config, files, digest };
        access.check()?;
        Ok(access)
    }

    /// The access of a person, found as kubectl finds it: this file, the files that `KUBECONFIG` names,
    /// `~/.kube/config`, or the service account of the pod. Files are read once, because a command does not run for
    /// long.
    pub(super) fn of_person(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        user_agent: &'static str,
    ) -> Result<Access, OpenError> {
        let found = personal::find(kubeconfig, |name| std::env::var_os(name))?;
        let mut config = match found {
            Found::Kubeconfig(path, mut kubeconfig) => {
                if let Some(context) = context {
                    kubeconfig.current_context = Some(context.to_owned());
                }
                resolved(&path, *kubeconfig, None)?.0
            }
            Found::Nothing { looked_for } => {
                in_cluster(|name| std::env::var_os(name)).map_err(|error| match error {
                    OpenError::Nowhere { variable } => OpenError::NoKubeconfig { looked_for, variable },
                    other => other,
                })?
            }
        };
        config.headers.push((USER_AGENT, HeaderValue::from_static(user_agent)));
        read_token(&mut config.auth_info)?;
        let access = Access { config, files: BTreeSet::new(), digest: 0 };
        access.check()?;
        Ok(access)
    }

    /// The namespace of the context, or `default`.
    pub(super) fn namespace(&self) -> &str {
        &self.config.default_namespace
    }

    /// `https://192.0.2.1:6443`
    pub(super) fn server(&self) -> String {
        self.config.cluster_url.to_string().trim_end_matches('/').to_owned()
    }

    /// Whether no file has changed since this was read.
    pub(super) fn is_current(&self) -> bool {
        digest(&self.files) == self.digest
    }

    /// Credentials come from an exec plugin; only the plugin knows how long they are valid.
    pub(super) fn runs_a_program(&self) -> bool {
        self.config.auth_info.exec.is_some()
    }

    /// The certificate of the server is not verified.
    pub(super) fn trusts_anyone(&self) -> bool {
        self.config.accept_invalid_certs && self.config.cluster_url.scheme() == Some(&Scheme::HTTPS)
    }

    /// Makes a client with its own connections. Blocks, since it may run an exec plugin. Needs a tokio runtime.
    pub(super) fn client(&self) -> Result<Client, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        tcp.set_keepalive(Some(SILENCE));
        tcp.set_keepalive_interval(Some(ASK_EVERY));
        tcp.set_keepalive_retries(Some(2));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(UNANSWERED));
        // Without TLS no root certificates are loaded: a small image has none.
        if self.config.cluster_url.scheme() == Some(&Scheme::HTTP) {
            return self.layered(tcp);
        }
        let tls = self.config.rustls_https_connector_with_connector(tcp).map_err(|it| failure(&it))?;
        self.layered(tls)
    }

    fn layered<C>(&self, connector: C) -> Result<Client, String>
    where
        C: legacy::connect::Connect + Clone + Send + Sync + 'static,
    {
        let http: legacy::Client<C, Body> = legacy::Client::builder(TokioExecutor::new()).build(connector);
        let service = ServiceBuilder::new()
            .layer(self.config.base_uri_layer())
            .option_layer(self.config.auth_layer().map_err(|it| with_causes(&it))?)
            .layer(self.config.extra_headers_layer().map_err(|it| with_causes(&it))?)
            .map_err(BoxError::from)
            .service(http);
        Ok(Client::new(service, self.config.default_namespace.clone()))
    }

    /// Finds errors before the first connection. Exec plugins are not run yet.
    fn check(&self) -> Result<(), OpenError> {
        for path in &self.files {
            fs::read(path).map_err(|reason| OpenError::Credentials { path: path.clone(), reason })?;
        }
        if self.config.cluster_url.scheme() == Some(&Scheme::HTTPS) && !self.runs_a_program() {
            let unusable = |it| OpenError::Unusable { server: self.server(), reason: with_causes(&it) };
            self.config.rustls_client_config().map_err(unusable)?;
        }
        Ok(())
    }
}

/// Why a request failed, without the names of library layers.
pub(super) fn failure(error: &::kube::Error) -> String {
    match error {
        ::kube::Error::Service(cause) => with_causes(cause.as_ref()),
        other => with_causes(other),
    }
}

/// An error and its causes in one line.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    plain(one_line(&text))
}

/// Without the client library's name for the error, and without links to its manual.
fn plain(text: String) -> String {
    let text = text.strip_prefix("ServiceError: ").unwrap_or(&text);
    text.split(": https://docs.rs/").next().unwrap_or(text).to_owned()
}

fn configuration(options: &Options) -> Result<(Config, BTreeSet<PathBuf>), OpenError> {
    let config = match (&options.kubeconfig, &options.master) {
        (Some(path), master) => return from_kubeconfig(path, master.as_deref()),
        (None, Some(url)) => Config::new(server_url(url, false)?),
        (None, None) => in_cluster(|name| std::env::var_os(name))?,
    };
    let mut files = credential_files(&config.auth_info);
    files.extend(config.root_cert_file.clone());
    Ok((config, files))
}

/// The environment is checked first, so that the error outside a cluster says which flag to use instead.
fn in_cluster(environment: impl Fn(&str) -> Option<OsString>) -> Result<Config, OpenError> {
    for variable in [HOST, PORT] {
        if environment(variable).is_none_or(|value| value.is_empty()) {
            return Err(OpenError::Nowhere { variable });
        }
    }
    let folder = sandbox::locate(Path::new(SERVICE_ACCOUNT));
    if folder == Path::new(SERVICE_ACCOUNT) {
        return Config::incluster()
            .map_err(|error| OpenError::ServiceAccount { reason: with_causes(&error) });
    }
    let text = |name: &str| environment(name).and_then(|it| it.into_string().ok()).unwrap_or_default();
    service_account_in(&folder, &text(HOST), &text(PORT))
}

/// The client library looks for the service account in one place only: for another place we build a kubeconfig.
fn service_account_in(folder: &Path, host: &str, port: &str) -> Result<Config, OpenError> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let path = |name: &str| folder.join(name).display().to_string();
    let text = serde_json::json!({
        "clusters": [{ "name": "pod", "cluster": {
            "server": format!("https://{host}:{port}"),
            "certificate-authority": path("ca.crt"),
        }}],
        "users": [{ "name": "pod", "user": { "tokenFile": path("token") } }],
        "contexts": [{ "name": "pod", "context": { "cluster": "pod", "user": "pod" } }],
        "current-context": "pod",
    });
    let wrong = |reason: String| OpenError::ServiceAccount { reason };
    let kubeconfig: Kubeconfig = serde_json::from_value(text).map_err(|error| wrong(error.to_string()))?;
    let mut config = Config::try_from(kubeconfig).map_err(|error| wrong(field(&error)))?;
    config.proxy_url = None;
    config.root_cert_file = Some(folder.join("ca.crt"));
    Ok(config)
}

/// Rewrites the files that a kubeconfig names to the paths where a HostProcess container sees them.
fn locate_credentials(kubeconfig: &mut Kubeconfig) {
    let clusters = kubeconfig.clusters.iter_mut().filter_map(|it| it.cluster.as_mut());
    let authorities = clusters.filter_map(|it| it.certificate_authority.as_mut());
    authorities.for_each(|path| *path = located(path));
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|it| it.auth_info.as_mut()) {
        let files = [&mut user.token_file, &mut user.client_certificate, &mut user.client_key];
        files.into_iter().flatten().for_each(|path| *path = located(path));
    }
}

fn located(path: &str) -> String {
    sandbox::locate(Path::new(path)).to_str().unwrap_or(path).to_owned()
}

fn from_kubeconfig(path: &Path, master: Option<&str>) -> Result<(Config, BTreeSet<PathBuf>), OpenError> {
    let path = &sandbox::locate(path);
    let wrong =
        |error: KubeconfigError| OpenError::Kubeconfig { path: path.to_owned(), reason: field(&error) };
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
    locate_credentials(&mut kubeconfig);
    resolved(path, kubeconfig, master)
}

/// The configuration of the current context, and the files it was read from.
fn resolved(
    path: &Path,
    mut kubeconfig: Kubeconfig,
    master: Option<&str>,
) -> Result<(Config, BTreeSet<PathBuf>), OpenError> {
    let wrong =
        |error: KubeconfigError| OpenError::Kubeconfig { path: path.to_owned(), reason: field(&error) };
    let cluster = chosen_cluster(&mut kubeconfig);
    let mut files = BTreeSet::from([path.to_owned()]);
    let mut own_proxy = false;
    if let Some(cluster) = cluster {
        own_proxy = cluster.proxy_url.as_ref().is_some_and(|url| !url.is_empty());
        if let Some(url) = master {
            let tls = cluster.certificate_authority.is_some() || cluster.certificate_authority_data.is_some();
            cluster.server = Some(server_url(url, tls)?.to_string());
        }
        files.extend(cluster.certificate_authority.as_ref().map(PathBuf::from));
    }
    let mut config = Config::try_from(kubeconfig).map_err(wrong)?;
    if own_proxy {
        let reason = "proxy-url is not supported: name the API server itself".to_owned();
        return Err(OpenError::Kubeconfig { path: path.to_owned(), reason });
    }
    // The client also takes a proxy from the environment, which is not meant for a node's connection to its API server.
    config.proxy_url = None;
    files.extend(credential_files(&config.auth_info));
    Ok((config, files))
}

fn chosen_cluster(kubeconfig: &mut Kubeconfig) -> Option<&mut ::kube::config::Cluster> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|it| it.name == *current)?.context.as_ref()?;
    kubeconfig.clusters.iter_mut().find(|it| it.name == context.cluster)?.cluster.as_mut()
}

fn credential_files(auth: &AuthInfo) -> BTreeSet<PathBuf> {
    // Inline data takes precedence over a file, as in every Kubernetes client.
    let unless = |data: bool, file: &Option<String>| file.clone().filter(|path| !data && !path.is_empty());
    let files = [
        unless(auth.token.is_some(), &auth.token_file),
        unless(auth.client_certificate_data.is_some(), &auth.client_certificate),
        unless(auth.client_key_data.is_some(), &auth.client_key),
    ];
    files.into_iter().flatten().map(PathBuf::from).collect()
}

/// Reads the token from its file, without the newline that most tools write: a header cannot contain one, and the client
/// would send it. (The digest detects changes of the file.)
fn read_token(auth: &mut AuthInfo) -> Result<(), OpenError> {
    let file = auth.token_file.take().filter(|path| auth.token.is_none() && !path.is_empty());
    if let Some(path) = file.map(PathBuf::from) {
        let text = fs::read_to_string(&path).map_err(|reason| OpenError::Credentials { path, reason })?;
        auth.token = Some(text.trim().to_owned().into());
    }
    Ok(())
}

/// An address without a scheme means the same as in kube-proxy: TLS if a certificate authority is given.
fn server_url(text: &str, tls: bool) -> Result<Uri, OpenError> {
    let wrong = |reason: String| OpenError::Master { url: text.to_owned(), reason };
    let scheme = if tls { "https" } else { "http" };
    let full = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    let url: Uri = full.parse().map_err(|error: http::uri::InvalidUri| wrong(error.to_string()))?;
    match (url.scheme_str(), url.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(url),
        _ => Err(wrong("must be such as https://192.0.2.1:6443".to_owned())),
    }
}

/// The problem of a kubeconfig, with the names of its fields.
fn field(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::CurrentContextNotSet => "current-context is missing".to_owned(),
        KubeconfigError::LoadContext(name) => format!("current-context: there is no context {name:?}"),
        KubeconfigError::LoadClusterOfContext(name) => {
            format!("the current context's cluster: there is no cluster {name:?}")
        }
        KubeconfigError::MissingClusterUrl => "the current context's cluster has no server".to_owned(),
        KubeconfigError::ParseClusterUrl(error) => format!("the current context's cluster: server: {error}"),
        KubeconfigError::ReadConfig(error, _) => format!("cannot be read: {error}"),
        KubeconfigError::Parse(error) => format!("is not valid: {}", one_line(&error.to_string())),
        KubeconfigError::LoadCertificateAuthority(error) => {
            format!("certificate-authority: {}", with_causes(error))
        }
        KubeconfigError::LoadClientCertificate(error) => {
            format!("client-certificate: {}", with_causes(error))
        }
        KubeconfigError::LoadClientKey(error) => format!("client-key: {}", with_causes(error)),
        KubeconfigError::ParseCertificates(error) => format!("certificate-authority: {error}"),
        other => with_causes(other),
    }
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// The digest of the files' contents. A file that cannot be read counts as well.
fn digest(files: &BTreeSet<PathBuf>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in files {
        path.hash(&mut hasher);
        fs::read(path).map_err(|error| error.kind()).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
