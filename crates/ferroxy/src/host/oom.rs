//! How readily the kernel ends this process when memory runs out. Nothing about memory itself.

use std::fs;
use std::path::Path;

use tracing::warn;

/// Asks for this score, of -1000 (never) to 1000 (first). A lower one than before needs CAP_SYS_RESOURCE; without, the
/// old one stays.
pub fn set_score(score: i32) {
    if let Err(error) = write(Path::new("/proc/self/oom_score_adj"), score) {
        warn!("oomScoreAdj stays as it is: {score} cannot be set ({error})");
    }
}

fn write(path: &Path, score: i32) -> std::io::Result<()> {
    if fs::read_to_string(path)?.trim() == score.to_string() {
        return Ok(());
    }
    fs::write(path, score.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_written_where_it_differs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "0\n").unwrap();
        write(file.path(), -999).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "-999");
        fs::write(file.path(), "5\n").unwrap();
        write(file.path(), 5).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "5\n", "what was right already was written");
        assert!(write(Path::new("/nowhere/oom_score_adj"), 5).is_err());
    }
}
