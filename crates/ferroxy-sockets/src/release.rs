//! Whether this kernel protects its own clients (NFS, SMB, Ceph) from translated addresses.
//!
//! Before Linux 6.6 a hook at `connect` overwrote the address that an in-kernel client keeps for reconnecting, so it
//! reconnected to one pod for ever. Three changes end that, all of them in 6.6: "net: Avoid address overwrite in
//! kernel_connect" (0bdf399342c5, for NFS), "smb: use kernel_connect() and kernel_bind()" (cedc019b9f26) and "libceph: use
//! kernel_connect()" (7563cf17dce0). The stable branches got them between 11 September and 25 October 2023. A program cannot
//! test this without a mount of its own, so this file compares versions.

/// For each stable branch, a release of November 2023: all three are in it. Branches that are not listed and older than 6.6
/// lack one of them at least.
const FIXED: [(u32, u32, u32); 5] = [(5, 4, 260), (5, 10, 200), (5, 15, 140), (6, 1, 62), (6, 5, 11)];
const FIXED_FOR_ALL: (u32, u32, u32) = (6, 6, 0);
/// Red Hat's kernels are named after 5.14.0 and contain fixes of much later kernels. Builds of 9.4 (427) from 427.31 on contain
/// these three, and so do builds of 9.5 (503) and later. Builds in between were never released.
const RED_HAT: (u32, u32, u32) = (5, 14, 0);
const RED_HAT_9_4: (u32, u32) = (427, 31);
const RED_HAT_9_5: (u32, u32) = (503, 0);

/// `release` and `version` as `uname` prints them; `signature`: Ubuntu's `/proc/version_signature`.
pub fn protects_kernel_clients(release: &str, version: &str, signature: &str) -> bool {
    let Some(found) = upstream(release, version, signature) else { return false };
    if found == RED_HAT && (release.contains(".el9") || release.contains(".el10")) {
        let build = release.split('-').nth(1).and_then(numbers).map(|(build, update, _)| (build, update));
        let has_them = |it: (u32, u32)| it.0 == RED_HAT_9_4.0 && it >= RED_HAT_9_4 || it >= RED_HAT_9_5;
        return build.is_some_and(has_them);
    }
    let same_branch = |(major, minor, _): &(u32, u32, u32)| (*major, *minor) == (found.0, found.1);
    found >= FIXED_FOR_ALL || FIXED.iter().find(|it| same_branch(it)).is_some_and(|first| found >= *first)
}

/// The upstream release. Distributions name their kernels `6.1.0-37-cloud`; `version` or `signature` has the upstream release.
fn upstream(release: &str, version: &str, signature: &str) -> Option<(u32, u32, u32)> {
    let debian = version.split_once("Debian ").and_then(|(_, rest)| numbers(rest));
    let ubuntu = signature.split_whitespace().next_back().and_then(numbers);
    debian.or(ubuntu).or_else(|| numbers(release))
}

fn numbers(text: &str) -> Option<(u32, u32, u32)> {
    let digits = text.split(|it: char| !it.is_ascii_digit() && it != '.').next()?;
    let mut numbers = digits.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next().and_then(Result::ok).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_with_and_without_the_fix() {
        let cases = [
            ("6.18.44-fc", "#1 SMP", "", true),
            ("6.6.0", "#1", "", true),
            ("6.1.0-37-cloud-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.140-1 (2025-05-22)", "", true),
            ("6.1.0-10-amd64", "#1 SMP Debian 6.1.38-2", "", false),
            ("5.15.0-113-generic", "#123-Ubuntu SMP", "Ubuntu 5.15.0-113.123-generic 5.15.152", true),
            ("5.15.0-60-generic", "#66-Ubuntu SMP", "Ubuntu 5.15.0-60.66-generic 5.15.78", false),
            ("5.14.0-503.11.1.el9_5.x86_64", "#1 SMP", "", true),
            ("5.14.0-427.31.1.el9_4.x86_64", "#1 SMP", "", true),
            ("5.14.0-427.13.1.el9_4.x86_64", "#1 SMP", "", false),
            ("5.14.0-430.el9.x86_64", "#1 SMP", "", false),
            ("5.14.0-362.8.1.el9_3.x86_64", "#1 SMP", "", false),
            ("6.2.16", "#1", "", false),
            ("6.1.62", "#1", "", true),
            ("strange", "", "", false),
        ];
        for (release, version, signature, expected) in cases {
            assert_eq!(protects_kernel_clients(release, version, signature), expected, "{release} {version}");
        }
    }
}
