//! Client configuration: a kubeconfig with each kind of credentials, and the service account of a pod. Writing them again
//! rotates the credentials.

use std::fs;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;

use crate::error::{LabError, Result};

/// How the client of a kubeconfig authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Login {
    Nothing,
    /// A token in the kubeconfig itself.
    Token,
    /// The name of a file with a token.
    TokenFile,
    /// The names of files with a certificate and a key.
    CertificateFiles,
    /// Certificate and key in the kubeconfig itself.
    CertificateData,
    /// A program that prints a token. Each run adds a line to the file `runs` in the same folder.
    Exec,
}

/// The content of the files.
#[derive(Debug)]
pub(super) struct Contents<'a> {
    pub url: &'a str,
    /// None without TLS.
    pub authority: Option<&'a str>,
    pub token: &'a str,
    pub certificate: &'a str,
    pub key: &'a str,
}

/// Writes `kubeconfig`, and the files that it names, into a folder. Existing files are replaced atomically, so that no reader
/// sees half of one.
pub(super) fn write(folder: &Path, login: Login, contents: &Contents<'_>) -> Result<PathBuf> {
    let authority = authority_lines(folder, login, contents)?;
    let user = user_lines(folder, login, contents)?;
    let text = format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: lab\n\
         clusters:\n\
         - name: lab\n\
         \x20 cluster:\n\
         \x20   server: {}\n\
         {authority}\
         contexts:\n\
         - name: lab\n\
         \x20 context: {{cluster: lab, user: lab}}\n\
         users:\n\
         - name: lab\n\
         \x20 user:{user}",
        contents.url
    );
    replace(&folder.join("kubeconfig"), &text)
}

/// Writes the files of a pod under /var/run/secrets/kubernetes.io/serviceaccount.
pub(super) fn write_service_account(folder: &Path, contents: &Contents<'_>) -> Result<()> {
    replace(&folder.join("token"), contents.token)?;
    replace(&folder.join("ca.crt"), contents.authority.unwrap_or_default())?;
    replace(&folder.join("namespace"), "kube-system")?;
    Ok(())
}

/// The authority is embedded if the credentials are, and otherwise a file.
fn authority_lines(folder: &Path, login: Login, contents: &Contents<'_>) -> Result<String> {
    let Some(authority) = contents.authority else { return Ok(String::new()) };
    match login {
        Login::Token | Login::CertificateData => {
            Ok(format!("    certificate-authority-data: {}\n", BASE64.encode(authority.as_bytes())))
        }
        _ => {
            let path = replace(&folder.join("ca.crt"), authority)?;
            Ok(format!("    certificate-authority: {}\n", path.display()))
        }
    }
}

fn user_lines(folder: &Path, login: Login, contents: &Contents<'_>) -> Result<String> {
    let (certificate, key) = (contents.certificate, contents.key);
    match login {
        Login::Nothing => Ok(" {}\n".to_owned()),
        Login::Token => Ok(format!("\n    token: {}\n", contents.token)),
        Login::TokenFile => {
            let path = replace(&folder.join("token"), contents.token)?;
            Ok(format!("\n    tokenFile: {}\n", path.display()))
        }
        Login::CertificateFiles => {
            let certificate = replace(&folder.join("client.crt"), certificate)?;
            let key = replace(&folder.join("client.key"), key)?;
            Ok(format!(
                "\n    client-certificate: {}\n    client-key: {}\n",
                certificate.display(),
                key.display()
            ))
        }
        Login::CertificateData => Ok(format!(
            "\n    client-certificate-data: {}\n    client-key-data: {}\n",
            BASE64.encode(certificate.as_bytes()),
            BASE64.encode(key.as_bytes())
        )),
        Login::Exec => exec_lines(folder, contents.token),
    }
}

fn exec_lines(folder: &Path, token: &str) -> Result<String> {
    const API: &str = "client.authentication.k8s.io/v1";
    let credential =
        format!(r#"{{"apiVersion":"{API}","kind":"ExecCredential","status":{{"token":"{token}"}}}}"#);
    let credential = replace(&folder.join("credential.json"), &credential)?;
    // A shell script instead of a new program: a file that was just written cannot always be executed ("text file busy").
    let script = format!("echo run >> '{}'; cat '{}'", folder.join("runs").display(), credential.display());
    Ok(format!(
        "\n    exec:\n      apiVersion: {API}\n      interactiveMode: Never\n      command: /bin/sh\n      \
         args: [\"-c\", \"{script}\"]\n"
    ))
}

fn replace(path: &Path, text: &str) -> Result<PathBuf> {
    let draft = path.with_extension("new");
    fs::write(&draft, text).map_err(|e| LabError::file(&draft, e))?;
    fs::rename(&draft, path).map_err(|e| LabError::file(path, e))?;
    Ok(path.to_path_buf())
}
