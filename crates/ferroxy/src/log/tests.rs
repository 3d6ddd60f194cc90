//! Lines of the log, for events at every level and every verbosity.

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tracing::{debug, error, trace, warn};

use super::*;

/// Tests run one after the other: the verbosity is one setting for the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that `say` logs, in a format, beginning with this verbosity and `vmodule`.
fn lines(format: LogFormat, verbosity: u32, vmodule: &[(&str, u32)], say: impl FnOnce()) -> Vec<String> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    levels::set(verbosity, vmodule.iter().map(|(pattern, n)| (pattern.to_string(), *n)).collect());
    let said = Said::default();
    let writer = said.clone();
    let layer = fmt::layer().with_writer(move || writer.clone());
    let registry = tracing_subscriber::registry().with(levels::Filter);
    match format {
        LogFormat::Text => {
            tracing::subscriber::with_default(registry.with(layer.event_format(text::Klog)), say)
        }
        LogFormat::Json => {
            tracing::subscriber::with_default(registry.with(layer.event_format(json::Json)), say)
        }
    }
    let said = said.0.lock().unwrap();
    String::from_utf8(said.clone()).unwrap().lines().map(str::to_owned).collect()
}

/// Logs one line at every level.
fn at_every_level() -> impl Fn() {
    || {
        error!("an error");
        warn!("a warning");
        info!("an info");
        info!(target: levels::V1, "v1");
        debug!("v2");
        trace!("v4");
        debug!(target: "hyper", "v6");
        trace!(target: "hyper", "v8");
    }
}

fn messages(lines: &[String]) -> Vec<&str> {
    lines.iter().map(|line| line.split_once("] ").unwrap().1).collect()
}

#[test]
fn verbosity_decides_what_is_said() {
    let all = ["an error", "a warning", "an info", "v1", "v2", "v4", "v6", "v8"];
    for (verbosity, count) in [(0, 3), (1, 4), (2, 5), (3, 5), (4, 6), (5, 6), (6, 7), (8, 8), (10, 8)] {
        let lines = lines(LogFormat::Text, verbosity, &[], at_every_level());
        assert_eq!(messages(&lines), all[..count], "-v={verbosity}");
    }
}

#[test]
fn modules_have_a_verbosity_of_their_own() {
    for (pattern, count) in [("tests", 6), ("te*", 6), ("test", 3), ("log", 3)] {
        let lines = lines(LogFormat::Text, 0, &[(pattern, 4)], at_every_level());
        assert_eq!(lines.len(), count, "{pattern}");
    }
}

#[test]
fn verbosity_changes_while_it_runs() {
    let lines = lines(LogFormat::Text, 0, &[], || {
        let say = |what: &str| debug!("{what}");
        say("too early");
        set_verbosity(2);
        assert_eq!(verbosity(), 2);
        say("in time");
        set_verbosity(0);
        say("too late");
    });
    assert_eq!(messages(&lines), ["in time"]);
}

#[test]
fn a_line_of_klog() {
    let lines = lines(LogFormat::Text, 0, &[], || {
        warn!(error = %"gone", count = 3, "it failed");
    });
    let (head, body) = lines[0].split_once("] ").unwrap();
    assert_eq!(body, r#""it failed" err="gone" count=3"#);
    let words: Vec<&str> = head.split_whitespace().collect();
    let [date, time, process, place] = words[..] else { panic!("{head}") };
    assert!(date.len() == 5 && date.starts_with('W') && date[1..].parse::<u16>().is_ok(), "{head}");
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "00:00:00.000000", "{head}");
    assert_eq!(process, std::process::id().to_string());
    assert!(place.starts_with("tests.rs:") && place[9..].parse::<u32>().is_ok(), "{head}");
}

#[test]
fn lines_of_json() {
    let lines = lines(LogFormat::Json, 4, &[], || {
        info!("two\nlines and a \"word\"");
        warn!("careful");
        debug!(path = %"/x", fast = true, "detail");
        error!(error = %"gone", "it failed");
    });
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        assert!(line["ts"].as_f64().is_some_and(|ts| ts > 1.6e12), "{line}");
        assert!(line["caller"].as_str().is_some_and(|caller| caller.starts_with("tests.rs:")), "{line}");
    }
    let rest = |line: &Value| {
        let mut line = line.clone();
        line.as_object_mut().unwrap().retain(|name, _| name != "ts" && name != "caller");
        line
    };
    let expected = serde_json::json!([
        { "msg": "two\nlines and a \"word\"", "v": 0 },
        { "msg": "careful", "v": 0, "level": "warn" },
        { "msg": "detail", "v": 2, "path": "/x", "fast": true },
        { "msg": "it failed", "err": "gone" },
    ]);
    assert_eq!(Value::Array(lines.iter().map(rest).collect()), expected);
}

#[test]
fn flags_are_logged_from_verbosity_one() {
    let given = Flags { proxy_mode: Some("nftables".to_owned()), ..Flags::default() };
    assert_eq!(lines(LogFormat::Text, 0, &[], || flags(&given)), Vec::<String>::new());
    let lines = lines(LogFormat::Text, 1, &[], || flags(&given));
    let messages = messages(&lines);
    assert_eq!(messages.len(), given.all(MODES).len());
    for line in
        [r#"FLAG: --proxy-mode="nftables""#, r#"FLAG: --oom-score-adj="-999""#, r#"FLAG: --cleanup="false""#]
    {
        assert!(messages.contains(&line), "{line}: {messages:#?}");
    }
}
