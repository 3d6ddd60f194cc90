//! Errors of a Windows service that does not start: its standard error is lost, so they go to its log file, to the Event Log
//! and to the service manager. Also for a command line or a configuration with errors.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use ferroxy_dataplane::Platform;
use tracing::{error, warn};

use crate::flags::boolean;
use crate::log;

/// The name of the service, and of its source in the Event Log. The original registers the same name.
pub(super) const NAME: &str = "kube-proxy";

/// Whether a command line is the agent's: other commands are no services.
pub(super) fn is_of_agent(args: &[OsString]) -> bool {
    let first = args.get(1).and_then(|arg| OsStr::to_str(arg)).unwrap_or_default();
    first == "run" || first.starts_with('-') || first.is_empty()
}

/// Reports errors where users look for errors of a service. False if this process is not a service.
pub(super) fn report(args: &[OsString], reasons: &str) -> bool {
    if Platform::HERE != Platform::Windows {
        return false;
    }
    let Some(asked) = Asked::by(args, |path| std::fs::read_to_string(path).ok()) else { return false };
    let file = asked.log_file.map(|path| (log::to_file(&path, log::USUAL_MEGABYTES), path));
    let events = log::to_event_log(NAME);
    log::start_plainly();
    reasons.lines().for_each(|reason| error!("the service does not start: {reason}"));
    if let Some((Err(error), path)) = file {
        warn!("--log-file: cannot write {}: {error}", path.display());
    }
    if let Err(error) = events {
        warn!("warnings and errors do not go to the Event Log: {error}");
    }
    log::flush();
    // Otherwise the service manager waits for half a minute. An error means that the service manager did not start us.
    let _ = ferroxy_platform::service::run(NAME, || 1);
    true
}

/// The settings of a command line that are needed here, found without parsing all of it.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    log_file: Option<PathBuf>,
}

impl Asked {
    /// `None`: does not run as a service. Flags override the file that `--config` names.
    fn by(args: &[OsString], read: impl Fn(&Path) -> Option<String>) -> Option<Asked> {
        let config = value(args, "--config").and_then(|path| read(path.as_ref())).unwrap_or_default();
        let is_service = match value(args, "--windows-service") {
            Some(text) => boolean(text) != Ok(false),
            None => field(&config, "windowsRunAsService") == Some("true"),
        };
        let log_file =
            value(args, "--log-file").or_else(|| field(&config, "logFile")).filter(|path| !path.is_empty());
        is_service.then(|| Asked { log_file: log_file.map(PathBuf::from) })
    }
}

/// The value of a field that has a line of its own, in YAML or JSON, also in a file with errors.
fn field<'a>(config: &'a str, name: &str) -> Option<&'a str> {
    let plain = |text: &'a str| text.trim().trim_end_matches(',').trim_matches(['"', '\'']);
    let fields = config.lines().filter_map(|line| without_comment(line).split_once(':'));
    let mut values = fields.filter(|(key, _)| plain(key) == name).map(|(_, value)| plain(value));
    values.next()
}

/// A comment of YAML begins with `#` at the start of a line or after a space, outside of quotes.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, character) in line.char_indices() {
        match quote {
            Some(it) if it == character => quote = None,
            Some(_) => {}
            None if character == '#' && before.is_whitespace() => return &line[..at],
            // In the middle of a word it is an apostrophe.
            None if matches!(character, '"' | '\'') && !before.is_alphanumeric() => quote = Some(character),
            None => {}
        }
        before = character;
    }
    line
}

/// The last value of a flag: after `=`, or the next argument unless that is a flag.
fn value<'a>(args: &'a [OsString], flag: &str) -> Option<&'a str> {
    let text = |arg: &'a OsString| arg.to_str();
    let at = |at: usize| {
        let rest = text(args.get(at)?)?.strip_prefix(flag)?;
        if let Some(value) = rest.strip_prefix('=') {
            return Some(value);
        }
        let next = args.get(at + 1).and_then(text).filter(|next| !next.starts_with("--"));
        rest.is_empty().then_some(next.unwrap_or_default())
    };
    (0..args.len()).rev().find_map(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Option<Asked> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let read = |path: &Path| {
            let text = match path.to_str()? {
                "service.conf" => "mode: [\n  windowsRunAsService: true\nx",
                "note.conf" => {
                    "windowsRunAsService: true # note\n#logFile: x\nlogFile: 'C:/k #1/a.log'\t# it's"
                }
                "log.conf" => "{\n\"windowsRunAsService\": true,\n \"logFile\": \"C:/k/a.log\",",
                _ => return None,
            };
            Some(text.to_owned())
        };
        Asked::by(&args, read)
    }

    fn to(path: &str) -> Option<Asked> {
        Some(Asked { log_file: Some(path.into()) })
    }

    #[test]
    fn a_command_line_with_errors_tells_whether_it_is_a_services_and_where_its_log_is() {
        let nowhere = Some(Asked { log_file: None });
        assert_eq!(asked("ferroxy run --nonsense --windows-service"), nowhere);
        assert_eq!(asked("ferroxy --windows-service=true --log-file=a.log -x"), to("a.log"));
        assert_eq!(asked("ferroxy run --log-file a.log --windows-service --log-file b.log"), to("b.log"));
        assert_eq!(asked("ferroxy run --windows-service --log-file="), nowhere);
        assert_eq!(asked("ferroxy run --log-file-max-size=7 --windows-service"), nowhere);
        assert_eq!(asked("ferroxy run --log-file=a.log"), None);
        for no in ["false", "False", "0", "f"] {
            assert_eq!(asked(&format!("ferroxy run --windows-service={no} --config=service.conf")), None);
        }
    }

    #[test]
    fn a_configuration_with_errors_tells_it_too() {
        assert_eq!(asked("ferroxy --config=service.conf --log-file=a.log"), to("a.log"));
        assert_eq!(asked("ferroxy --config log.conf"), to("C:/k/a.log"));
        assert_eq!(asked("ferroxy --config=note.conf"), to("C:/k #1/a.log"));
        assert_eq!(asked("ferroxy --config log.conf --log-file b.log"), to("b.log"));
        assert_eq!(asked("ferroxy --config other.conf --log-file=a.log"), None);
    }

    #[test]
    fn other_commands_are_no_services() {
        let is_of_agent = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            super::is_of_agent(&args)
        };
        assert!(is_of_agent("ferroxy run --x") && is_of_agent("kube-proxy --x") && is_of_agent("ferroxy"));
        assert!(!is_of_agent("ferroxy explain --windows-service"));
    }
}
