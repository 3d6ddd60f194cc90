//! Files of HostProcess containers (Windows). Up to containerd 1.6 such a container sees the volumes of its pod in a
//! folder that an environment variable names, and not at their mount paths. With newer versions it sees them in both
//! places.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The environment variable that names the folder.
pub const VARIABLE: &str = "CONTAINER_SANDBOX_MOUNT_POINT";

/// The location of a pod's file: this path, or if nothing is there, the same path inside the container's folder. If
/// nothing is there either, the path stays as it is.
pub fn locate(path: &Path) -> PathBuf {
    locate_in(path, std::env::var_os(VARIABLE).as_deref())
}

fn locate_in(path: &Path, folder: Option<&OsStr>) -> PathBuf {
    let inside = folder.filter(|it| !it.is_empty()).and_then(|it| inside(Path::new(it), path));
    inside.filter(|inside| !path.exists() && inside.exists()).unwrap_or_else(|| path.to_owned())
}

/// `C:/var/lib` in `C:/C/1234` is `C:/C/1234/var/lib`. `None` for a relative path, and for a path on another host
/// (UNC).
fn inside(folder: &Path, path: &Path) -> Option<PathBuf> {
    let text = path.to_str()?;
    let without_drive = match text.as_bytes() {
        [letter, b':', ..] if letter.is_ascii_alphabetic() => &text[2..],
        _ => text,
    };
    let is_separator = |it: char| it == '/' || it == '\\';
    let relative = without_drive.strip_prefix(is_separator)?;
    (!relative.starts_with(is_separator)).then(|| folder.join(relative))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn paths_are_moved_into_the_folder() {
        let folder = Path::new("box");
        let moved = |path: &str| inside(folder, Path::new(path));
        assert_eq!(moved("/var/lib/x"), Some(folder.join("var/lib/x")));
        assert_eq!(moved("C:/var/lib/x"), Some(folder.join("var/lib/x")));
        assert_eq!(moved(r"C:\k\x"), Some(folder.join(r"k\x")));
        for other in ["x", "C:x", r"\\host\share", "//host/share", ""] {
            assert_eq!(moved(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_path_itself_comes_first_and_what_is_nowhere_stays() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pod").join("token");
        let folder = root.path().join("box");
        let there = inside(&folder, &path).unwrap();
        let found = |path: &Path| locate_in(path, Some(folder.as_os_str()));
        assert_eq!(found(&path), path, "nowhere");
        fs::create_dir_all(there.parent().unwrap()).unwrap();
        fs::write(&there, "in the box").unwrap();
        assert_eq!(found(&path), there);
        assert_eq!(locate_in(&path, None), path);
        assert_eq!(locate_in(&path, Some(OsStr::new(""))), path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "where the pod says").unwrap();
        assert_eq!(found(&path), path);
    }
}
