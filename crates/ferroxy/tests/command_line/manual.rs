//! Completion scripts and manual pages: they know every command and flag.

use std::process::Command;

/// Bash completes commands, flags and values with the script, as at a prompt.
#[test]
fn bash_completes_commands_and_flags() {
    let script = "source <(\"$1\" completions bash)
        COMP_WORDS=(ferroxy \"${@:2}\") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        _ferroxy ferroxy \"${@: -1}\" \"${@: -2:1}\"
        echo \"${COMPREPLY[@]}\"";
    for (typed, expected) in [
        (&["exp"][..], "explain"),
        (&["render", "--proxy-mo"], "--proxy-mode"),
        (&["render", "--output", "j"], "json"),
    ] {
        let bash = Command::new("bash")
            .args(["-c", script, "bash", env!("CARGO_BIN_EXE_ferroxy")])
            .args(typed)
            .output()
            .unwrap();
        let (found, errors) =
            (String::from_utf8(bash.stdout).unwrap(), String::from_utf8(bash.stderr).unwrap());
        assert_eq!((found.trim(), errors.as_str()), (expected, ""), "{typed:?}");
    }
}

/// The lines of a page's synopsis, as a terminal shows them.
fn synopsis(page: &str) -> Vec<String> {
    let (_, rest) = page.split_once(".SH SYNOPSIS\n").unwrap();
    let lines = rest.split("\n.SH ").next().unwrap().lines().filter(|line| *line != ".br");
    let plain = |line: &str| line.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-");
    lines.map(plain).collect()
}

fn usage(help: &str) -> Vec<String> {
    let (_, rest) = help.split_once("Usage: ").unwrap();
    rest.split("\n\n").next().unwrap().lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn a_mistyped_value_is_corrected() {
    for (arguments, meant) in [
        (&["status", "--output=jsn"][..], "json"),
        (&["top", "--sort=byte"], "bytes"),
        (&["completions", "bsh"], "bash"),
        (&["run", "--accelerate-sockets=hosts"], "host"),
    ] {
        let done = Command::new(env!("CARGO_BIN_EXE_ferroxy")).args(arguments).output().unwrap();
        let words = String::from_utf8(done.stderr).unwrap();
        assert_eq!((done.status.code(), words.lines().count()), (Some(1), 1), "{words}");
        assert!(words.contains(&format!("a similar value exists: '{meant}'")), "{words}");
    }
}

#[test]
fn every_command_and_flag_has_its_place_in_the_manual() {
    let run = |arguments: &[&str]| -> String {
        let done = Command::new(env!("CARGO_BIN_EXE_ferroxy")).args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    run(&["man", "--directory", folder.path().to_str().unwrap()]);
    let page = |name: &str| std::fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
    assert_eq!(page("ferroxy"), run(&["man"]));
    let help = run(&["--help"]);
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let commands: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(["run", "status", "top", "record"].iter().all(|it| commands.contains(it)), "{commands:?}");
    for command in commands.into_iter().filter(|it| *it != "help") {
        let (page, help) = (page(&format!("ferroxy-{command}")), run(&[command, "--help"]));
        let flags = help.lines().filter_map(|line| line.trim_start().split(", ").last()?.strip_prefix("--"));
        for flag in flags.filter_map(|flag| flag.split([' ', '=', '[']).next()) {
            assert!(page.contains(&flag.replace('-', "\\-")), "--{flag} of {command}");
        }
    }
    for (name, own) in [("ferroxy", &[][..]), ("ferroxy-explain", &["explain"]), ("ferroxy-top", &["top"])] {
        assert_eq!(synopsis(&page(name)), usage(&run(&[own, &["--help"]].concat())), "{name}");
    }
    assert_eq!(synopsis(&page("ferroxy")).len(), 2, "without a command, and with one");
    let traced = "kubectl ferroxy trace [OPTIONS] <POD> <SERVICE[:PORT]>";
    assert_eq!(synopsis(&page("kubectl-ferroxy-trace")), [traced]);
    for page in ["kubectl-ferroxy", "kubectl-ferroxy-status", "kubectl-ferroxy-trace"].map(page) {
        assert!(page.contains("agents\\-namespace") && page.contains("kubectl ferroxy"), "{page}");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_ferroxy"))
        .args(["man", "--directory", folder.path().join("none").to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).starts_with("ferroxy: cannot write "), "{missing:?}");
}
