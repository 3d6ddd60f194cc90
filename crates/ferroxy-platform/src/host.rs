//! Facts about this host: its name, its kernel, its IP families, its time zone.

use std::path::PathBuf;

use crate::system;

/// The host's name as the system has it; `None` when it has none. It may differ from the name of the Node.
pub fn name() -> Option<String> {
    system::host::name().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The release of the kernel, such as `6.1.0-18-amd64`.
pub fn kernel_release() -> String {
    system::host::kernel_release()
}

/// Whether IPv6 exists and is switched on.
pub fn has_ipv6() -> bool {
    system::host::has_ipv6()
}

/// How many seconds local time was ahead of UTC at this Unix time.
pub fn utc_offset_seconds(unix_seconds: i64) -> i32 {
    system::host::utc_offset_seconds(unix_seconds)
}

/// The folder for files of this program that outlive it. It may not exist yet.
pub fn data_directory() -> PathBuf {
    system::host::data_directory()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_time_is_less_than_a_day_away_from_utc() {
        for seconds in [0, 951_782_400, i64::MAX] {
            assert!(utc_offset_seconds(seconds).abs() < 86_400, "{seconds}");
        }
    }

    #[test]
    fn files_that_outlive_the_program_have_a_folder_of_their_own() {
        let folder = data_directory();
        assert!(folder.is_absolute() && folder.ends_with("ferroxy"), "{folder:?}");
    }

    #[test]
    fn the_name_is_trimmed_and_not_empty() {
        assert!(name().is_none_or(|name| !name.is_empty() && name.trim() == name));
    }
}
