//! Reads the error output of `iptables-restore`, of either variant: was it the lock, and if not, which line of the input was
//! refused? Runs nothing.

/// Why a run failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Another program holds the lock: the same input may succeed later.
    Locked,
    /// The lock file cannot be used at all.
    NoLockFile {
        why: String,
    },
    Refused {
        said: String,
        line: Option<usize>,
    },
}

/// Both variants exit with status 4 when they do not get the lock; the nft variant also when the kernel refuses a rule, the
/// legacy one also when it cannot open its lock file. Therefore the text decides, not the status.
pub(super) fn judge(said: &str) -> Verdict {
    if said.contains("holding the xtables lock") {
        return Verdict::Locked;
    }
    if let Some((_, rest)) = said.split_once("can't open lock file ") {
        let why = rest.lines().next().unwrap_or_default();
        return Verdict::NoLockFile { why: why.split_once(": ").map_or(why, |(_, why)| why).to_owned() };
    }
    let kept: Vec<&str> = said.lines().filter(|line| !is_noise(line)).map(str::trim).collect();
    Verdict::Refused { said: kept.join(" "), line: said.lines().find_map(line_number) }
}

/// The line of the input that was refused.
///
/// The nft variant notices a jump to a missing chain at the end of the table, and prints the number of `COMMIT`; the name of
/// the chain leads to the line.
pub(super) fn find_line<'a>(said: &str, number: Option<usize>, lines: &[&'a str]) -> Option<&'a str> {
    let index = number?.checked_sub(1)?;
    let line = *lines.get(index)?;
    if !line.starts_with("COMMIT") {
        return Some(line);
    }
    let (_, rest) = said.split_once("Chain '")?;
    let (missing, _) = rest.split_once('\'')?;
    let table = lines[..index].iter().rposition(|line| line.starts_with('*'))?;
    lines[table..index].iter().copied().find(|line| target(line) == Some(missing))
}

/// The chain that a line of restore input is about.
pub(super) fn chain(line: &str) -> Option<&str> {
    if let Some(declared) = line.strip_prefix(':') {
        return declared.split_whitespace().next();
    }
    // Counters may precede the command: `[12:3456] -A …`.
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with('['));
    words.next().filter(|command| command.starts_with('-')).and_then(|_| words.next())
}

/// The target of a rule. Comments come before it; only options of the target follow it.
pub(super) fn target(rule: &str) -> Option<&str> {
    let jump = rule.rfind(" -j ").max(rule.rfind(" -g "))?;
    rule[jump + 4..].split(' ').next()
}

fn is_noise(line: &str) -> bool {
    // Of `Error occurred at line: 3` only the number is used.
    line.trim().is_empty() || line.starts_with("Try `") || line.starts_with("Error occurred at line")
}

/// `line 3 failed: …`, `line 5: CHAIN_DEL failed (…)`, `Error occurred at line: 3`, `COMMIT expected at line 3`.
fn line_number(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once("line: ").or_else(|| line.split_once("line "))?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(said: &str, line: usize) -> Verdict {
        Verdict::Refused { said: said.to_owned(), line: Some(line) }
    }

    /// As tools of version 1.8.9 say it.
    #[test]
    fn both_variants_are_understood() {
        let hint = "Try `iptables-restore -h' or 'iptables-restore --help' for more information.\n";
        for (said, expected) in [
            (
                "iptables-nft-restore: line 3 failed: No chain/target/match by that name.\n".to_owned(),
                refused("iptables-nft-restore: line 3 failed: No chain/target/match by that name.", 3),
            ),
            ("iptables-restore: line 7 failed\n".to_owned(), refused("iptables-restore: line 7 failed", 7)),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 5: CHAIN_DEL failed (Device or resource busy): chain B\n"
                    .to_owned(),
                refused(
                    "iptables-nft-restore v1.8.9 (nf_tables): line 5: CHAIN_DEL failed (Device or resource busy): chain B",
                    5,
                ),
            ),
            (
                format!(
                    "iptables-restore v1.8.9 (legacy): Couldn't load match `nosuch':No such file or directory\n\nError occurred at line: 3\n{hint}"
                ),
                refused(
                    "iptables-restore v1.8.9 (legacy): Couldn't load match `nosuch':No such file or directory",
                    3,
                ),
            ),
            (
                format!("Bad argument `nonsense'\nError occurred at line: 2\n{hint}"),
                refused("Bad argument `nonsense'", 2),
            ),
            (
                "iptables-restore: COMMIT expected at line 3\n".to_owned(),
                refused("iptables-restore: COMMIT expected at line 3", 3),
            ),
        ] {
            assert_eq!(judge(&said), expected);
        }
        assert_eq!(judge("Killed\n"), Verdict::Refused { said: "Killed".to_owned(), line: None });
    }

    #[test]
    fn a_held_lock_differs_from_every_other_failure() {
        let said = "Another app is currently holding the xtables lock. Stopped waiting after 1s.\n";
        assert_eq!(judge(said), Verdict::Locked);
        let said =
            "Another app is currently holding the xtables lock. Perhaps you want to use the -w option?\n";
        assert_eq!(judge(said), Verdict::Locked);
        let said = "Fatal: can't open lock file /run/xtables.lock: Read-only file system\n";
        assert_eq!(judge(said), Verdict::NoLockFile { why: "Read-only file system".to_owned() });
    }

    #[test]
    fn a_number_leads_to_its_line() {
        let lines =
            ["*nat", ":A - [0:0]", "-A A -j B", "-A A -m comment --comment \"to -j C\" -j GONE", "COMMIT"];
        assert_eq!(find_line("", Some(3), &lines), Some("-A A -j B"));
        assert_eq!(find_line("", Some(5), &lines), None, "COMMIT says nothing");
        assert_eq!(find_line("Chain 'GONE' does not exist", Some(5), &lines), Some(lines[3]));
        for number in [None, Some(0), Some(6)] {
            assert_eq!(find_line("", number, &lines), None);
        }
    }

    #[test]
    fn lines_tell_their_chain() {
        for (line, expected) in [
            (":KUBE-SVC-A - [0:0]", Some("KUBE-SVC-A")),
            ("-A KUBE-SVC-A -j KUBE-SEP-B", Some("KUBE-SVC-A")),
            ("[1:60] -A KUBE-SVC-A -j KUBE-SEP-B", Some("KUBE-SVC-A")),
            ("-X KUBE-SVC-A", Some("KUBE-SVC-A")),
            ("COMMIT", None),
            ("*nat", None),
            ("", None),
        ] {
            assert_eq!(chain(line), expected, "{line:?}");
        }
    }
}
