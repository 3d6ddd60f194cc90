//! The kubeconfig of a person, found as kubectl finds it: a file that a flag names must exist; files in `KUBECONFIG`,
//! and `~/.kube/config`, are skipped if they do not exist.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ::kube::config::{Kubeconfig, KubeconfigError};

use super::{OpenError, field};

#[derive(Debug)]
pub(super) enum Found {
    /// The path (of the first file, if several are merged) and the content.
    Kubeconfig(PathBuf, Box<Kubeconfig>),
    /// None of the files exists.
    Nothing { looked_for: String },
}

/// `given` is named by a flag; it is then the only file.
pub(super) fn find(
    given: Option<&Path>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Found, OpenError> {
    if let Some(path) = given {
        return Ok(Found::Kubeconfig(path.to_owned(), Box::new(read(path).map_err(|it| it.1)?)));
    }
    let paths = candidates(environment);
    let mut found: Option<(PathBuf, Kubeconfig)> = None;
    for path in &paths {
        let next = match read(path) {
            Ok(next) => next,
            Err((true, _)) => continue,
            Err((false, error)) => return Err(error),
        };
        found = Some(match found {
            None => (path.clone(), next),
            Some((first, before)) => (first, merged(before, next, path)?),
        });
    }
    Ok(match found {
        Some((path, kubeconfig)) => Found::Kubeconfig(path, Box::new(kubeconfig)),
        None => {
            let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            Found::Nothing { looked_for: shown.join(" or ") }
        }
    })
}

/// The files to look for, in the order of precedence.
fn candidates(environment: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let listed = environment("KUBECONFIG").unwrap_or_default();
    let named: Vec<PathBuf> =
        std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    if !named.is_empty() {
        return named;
    }
    // Without a home directory the path begins with `~`, for the message that it does not exist.
    let home = environment("HOME").or_else(|| environment("USERPROFILE")).filter(|home| !home.is_empty());
    vec![home.map_or("~".into(), PathBuf::from).join(".kube").join("config")]
}

/// An error also returns whether the reason is that the file does not exist.
fn read(path: &Path) -> Result<Kubeconfig, (bool, OpenError)> {
    Kubeconfig::read_from(path).map_err(|error| {
        let is_missing =
            matches!(&error, KubeconfigError::ReadConfig(cause, _) if cause.kind() == ErrorKind::NotFound);
        (is_missing, OpenError::Kubeconfig { path: path.to_owned(), reason: field(&error) })
    })
}

/// Values of the earlier file take precedence.
fn merged(mut before: Kubeconfig, next: Kubeconfig, path: &Path) -> Result<Kubeconfig, OpenError> {
    // An empty current-context counts as absent: tools that make a file without contexts write it.
    before.current_context = before.current_context.filter(|context| !context.is_empty());
    let wrong =
        |error: KubeconfigError| OpenError::Kubeconfig { path: path.to_owned(), reason: field(&error) };
    before.merge(next).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const BOTH: &str = "
current-context: CONTEXT
contexts: [{name: CONTEXT, context: {cluster: CONTEXT, user: CONTEXT}}]
clusters: [{name: CONTEXT, cluster: {server: 'https://CONTEXT:6443'}}]
users: [{name: CONTEXT, user: {token: t}}]
";

    /// The result with this `KUBECONFIG`, in a home without a kubeconfig.
    fn found(folder: &Path, list: &[&str]) -> Result<Found, String> {
        let list = std::env::join_paths(list.iter().map(|name| match *name {
            "" => PathBuf::new(),
            name => folder.join(name),
        }));
        let list = list.unwrap();
        let environment = |name: &str| match name {
            "KUBECONFIG" => Some(list.clone()),
            "HOME" => Some(folder.as_os_str().to_owned()),
            _ => None,
        };
        find(None, environment).map_err(|error| error.to_string())
    }

    fn context(found: Result<Found, String>) -> (Option<String>, usize) {
        match found {
            Ok(Found::Kubeconfig(_, kubeconfig)) => (kubeconfig.current_context, kubeconfig.contexts.len()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_that_do_not_exist_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::write(folder.path().join(name), BOTH.replace("CONTEXT", name)).unwrap();
        }
        let context = |list: &[&str]| context(found(folder.path(), list));
        assert_eq!(context(&["none", "a"]), (Some("a".into()), 1));
        assert_eq!(context(&["", "b", "none"]), (Some("b".into()), 1));
        assert_eq!(context(&["b", "none", "a"]), (Some("b".into()), 2), "the first one counts");
        fs::write(folder.path().join("empty"), "current-context: ''\ncontexts: []").unwrap();
        assert_eq!(context(&["empty", "a"]), (Some("a".into()), 1), "empty text is no context");
        let nothing = found(folder.path(), &["none", "neither"]).unwrap();
        let Found::Nothing { looked_for } = nothing else { panic!("{nothing:?}") };
        let names: Vec<String> =
            ["none", "neither"].map(|name| folder.path().join(name).display().to_string()).to_vec();
        assert_eq!(looked_for, names.join(" or "));
    }

    #[test]
    fn the_file_at_home_counts_only_without_a_list() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(".kube")).unwrap();
        fs::write(folder.path().join(".kube/config"), BOTH.replace("CONTEXT", "home")).unwrap();
        assert_eq!(context(found(folder.path(), &[])), (Some("home".into()), 1));
        assert!(matches!(found(folder.path(), &["none"]), Ok(Found::Nothing { .. })));
        let nowhere = find(None, |_| None).unwrap();
        let Found::Nothing { looked_for } = nowhere else { panic!("{nowhere:?}") };
        assert_eq!(looked_for, format!("{}", Path::new("~").join(".kube").join("config").display()));
    }

    #[test]
    fn a_file_that_is_named_or_broken_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none");
        let error = find(Some(&missing), |_| None).unwrap_err().to_string();
        assert!(error.contains("none: cannot be read"), "{error}");
        fs::write(folder.path().join("broken"), "clusters: [").unwrap();
        let error = found(folder.path(), &["none", "broken"]).unwrap_err();
        assert!(error.contains("broken: is not valid"), "{error}");
    }
}
