//! Tests of `access.rs`: which cluster and which credentials a set of options leads to.

use tempfile::TempDir;

use super::*;

fn options(kubeconfig: Option<&Path>, master: Option<&str>) -> Options {
    Options {
        kubeconfig: kubeconfig.map(Path::to_owned),
        master: master.map(str::to_owned),
        ..Options::for_node("ka")
    }
}

fn kubeconfig(directory: &TempDir, cluster: &str, user: &str) -> PathBuf {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         contexts: [{{name: here, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: other, cluster: {{server: http://other}}}}, {{name: c, cluster: {{{cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n"
    );
    let path = directory.path().join("kubeconfig");
    fs::write(&path, text).unwrap();
    path
}

fn refusal(options: &Options) -> String {
    Access::read(options).unwrap_err().to_string()
}

#[test]
fn nothing_given_says_what_to_give() {
    let expected = "no API server configured: set --kubeconfig, --master or --manifests, or run in a pod \
                    (KUBERNETES_SERVICE_HOST is not set here)";
    assert_eq!(in_cluster(|_| None).unwrap_err().to_string(), expected);
}

/// A HostProcess container sees the volumes of its pod in a folder of its own.
#[test]
fn a_service_account_may_be_in_another_place() {
    let directory = TempDir::new().unwrap();
    let reason = service_account_in(directory.path(), "192.0.2.1", "443").unwrap_err().to_string();
    assert!(reason.starts_with("service account of the pod: "), "{reason}");
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(directory.path().join("ca.crt"), pem).unwrap();
    let config = service_account_in(directory.path(), "fd00::1", "6443").unwrap();
    assert_eq!(config.cluster_url.to_string(), "https://[fd00::1]:6443/");
    assert_eq!(config.root_cert_file, Some(directory.path().join("ca.crt")));
    let token = directory.path().join("token").display().to_string();
    assert_eq!(config.auth_info.token_file, Some(token));
}

#[test]
fn master_alone_is_enough() {
    for (given, server) in [
        ("http://192.0.2.1:8080", "http://192.0.2.1:8080"),
        ("192.0.2.1:8080", "http://192.0.2.1:8080"),
        ("http://host/k8s/clusters/a/", "http://host/k8s/clusters/a"),
    ] {
        assert_eq!(Access::read(&options(None, Some(given))).unwrap().server(), server);
    }
    for given in ["ftp://host", "http://", "", "http:// x"] {
        let text = refusal(&options(None, Some(given)));
        assert!(text.starts_with(&format!("--master {given:?}: ")), "{text}");
    }
}

#[test]
fn master_goes_before_the_server_of_the_kubeconfig() {
    let directory = TempDir::new().unwrap();
    let path = kubeconfig(&directory, "server: http://192.0.2.1", "token: t");
    assert_eq!(Access::read(&options(Some(&path), None)).unwrap().server(), "http://192.0.2.1");
    let access = Access::read(&options(Some(&path), Some("http://192.0.2.2"))).unwrap();
    assert_eq!(access.server(), "http://192.0.2.2");
    let path = kubeconfig(&directory, "", "");
    assert_eq!(Access::read(&options(Some(&path), Some("a:1"))).unwrap().server(), "http://a:1");
}

#[test]
fn what_is_wrong_is_said_in_one_line_with_file_and_field() {
    let directory = TempDir::new().unwrap();
    let missing = directory.path().join("missing");
    let text = refusal(&options(Some(&missing), None));
    assert_eq!(
        text,
        format!("kubeconfig {}: cannot be read: No such file or directory (os error 2)", missing.display())
    );
    let path = kubeconfig(&directory, "", "");
    assert!(refusal(&options(Some(&path), None)).ends_with(": the current context's cluster has no server"));
    let path = kubeconfig(&directory, "server: http://a, proxy-url: http://b", "");
    assert!(refusal(&options(Some(&path), None)).contains(": proxy-url is not supported"));
    let path = kubeconfig(&directory, "server: https://a, certificate-authority-data: '!'", "");
    assert!(refusal(&options(Some(&path), None)).contains(": certificate-authority: "));
    let path = kubeconfig(&directory, "server: http://a", "tokenFile: token");
    let token = directory.path().join("token");
    assert!(
        refusal(&options(Some(&path), None))
            .starts_with(&format!("credentials: cannot read {}: ", token.display()))
    );
    for (text, expected) in [
        ("current-context: x", "current-context: there is no context \"x\""),
        ("contexts: []", "current-context is missing"),
        ("clusters: [", "is not valid: "),
    ] {
        fs::write(&path, text).unwrap();
        let shown = refusal(&options(Some(&path), None));
        assert!(shown.contains(expected) && shown.lines().count() == 1, "{shown}");
    }
}

#[test]
fn every_file_that_counts_is_followed() {
    let directory = TempDir::new().unwrap();
    let path = kubeconfig(&directory, "server: http://a", "tokenFile: token");
    let token = directory.path().join("token");
    fs::write(&token, "one").unwrap();
    let access = Access::read(&options(Some(&path), None)).unwrap();
    assert_eq!(access.files, BTreeSet::from([path.clone(), token.clone()]));
    assert!(access.is_current());
    fs::write(&token, "two").unwrap();
    assert!(!access.is_current());
    fs::write(&token, "one").unwrap();
    assert!(access.is_current());
    fs::remove_file(&token).unwrap();
    assert!(!access.is_current());
    fs::write(&token, "one").unwrap();
    kubeconfig(&directory, "server: http://b", "tokenFile: token");
    assert!(!access.is_current());
}

#[test]
fn files_of_certificates_are_followed_and_data_goes_before_them() {
    let auth = |text: &str| -> AuthInfo { serde_json::from_str(text).unwrap() };
    let files =
        credential_files(&auth(r#"{"client-certificate": "/c", "client-key": "/k", "tokenFile": "/t"}"#));
    assert_eq!(files, ["/c", "/k", "/t"].map(PathBuf::from).into());
    let files = credential_files(&auth(
        r#"{"client-certificate": "/c", "client-certificate-data": "x", "client-key": "/k", "tokenFile": "/t", "token": "x"}"#,
    ));
    assert_eq!(files, ["/k"].map(PathBuf::from).into());
}

/// An error in the form of the library that reads an answer.
#[derive(Debug, thiserror::Error)]
#[error("ServiceError: error reading a body from connection")]
struct Unread(#[source] Eof);

#[derive(Debug, thiserror::Error)]
#[error(
    "peer closed connection without sending TLS close_notify: https://docs.rs/rustls/latest/index.html#eof"
)]
struct Eof;

#[test]
fn error_messages_leave_out_the_names_of_library_layers() {
    let expected =
        "error reading a body from connection: peer closed connection without sending TLS close_notify";
    assert_eq!(with_causes(&Unread(Eof)), expected);
}
