//! Tokens, certificates, and the files that pass them to clients.

use std::fs;
use std::process::Command;

use ferroxy_lab::api::{Access, Login, Options, Server};
use serde_json::{Value, json};

use crate::SERVICES;
use crate::client::Client;

#[test]
fn tokens_can_be_renewed_and_revoked() {
    let options = Options { access: Access::Token, ..Options::default() };
    let server = Server::start(options).unwrap();
    let refused = Client::of(&server).get(SERVICES);
    assert_eq!(refused.code, 401);
    assert_eq!(refused.json()["reason"], "Unauthorized");
    let old = Client::of(&server).with_token(&server.token());
    assert_eq!(old.get(SERVICES).code, 200);
    server.renew_credentials().unwrap();
    let new = Client::of(&server).with_token(&server.token());
    assert_eq!((old.get(SERVICES).code, new.get(SERVICES).code), (200, 200));
    server.revoke_old_credentials();
    assert_eq!((old.get(SERVICES).code, new.get(SERVICES).code), (401, 200));
}

#[test]
fn the_servers_certificate_and_authority_can_be_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Options { tls: true, ..Options::default() }).unwrap();
    let authority = || {
        server.kubeconfig(folder.path(), Login::Nothing).unwrap();
        fs::read_to_string(folder.path().join("ca.crt")).unwrap()
    };
    let client = Client::of(&server).with_tls(&authority(), None);
    assert_eq!(client.get("/livez").code, 200);
    server.renew_server_certificate().unwrap();
    assert_eq!(client.get("/livez").code, 200);
    server.renew_authority().unwrap();
    assert!(client.try_get("/livez").err().unwrap().starts_with("TLS: "));
    assert_eq!(Client::of(&server).with_tls(&authority(), None).get("/livez").code, 200);
    assert!(server.url().starts_with("https://127.0.0.1:"));
}

#[test]
fn client_certificates_can_be_renewed_and_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { tls: true, access: Access::ClientCertificate, ..Options::default() };
    let server = Server::start(options).unwrap();
    let client = || {
        server.kubeconfig(folder.path(), Login::CertificateFiles).unwrap();
        let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        let identity = (read("client.crt"), read("client.key"));
        Client::of(&server).with_tls(&read("ca.crt"), Some((&identity.0, &identity.1)))
    };
    let old = client();
    assert_eq!(old.get(SERVICES).code, 200);
    let authority = fs::read_to_string(folder.path().join("ca.crt")).unwrap();
    assert_eq!(Client::of(&server).with_tls(&authority, None).get(SERVICES).code, 401);
    server.renew_credentials().unwrap();
    let new = client();
    assert_eq!((old.get(SERVICES).code, new.get(SERVICES).code), (200, 200));
    server.revoke_old_credentials();
    assert_eq!((old.get(SERVICES).code, new.get(SERVICES).code), (401, 200));

    let nonsense = Options { access: Access::ClientCertificate, ..Options::default() };
    Server::start(nonsense).unwrap_err();
}

#[test]
fn kubeconfigs_of_every_flavour() {
    let server = Server::start(Options { tls: true, access: Access::Token, ..Options::default() }).unwrap();
    for login in [
        Login::Nothing,
        Login::Token,
        Login::TokenFile,
        Login::CertificateFiles,
        Login::CertificateData,
        Login::Exec,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = server.kubeconfig(folder.path(), login).unwrap();
        let config: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        assert_eq!(cluster["server"], server.url());
        assert_eq!(config["current-context"], config["contexts"][0]["name"]);
        let embedded = matches!(login, Login::Token | Login::CertificateData);
        assert_eq!(cluster.get("certificate-authority-data").is_some(), embedded);
        assert_eq!(cluster.get("certificate-authority").is_some(), !embedded);
        let file = |field: &str| fs::read_to_string(user[field].as_str().unwrap()).unwrap();
        match login {
            Login::Nothing => assert_eq!(*user, json!({})),
            Login::Token => assert_eq!(*user, json!({"token": server.token()})),
            Login::TokenFile => assert_eq!(file("tokenFile"), server.token()),
            Login::CertificateFiles => {
                assert!(file("client-certificate").starts_with("-----BEGIN CERTIFICATE-----"));
                assert!(file("client-key").starts_with("-----BEGIN PRIVATE KEY-----"));
            }
            Login::CertificateData => assert!(user["client-key-data"].is_string()),
            Login::Exec => {
                server.renew_credentials().unwrap();
                server.kubeconfig(folder.path(), login).unwrap();
                let output = Command::new(user["exec"]["command"].as_str().unwrap())
                    .args(user["exec"]["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()))
                    .output()
                    .unwrap();
                let credential: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(credential["status"]["token"], server.token());
                assert_eq!(credential["apiVersion"], user["exec"]["apiVersion"]);
                assert_eq!(fs::read_to_string(folder.path().join("runs")).unwrap(), "run\n");
            }
        }
    }
}

#[test]
fn a_service_account_as_a_pod_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Options { tls: true, access: Access::Token, ..Options::default() }).unwrap();
    server.service_account(folder.path()).unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let client = Client::of(&server).with_tls(&read("ca.crt"), None).with_token(&read("token"));
    assert_eq!(client.get(SERVICES).code, 200);
}
