//! `ferroxy demo`: a small cluster in network namespaces of its own, with the real agent on its nodes, shown with real
//! requests. It compares every answer with the expected one, so it is also a test.

mod asking;
mod change;
mod isolation;
mod network;
mod proxy;
mod questions;
mod screen;
mod shop;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use ferroxy_core::explain::{Explanation, explain};
use ferroxy_core::{ServiceName, resolve};
use ferroxy_lab::Network;
use serde_json::{Value, json};

use super::input::Input;
use super::{Answer, Output, explain as explain_command, is_broken_pipe};
use crate::flags::Flags;
use crate::modes::{MODES, Modes};
use crate::output::Table;
use crate::view::explanation as explanation_view;
use asking::Row;
use change::Change;
use network::NODES;
use proxy::Proxy;
use questions::{AFFINITY, INSIDE, OUTSIDE, Question};
use screen::Screen;

#[derive(Debug, Args)]
pub struct Demo {
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Only write the manifests of the demo's shop to this folder, to try the other commands on
    #[arg(long, value_name = "FOLDER")]
    save_shop: Option<PathBuf>,
}

impl Demo {
    pub fn run(self, _: Modes) -> anyhow::Result<Answer> {
        if let Some(folder) = &self.save_shop {
            shop::write(folder)?;
            return Ok(Answer::Yes);
        }
        let began = Instant::now();
        let manifests = isolation::leave_host()?.join("shop");
        let screen = Screen::new(self.output);
        let mut stage = Stage::set_up(screen, manifests)?;
        let result = stage.tell();
        let wrong = result.as_ref().map(Found::wrong).unwrap_or_default();
        let failed = result.as_ref().is_err_and(|error| !is_broken_pipe(error));
        if failed || !wrong.is_empty() {
            stage.proxies.iter_mut().for_each(|proxy| screen::show(&proxy.said()));
        }
        drop(stage);
        let found = result?;
        let seconds = began.elapsed().as_secs_f64();
        self.output
            .print(|| closing(screen, wrong.len(), began).to_string(), || found.to_json(&wrong, seconds))?;
        if !wrong.is_empty() {
            bail!("not everything was as it should be: {}", wrong.join("; "));
        }
        Ok(Answer::Yes)
    }
}

/// The running cluster.
struct Stage {
    screen: Screen,
    manifests: PathBuf,
    // Declared before the network, so that its processes end first.
    proxies: Vec<Proxy>,
    network: Network,
}

/// All results.
struct Found {
    in_sync: Vec<(&'static str, String)>,
    inside: Vec<Row>,
    outside: Vec<Row>,
    affinity: Vec<Row>,
    change: Change,
    explanation: Explanation,
    explained: Value,
}

/// The Service that is broken on purpose.
const BROKEN: &str = "shop/reviews";

impl Stage {
    fn set_up(screen: Screen, manifests: PathBuf) -> anyhow::Result<Stage> {
        screen.heading("A cluster of two nodes, in network namespaces of its own")?;
        screen.print(network::picture())?;
        let waiting = screen.waiting("making it");
        let network = network::build().context("cannot make the network")?;
        shop::write(&manifests)?;
        let proxies = NODES.iter().map(|node| Proxy::start(&network, node, &manifests));
        let proxies = proxies.collect::<anyhow::Result<_>>()?;
        drop(waiting);
        Ok(Stage { screen, manifests, proxies, network })
    }

    fn tell(&mut self) -> anyhow::Result<Found> {
        let in_sync = self.wait_for_proxies()?;
        let inside =
            self.ask("Requests from inside: who answered, and whom did the pod see?", &INSIDE, 40)?;
        let outside = self.ask("Requests from outside", &OUTSIDE, 40)?;
        let affinity =
            self.ask("Session affinity: ten requests of a client stay with one pod", &AFFINITY, 10)?;
        let change = self.change()?;
        let (explanation, explained) = self.explain_broken()?;
        Ok(Found { in_sync, inside, outside, affinity, change, explanation, explained })
    }

    fn wait_for_proxies(&mut self) -> anyhow::Result<Vec<(&'static str, String)>> {
        self.screen.heading("Ferroxy runs on both")?;
        let mut in_sync = Vec::new();
        let mut table = Table::indented(2);
        for (node, proxy) in NODES.iter().zip(&mut self.proxies) {
            let waiting = self.screen.waiting(&format!("waiting for {}", node.name));
            let message = proxy.wait_until_in_sync()?;
            drop(waiting);
            table.row([node.name, &message]);
            in_sync.push((node.name, message));
        }
        self.screen.print(table)?;
        Ok(in_sync)
    }

    fn ask(&self, heading: &str, questions: &[Question], requests: usize) -> anyhow::Result<Vec<Row>> {
        self.screen.heading(heading)?;
        let waiting = self.screen.waiting("asking");
        let rows = asking::ask(&self.network, questions, requests)?;
        drop(waiting);
        self.screen.print(asking::table(&rows, self.screen.paint()))?;
        Ok(rows)
    }

    fn change(&self) -> anyhow::Result<Change> {
        self.screen.heading("api-3 leaves shop/api under load, and comes back")?;
        let waiting = self.screen.waiting("requests without a pause through both nodes");
        let change = change::take_away_and_put_back(&self.network, &self.manifests)?;
        drop(waiting);
        self.screen.print(change.text(self.screen.paint()))?;
        Ok(change)
    }

    /// The output of `ferroxy explain` on node-1.
    fn explain_broken(&self) -> anyhow::Result<(Explanation, Value)> {
        self.screen.heading(&format!("Why does {BROKEN} not work? `ferroxy explain {BROKEN}`, on node-1"))?;
        let input = Input { manifests: Some(self.manifests.clone()), bundle: None, flags: flags(&NODES[0])? };
        let (settings, cluster) = input.look(MODES)?;
        let name = ServiceName::parse(BROKEN).context(BROKEN)?;
        let explanation = explain(&cluster.facts, &name);
        let (intent, _) = resolve::all(&cluster.facts);
        let kernel = match intent.services.get(&name) {
            Some(service) => {
                let node = self.network.namespace(NODES[0].name)?;
                let look = || explain_command::in_kernel(&intent, service, &settings).words;
                Some(node.run(look)?)
            }
            None => None,
        };
        let on_host = explanation_view::OnHost { kernel, ..Default::default() };
        let text = explain_command::text(&explanation, &on_host, self.screen.paint());
        self.screen.print(indented(&text))?;
        let explained = explanation_view::to_json(&explanation, &on_host);
        Ok((explanation, explained))
    }
}

impl Found {
    /// The problems, in words; empty if there are none.
    fn wrong(&self) -> Vec<String> {
        let rows = self.inside.iter().chain(&self.outside).chain(&self.affinity);
        let mut wrong: Vec<String> = rows
            .filter(|row| !row.as_expected)
            .map(|row| format!("{} asked {} of {}", row.from, row.frontend, row.service))
            .collect();
        wrong.extend(self.change.wrong());
        if self.explanation.findings.is_empty() {
            wrong.push(format!("{BROKEN} is broken and no reason was found"));
        }
        wrong
    }

    fn to_json(&self, wrong: &[String], seconds: f64) -> Value {
        json!({
            "inSync": self.in_sync.iter().map(|(node, message)| json!({ "node": node, "said": message })).collect::<Vec<_>>(),
            "inside": self.inside,
            "outside": self.outside,
            "affinity": self.affinity,
            "change": self.change,
            "explained": self.explained,
            "wrong": wrong,
            "seconds": seconds,
        })
    }
}

/// The flags of a node's proxy, which `explain` on that node needs as well.
fn flags(node: &network::Node) -> anyhow::Result<Flags> {
    Ok(Flags::parse(proxy::flags(node).into_iter().map(Into::into), MODES)?)
}

fn closing(screen: Screen, wrong: usize, began: Instant) -> String {
    let paint = screen.paint();
    let seconds = began.elapsed().as_secs_f64();
    let verdict = match wrong {
        0 => paint.good("Everything was as it should be"),
        _ => paint.bad("Not everything was as it should be"),
    };
    let on_node = "--manifests shop --hostname-override node-1 --cluster-cidr 10.244.0.0/16";
    format!(
        "\n{verdict}, in {seconds:.1} s. All of it is gone again: no namespace, process or file is left.\n\n{}\n\n  \
         ferroxy demo --save-shop shop     {}\n  \
         ferroxy explain shop/front {on_node}\n  \
         ferroxy trace 172.18.0.100 203.0.113.40:80 {on_node}\n\n  \
         README.md has the rest.\n",
        paint.strong("Try next"),
        paint.faint("# the manifests of this shop, for the others to read"),
    )
}

fn indented(text: &str) -> String {
    let line = |line: &str| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") };
    text.lines().map(line).collect()
}
