//! `ferroxy watch`: the agent's journal, as lines for people or as JSON for machines.

use std::io::{self, Write};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferroxy_core::ServiceName;
use ferroxy_core::foreign::printable;
use serde_json::Value;

use super::status::{milliseconds, words};
use super::{Answer, Output};
use crate::client::{AgentAddress, Api, Follow, Local};
use crate::log;
use crate::output::Paint;
use crate::progress::while_waiting;

#[derive(Debug, Args)]
pub struct Watch {
    #[command(flatten)]
    agent: AgentAddress,
    /// Only entries about this Service: NAMESPACE/NAME, or NAME in the namespace default
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
    /// How many earlier entries to begin with
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: u64,
    /// Print these and end, instead of waiting for more
    #[arg(long)]
    once: bool,
    /// How to print it: in JSON one line for each entry, in YAML one document
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// As many entries as a journal keeps.
const MOST: u64 = 2000;

/// The delay before the agent is queried again, and how many failures in a row are tolerated.
const AGAIN: Duration = Duration::from_secs(1);
const TRIES: u32 = 60;

impl Watch {
    pub fn run(mut self) -> anyhow::Result<Answer> {
        self.service = self.service.as_deref().map(service_name).transpose()?;
        let agent = self.agent.open()?;
        // Entries about one Service may be far apart.
        let limit = if self.service.is_some() { MOST } else { self.last.clamp(1, MOST) };
        let path = format!("journal?limit={limit}");
        let mut status = while_waiting("asking the agent", || agent.get("status"))?;
        let mut run = status["started"].take();
        let earlier = while_waiting("asking the agent", || agent.get(&path))?;
        let mut seen = earlier["last"].as_u64();
        let entries = earlier["items"].as_array().into_iter().flatten();
        let entries: Vec<&Value> = entries.filter(|entry| self.is_wanted(entry)).collect();
        let last = usize::try_from(self.last).unwrap_or(usize::MAX);
        for entry in &entries[entries.len().saturating_sub(last)..] {
            self.print(entry)?;
        }
        if self.once {
            if let Some(service) = self.service.as_deref().filter(|_| entries.is_empty()) {
                self.remark(&format!("the journal has no entry about {service}"));
            }
        } else {
            self.follow(&agent, &mut run, &mut seen)?;
        }
        Ok(Answer::Yes)
    }

    fn is_wanted(&self, entry: &Value) -> bool {
        self.service.as_deref().is_none_or(|wanted| entry["service"] == wanted)
    }

    /// Until the reader of the output is gone, or the agent has been gone for a minute.
    fn follow(&self, agent: &Local, run: &mut Value, seen: &mut Option<u64>) -> anyhow::Result<()> {
        let mut failures = 0;
        loop {
            // The agent ends every connection after some minutes. That is not a failure, and not reported.
            match self.connection(agent, run, seen, &mut failures)? {
                Ok(()) => {}
                Err(why) => {
                    failures += 1;
                    if failures == 1 {
                        self.remark(&format!("connection to {} lost ({why}): trying again", agent.who()));
                    }
                    anyhow::ensure!(failures <= TRIES, "no agent answers at {} any more", agent.who());
                }
            }
            // Always wait: an agent with too many connections closes a new one at once.
            sleep(AGAIN);
        }
    }

    /// Prints the entries of one connection. The inner error says why there were none. A restarted agent numbers entries from the
    /// beginning, so its start time is compared with `run` first.
    fn connection(
        &self,
        agent: &Local,
        run: &mut Value,
        seen: &mut Option<u64>,
        failures: &mut u32,
    ) -> anyhow::Result<Result<(), String>> {
        let status = match agent.get("status") {
            Ok(status) => status,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        if status["started"] != *run {
            self.remark(&format!("the agent at {} was restarted: its journal begins again", agent.who()));
            (*run, *seen) = (status["started"].clone(), Some(0));
        }
        let (mut printed, mut received) = (Ok(()), false);
        let result = agent.follow(*seen, &mut |event, data| {
            if std::mem::take(failures) > 0 {
                self.remark(&format!("connected to {} again", agent.who()));
            }
            received = true;
            match event {
                "journal" => {
                    *seen = data["number"].as_u64();
                    if self.is_wanted(data) {
                        printed = self.print(data);
                    }
                }
                "lost" => {
                    self.remark("some entries are missing: the journal overwrote them before they were read")
                }
                // The agent may have been restarted between both requests: then these are entries of the new process.
                "status" => run.clone_from(&data["started"]),
                _ => {}
            }
            printed.is_ok()
        });
        printed?;
        Ok(match result {
            Err(error) => Err(error.to_string()),
            Ok(()) if !received => Err("the agent closed the connection immediately".to_owned()),
            Ok(()) => Ok(()),
        })
    }

    fn remark(&self, text: &str) {
        log::print_error(&format!("ferroxy: {text}"));
    }

    fn print(&self, entry: &Value) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.output {
            Output::Text => writeln!(out, "{}", line(entry, Paint::stdout()))?,
            Output::Json => writeln!(out, "{entry}")?,
            Output::Yaml => {
                let text = serde_saphyr::to_string(entry).map_err(io::Error::other)?;
                writeln!(out, "---\n{}", text.trim_end())?;
            }
        }
        out.flush()
    }
}

fn service_name(text: &str) -> anyhow::Result<String> {
    let name = ServiceName::parse(text);
    let name = name.with_context(|| format!("--service: `{}` is not NAMESPACE/NAME", printable(text)))?;
    Ok(name.as_str().to_owned())
}

/// `2026-11-15 21:50:11.512Z  changed  default/web  2 → 3 endpoints (12 ms after the API)`
fn line(entry: &Value, paint: Paint) -> String {
    let clock = clock(&words(&entry["time"]));
    let kind = words(&entry["kind"]);
    let padded = format!("{kind:<12}");
    let kind = match kind.as_str() {
        "refused" | "failed" => paint.bad(&padded),
        "drift" | "verdict" | "source" => paint.doubtful(&padded),
        _ => paint.good(&padded),
    };
    let service = entry["service"].as_str().map(|_| format!("{} ", words(&entry["service"])));
    let after =
        entry["apiToKernelSeconds"].as_f64().map(|it| format!(" ({} after the API)", milliseconds(it)));
    format!(
        "{}  {kind} {}{}{}",
        paint.faint(&clock),
        service.map(|it| paint.strong(&it)).unwrap_or_default(),
        words(&entry["text"]),
        after.unwrap_or_default()
    )
}

/// Date and time in milliseconds, which are aligned in all lines: entries may be days old. Other text stays as it is.
fn clock(time: &str) -> String {
    let parts = time.strip_suffix('Z').and_then(|time| time.split_once('T'));
    let Some((date, clock)) = parts else { return time.to_owned() };
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let milliseconds: String = fraction.chars().chain("000".chars()).take(3).collect();
    format!("{date} {seconds}.{milliseconds}Z")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_has_a_namespace() {
        assert_eq!(service_name("web").unwrap(), "default/web");
        assert_eq!(service_name("shop/web").unwrap(), "shop/web");
        assert!(service_name("nope//").unwrap_err().to_string().contains("is not NAMESPACE/NAME"));
    }

    #[test]
    fn an_entry_is_a_line() {
        let mut entry = json!({
            "number": 61, "time": "2026-11-15T21:50:11.5Z", "kind": "changed", "service": "default/web",
            "text": "2 → 3 endpoints", "apiToKernelSeconds": 0.012,
        });
        let expected =
            "2026-11-15 21:50:11.500Z  changed      default/web 2 → 3 endpoints (12 ms after the API)";
        assert_eq!(line(&entry, Paint::off()), expected);
        entry["service"] = Value::Null;
        entry["apiToKernelSeconds"] = Value::Null;
        entry["text"] = "a\nb\x1b[31m".into();
        assert_eq!(clock("2026-11-15T21:50:11.197877567Z"), "2026-11-15 21:50:11.197Z");
        assert_eq!(
            (clock("2026-11-15T21:50:11Z").as_str(), clock("soon").as_str()),
            ("2026-11-15 21:50:11.000Z", "soon")
        );
        assert_eq!(line(&entry, Paint::off()), r"2026-11-15 21:50:11.500Z  changed      a\nb\u{1b}[31m");
    }
}
