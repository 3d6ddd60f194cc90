//! `ferroxy top`: the Services of this node by traffic, problems first, updated continuously. `model.rs` has the content,
//! `draw.rs` the presentation, `feed.rs` the queries.

mod draw;
mod feed;
mod keys;
mod layout;
mod model;
mod screen;
mod terminal;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferroxy_platform::signals;
use serde_json::{Value, json};

use super::{Answer, Output};
use crate::client::rates::{Rates, rates, short};
use crate::client::{AgentAddress, Api, Local};
use crate::output::{Paint, Table};
use crate::progress::{Step, in_steps, while_waiting};
use crate::view::document;
use feed::Feed;
use model::{Model, Row, Sort, Wish};
use screen::Screen;

/// How often the size of the terminal and requests to stop are checked.
const TICK: Duration = Duration::from_millis(100);

/// Without a terminal, and with --output, it prints one answer and exits. Keys: q quits, ? lists all keys, / searches, s, b, c and n sort, Enter
/// shows the endpoints of a Service, Esc goes back.
#[derive(Debug, Args)]
pub struct Top {
    #[command(flatten)]
    agent: AgentAddress,
    /// Seconds between two answers
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// What comes first, after problems
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// How to print it, once; without this flag, text, and again and again at a terminal
    #[arg(long, value_enum)]
    output: Option<Output>,
}

impl Top {
    pub fn run(self) -> anyhow::Result<Answer> {
        let (agent, interval) = (self.agent.open()?, Duration::from_secs(self.interval));
        let model = Model { sort: self.sort, is_counted: true, ..Model::default() };
        // Before anything is drawn: an agent that is not there is an error, and no empty screen.
        while_waiting("asking the agent", || agent.get("status"))?;
        if self.output.is_none() && io::stdin().is_terminal() && io::stdout().is_terminal() {
            live(agent, interval, model)?;
        } else {
            let model = in_steps(|step| measured(&agent, interval, model, step))?;
            self.output.unwrap_or_default().print(|| table(&model), || value(&model))?;
        }
        Ok(Answer::Yes)
    }
}

fn live(agent: Local, interval: Duration, mut model: Model) -> anyhow::Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_over);
    // Before other threads: they inherit the blocked signals.
    signals::watch(move |_| flag.store(true, Ordering::Relaxed)).context("cannot wait for signals")?;
    let feed = Feed::start(agent, interval).context("cannot start a thread")?;
    let mut screen = Screen::open().context("cannot draw on this terminal")?;
    let mut known = Rates::new();
    while !is_over.load(Ordering::Relaxed) {
        feed.news.try_iter().for_each(|news| news.tell(&mut model, &mut known));
        let (width, height) = screen.size()?;
        screen.show(draw::draw(&mut model, width, height))?;
        for key in keys::keys(&screen.keys(TICK)?) {
            match model.key(key) {
                Wish::Nothing => {}
                Wish::Quit => return Ok(()),
                // The thread may have ended: then the last error stays on the screen.
                Wish::Details(name) => drop(feed.wishes.send(name)),
            }
        }
    }
    Ok(())
}

/// All Services, with rates if traffic is counted.
fn measured(agent: &Local, interval: Duration, mut model: Model, step: &Step) -> anyhow::Result<Model> {
    step.is("reading Services");
    let services = feed::services(agent)?;
    let before = agent.get("traffic")?;
    model.is_counted = before["counted"] == true;
    let mut passed = Rates::new();
    if model.is_counted {
        step.is("measuring");
        thread::sleep(interval);
        passed = rates(&before, &agent.get("traffic")?, "items");
    }
    model.services(&services, &passed);
    Ok(model)
}

fn table(model: &Model) -> String {
    let (mut table, paint) = (Table::default(), Paint::stdout());
    let titles = ["SERVICE", "CONN/S", "IN B/S", "OUT B/S", "ENDPOINTS", "STATE", "PROBLEM"];
    table.row(titles.map(|title| paint.strong(title)));
    let rate = |number: f64| if model.is_counted { short(number) } else { "-".to_owned() };
    for row in model.visible() {
        table.row([
            row.name.clone(),
            rate(row.rate.connections),
            rate(row.rate.bytes),
            rate(row.rate.reply_bytes),
            format!("{}/{}", row.used, row.total),
            row.state.clone(),
            row.problem.clone(),
        ]);
    }
    table.to_string()
}

fn value(model: &Model) -> Value {
    let rate = |number: f64| Some(number).filter(|_| model.is_counted);
    let item = |row: &Row| {
        json!({
            "service": row.name,
            "connectionsPerSecond": rate(row.rate.connections),
            "bytesPerSecond": rate(row.rate.bytes),
            "replyBytesPerSecond": rate(row.rate.reply_bytes),
            "endpoints": { "used": row.used, "total": row.total },
            "state": row.state,
            "problem": Some(&row.problem).filter(|it| !it.is_empty()),
        })
    };
    let items: Vec<Value> = model.visible().into_iter().map(item).collect();
    document("Top", json!({ "counted": model.is_counted, "items": items }))
}
