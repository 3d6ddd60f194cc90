//! A real control plane: `etcd` and `kube-apiserver`, started for one test from the folder in `KUBEBUILDER_ASSETS` (the
//! convention of envtest). It has no controllers and no scheduler, so objects stay as they are.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Method;
use rcgen::KeyPair;
use serde_json::Value;

use super::access::{Authority, CertificateError, Identity};
use super::applier::Applier;
use super::caller::{Caller, Reply, Target};
use super::host::ApiHost;
use super::kind::Kind;
use super::kubeconfig::{self, Contents, Login};
use super::process::Process;
use crate::capability::tell_skipped;
use crate::error::{LabError, Result};
use crate::patience::PATIENCE;

const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// The administrator: tests create objects as this user.
const ADMIN_TOKEN: &str = "ferroxy-lab-admin";
/// The user of kube-proxy: the server binds it to the role `system:node-proxier`, and it has no other permissions.
const PROXY_TOKEN: &str = "ferroxy-lab-proxy";

/// The ranges of the conformance corpus.
const SERVICE_RANGES: &str = "10.96.0.0/16,fd00:10:96::/112";

/// The programs of a control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assets {
    etcd: PathBuf,
    kube_apiserver: PathBuf,
}

impl Assets {
    /// For the first line of a test. None if there is no control plane: the test must return. This prints a message and counts
    /// it, and is not a failure even in CI, because these programs are not part of this repository.
    pub fn require() -> Option<Assets> {
        match Assets::find() {
            Ok(assets) => Some(assets),
            Err(error) => {
                tell_skipped(&format!("no control plane: {error}"));
                None
            }
        }
    }

    /// From the folder in `KUBEBUILDER_ASSETS`. The error names what is missing.
    pub fn find() -> Result<Assets> {
        match std::env::var_os(ASSETS) {
            Some(folder) => Assets::of(Path::new(&folder)),
            None => Err(LabError::Api(format!("{ASSETS} names no folder with etcd and kube-apiserver"))),
        }
    }

    pub fn of(folder: &Path) -> Result<Assets> {
        let program = |name: &str| match folder.join(name) {
            path if path.is_file() => Ok(path),
            path => Err(LabError::Api(format!("there is no {}", path.display()))),
        };
        Ok(Assets { etcd: program("etcd")?, kube_apiserver: program("kube-apiserver")? })
    }
}

/// Runs until dropped.
#[derive(Debug)]
pub struct ControlPlane {
    // In the order in which they must be dropped.
    applier: Applier,
    kube_apiserver: Process,
    _etcd: Process,
    address: SocketAddr,
    papers: Papers,
}

impl ControlPlane {
    /// Ready when this returns. Listens on an address in the network namespace of the calling thread; keeps its files
    /// in a folder, which the caller removes.
    pub fn start(assets: &Assets, folder: &Path, address: Ipv4Addr) -> Result<ControlPlane> {
        let ports = Ports::find(address)?;
        let papers = Papers::write(folder, address)?;
        let mut arguments = etcd_arguments(folder, &ports);
        arguments.extend(dispensable_etcd_argument(&assets.etcd)?);
        let etcd = Process::start(&assets.etcd, &arguments, folder.join("etcd.log"))?;
        let its_health = Target { address: ports.etcd, authority: None, token: String::new() };
        wait_until_ready(&etcd, &Caller::new(its_health)?, "/health")?;

        let arguments = kube_apiserver_arguments(folder, &ports);
        let kube_apiserver =
            Process::start(&assets.kube_apiserver, &arguments, folder.join("kube-apiserver.log"))?;
        let authority = Some(papers.authority.certificate_der.clone());
        let caller = Caller::new(Target { address: ports.api, authority, token: ADMIN_TOKEN.to_owned() })?;
        wait_until_ready(&kube_apiserver, &caller, "/readyz")?;
        Ok(ControlPlane {
            applier: Applier::new(caller),
            kube_apiserver,
            _etcd: etcd,
            address: ports.api,
            papers,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id of kube-apiserver.
    pub fn server_process(&self) -> u32 {
        self.kube_apiserver.id()
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}

impl ApiHost for ControlPlane {
    fn put(&self, object: &Value) -> Result<()> {
        self.applier.put(object)
    }

    fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<()> {
        self.applier.delete(kind, namespace, name)
    }

    fn kubeconfig(&self, folder: &Path, login: Login) -> Result<PathBuf> {
        let contents = Contents {
            url: &self.url(),
            authority: Some(&self.papers.authority.certificate),
            token: PROXY_TOKEN,
            certificate: &self.papers.client.certificate,
            key: &self.papers.client.key,
        };
        kubeconfig::write(folder, login, &contents)
    }
}

fn wait_until_ready(process: &Process, caller: &Caller, path: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = process.ended()? {
            return Err(process.failure(&format!("has ended at its start ({status})")));
        }
        // Until it listens there is an error, and until it is ready another status.
        match caller.call(Method::GET, path, "application/json", Bytes::new()) {
            Ok(Reply { code: 200, .. }) => return Ok(()),
            _ if Instant::now() > deadline => return Err(process.failure("was not ready in time")),
            _ => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// The addresses to listen on.
struct Ports {
    etcd: SocketAddr,
    etcd_peers: SocketAddr,
    api: SocketAddr,
}

impl Ports {
    /// Ports that are free at this moment: no better guarantee exists for programs that need a port as an argument.
    fn find(address: Ipv4Addr) -> Result<Ports> {
        // All sockets stay open until all ports are found, so that no port is found twice.
        let hold = |address: Ipv4Addr| {
            let found = TcpListener::bind((address, 0)).and_then(|held| Ok((held.local_addr()?, held)));
            found.map_err(|e| LabError::system(format!("find a free port of {address}"), e))
        };
        let (etcd, _held) = hold(Ipv4Addr::LOCALHOST)?;
        let (etcd_peers, _held_too) = hold(Ipv4Addr::LOCALHOST)?;
        let (api, _held_as_well) = hold(address)?;
        Ok(Ports { etcd, etcd_peers, api })
    }
}

/// Certificates and keys, some of which clients need.
#[derive(Debug)]
struct Papers {
    authority: Authority,
    client: Identity,
}

impl Papers {
    fn write(folder: &Path, address: Ipv4Addr) -> Result<Papers> {
        let authority = Authority::new("ferroxy-lab control plane")?;
        let client_authority = Authority::new("ferroxy-lab clients")?;
        let server = authority.server_certificate(address.into())?;
        let client = client_authority.client_certificate(0)?;
        let service_accounts = KeyPair::generate().map_err(CertificateError::from)?;
        let tokens = format!(
            "{ADMIN_TOKEN},lab-admin,1,\"system:masters\"\n{PROXY_TOKEN},system:kube-proxy,2,\"system:authenticated\"\n"
        );
        let files = [
            ("server.crt", &server.certificate),
            ("server.key", &server.key),
            ("clients.crt", &client_authority.certificate),
            ("service-accounts.key", &service_accounts.serialize_pem()),
            ("service-accounts.pub", &service_accounts.public_key_pem()),
            ("tokens.csv", &tokens),
        ];
        for (name, text) in files {
            let path = folder.join(name);
            fs::write(&path, text).map_err(|e| LabError::file(&path, e))?;
        }
        Ok(Papers { authority, client })
    }
}

fn etcd_arguments(folder: &Path, ports: &Ports) -> Vec<String> {
    let (clients, peers) = (format!("http://{}", ports.etcd), format!("http://{}", ports.etcd_peers));
    vec![
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
    ]
}

/// No data has to survive a crash, and without fsync etcd is far faster. Only some versions have this argument.
fn dispensable_etcd_argument(etcd: &Path) -> Result<Option<String>> {
    let help = Command::new(etcd).arg("--help").output();
    let help = help.map_err(|e| LabError::system(format!("run {} --help", etcd.display()), e))?;
    let text = [help.stdout, help.stderr].concat();
    let known = String::from_utf8_lossy(&text).contains("--unsafe-no-fsync");
    Ok(known.then(|| "--unsafe-no-fsync".to_owned()))
}

fn kube_apiserver_arguments(folder: &Path, ports: &Ports) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    vec![
        format!("--etcd-servers=http://{}", ports.etcd),
        format!("--bind-address={}", ports.api.ip()),
        format!("--secure-port={}", ports.api.port()),
        // Otherwise it looks for the interface of the default route, and a namespace may have none.
        format!("--advertise-address={}", ports.api.ip()),
        // Otherwise it writes itself into the endpoints of default/kubernetes, which tests choose.
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--cert-dir={}", folder.display()),
        format!("--tls-cert-file={}", file("server.crt")),
        format!("--tls-private-key-file={}", file("server.key")),
        format!("--client-ca-file={}", file("clients.crt")),
        format!("--token-auth-file={}", file("tokens.csv")),
        "--authorization-mode=RBAC".to_owned(),
        // This plugin requires a service account in every namespace. A controller creates those, and it does not run.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("service-accounts.pub")),
        format!("--service-account-signing-key-file={}", file("service-accounts.key")),
        format!("--service-cluster-ip-range={SERVICE_RANGES}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Another process writes the file: if this process had a descriptor to write it, a child forked in another thread
    /// might still hold that descriptor when the program is executed, which then fails with "text file busy".
    fn program(folder: &Path, name: &str, script: &str) {
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod 755 "$2""#;
        let words = ["-c", write, "sh", script];
        assert!(Command::new("/bin/sh").args(words).arg(folder.join(name)).status().unwrap().success());
    }

    #[test]
    fn missing_programs_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Assets::of(folder.path()).unwrap_err().to_string().ends_with("/etcd"));
        program(folder.path(), "etcd", "");
        assert!(Assets::of(folder.path()).unwrap_err().to_string().ends_with("/kube-apiserver"));
        program(folder.path(), "kube-apiserver", "");
        Assets::of(folder.path()).unwrap();
    }

    #[test]
    fn a_start_that_fails_shows_why() {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "etcd", "echo \"called with $1\"; echo 'no space left' >&2; exit 7");
        program(folder.path(), "kube-apiserver", "exec sleep 1000");
        let assets = Assets::of(folder.path()).unwrap();
        let error = ControlPlane::start(&assets, folder.path(), Ipv4Addr::LOCALHOST).unwrap_err().to_string();
        assert!(error.starts_with("etcd has ended at its start (exit status: 7)."), "{error}");
        assert!(error.contains("called with --data-dir="), "{error}");
        assert!(error.ends_with("no space left"), "{error}");
    }

    #[test]
    fn etcd_does_not_wait_for_the_disk_where_it_can_do_without() {
        let folder = tempfile::tempdir().unwrap();
        let argument = |help: &str| {
            program(folder.path(), "etcd", help);
            dispensable_etcd_argument(&folder.path().join("etcd")).unwrap()
        };
        assert_eq!(argument("echo '  --unsafe-no-fsync'").as_deref(), Some("--unsafe-no-fsync"));
        assert_eq!(argument("echo '  --data-dir' >&2"), None);
    }

    #[test]
    fn every_file_that_is_named_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let ports = Ports::find(Ipv4Addr::LOCALHOST).unwrap();
        Papers::write(folder.path(), Ipv4Addr::LOCALHOST).unwrap();
        let arguments = kube_apiserver_arguments(folder.path(), &ports);
        let files: Vec<&str> = arguments
            .iter()
            .filter(|argument| argument.contains("-file="))
            .filter_map(|argument| Some(argument.split_once('=')?.1))
            .collect();
        assert_eq!(files.len(), 6);
        for file in files {
            assert!(fs::read_to_string(file).is_ok_and(|text| !text.is_empty()), "{file}");
        }
        let distinct: BTreeSet<&String> = arguments.iter().collect();
        assert_eq!(distinct.len(), arguments.len());
        assert!(arguments.contains(&format!("--secure-port={}", ports.api.port())));
        assert!(etcd_arguments(folder.path(), &ports).iter().any(|a| a.ends_with(&ports.etcd.to_string())));
        assert_ne!(ports.etcd, ports.etcd_peers);
    }
}
