//! A scenario through the real agent: events in, faults injected, and after every step the kernel compared with the Intent.

use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ferroxy::agent::{Agent, Input, Periods, Sender};
use ferroxy::serve::Status;
use ferroxy_core::{Event, Facts, Family, Intent, resolve};
use ferroxy_dataplane::testing::{Faults, Faulty, Injected};
use ferroxy_dataplane::{Dataplane, Mode, Opening, Settings};

use ferroxy_lab::PATIENCE;

use super::file::{Scenario, facts, own_node};

/// A mode, and what interferes with it.
pub struct Stage<'a> {
    pub mode: &'static Mode,
    pub open: &'a dyn Fn() -> Box<dyn Dataplane>,
    /// Another program damages what is in the kernel.
    pub tamper: &'a dyn Fn(),
    pub seed: u64,
}

/// A running agent.
struct Running {
    inputs: Sender,
    status: Arc<Status>,
    injected: Arc<Injected>,
    thread: JoinHandle<&'static str>,
}

impl Stage<'_> {
    /// Returns the faults that were injected.
    pub fn play(&self, scenario: &Scenario) -> Arc<Injected> {
        let faults = Arc::new(Injected::default());
        let mut facts = facts(scenario);
        let mut history = own_node();
        let mut running = self.start(scenario, &history, 0);
        for (number, step) in scenario.steps.iter().enumerate() {
            let where_ = format!("{} in {} mode, step {}", scenario.name(), self.mode.name, step.words);
            for event in step.events() {
                facts.apply(event);
            }
            history.extend(step.events());
            running.send(Input::Events(step.events()));
            self.settle(&running, &facts, &where_);
            if number == 0 {
                (self.tamper)();
                self.settle(&running, &facts, &format!("{where_}, after interference"));
            }
            if number == 1 {
                faults.add(&running.stop());
                running = self.start(scenario, &history, 1);
                self.settle(&running, &facts, &format!("{where_}, after a restart"));
            }
        }
        faults.add(&running.stop());
        self.nothing_is_left();
        faults
    }

    fn start(&self, scenario: &Scenario, history: &[Event], run: u64) -> Running {
        let faults = Faults::usual(self.seed * 10 + run);
        let mut dataplane = Faulty::new((self.open)(), faults);
        let injected = dataplane.injected();
        let (inputs, receiver) = ferroxy::agent::inbox();
        if let Some(watches) = dataplane.watches() {
            let inputs = inputs.clone();
            watches.watch(Box::new(move |what| inputs.send(Input::Drift(what)).is_ok())).unwrap();
        }
        let status = Arc::new(Status::new(&Family::ALL, Duration::from_secs(1)));
        let periods = Periods {
            verify: Duration::from_millis(300),
            pace: Duration::ZERO,
            tidy: Duration::from_millis(20),
            settle: Duration::from_millis(5),
        };
        let mut known = Facts::new(scenario.policy.clone());
        history.iter().cloned().for_each(|event| drop(known.apply(event)));
        let mut agent = Agent::new(self.mode, known, Box::new(dataplane), periods, Arc::clone(&status));
        let run = move || agent.start(&receiver).unwrap_or_else(|| agent.run(&receiver));
        Running { inputs, status, injected, thread: thread::spawn(run) }
    }

    /// Waits until the kernel has exactly what the facts say, after tidying.
    fn settle(&self, running: &Running, facts: &Facts, where_: &str) {
        let (intent, _) = resolve::all(facts);
        let end = Instant::now() + PATIENCE;
        let mut last = String::new();
        while Instant::now() < end {
            assert!(!running.thread.is_finished(), "{where_}: the agent ended");
            if running.status.now().progress.waiting == 0 {
                last = self.difference(&intent);
                if last.is_empty() {
                    return;
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{where_}: the kernel still differs from the Intent:\n{last}");
    }

    fn difference(&self, intent: &Intent) -> String {
        (self.open)().preview(intent).map_or_else(|error| error.to_string(), |preview| preview.text)
    }

    fn nothing_is_left(&self) {
        (self.open)().cleanup().unwrap();
        let left = (self.open)().cleanup().unwrap();
        // The kernel frees the counters of deleted rules later.
        let is_counter = |it: &String| it.starts_with("counter ");
        assert!(left.iter().all(is_counter), "{}: cleanup left {left:?}", self.mode.name);
        let end = Instant::now() + PATIENCE;
        while !(self.open)().cleanup().unwrap().is_empty() {
            assert!(Instant::now() < end, "{}: cleanup finds something again and again", self.mode.name);
        }
    }
}

impl Running {
    fn send(&self, input: Input) {
        self.inputs.send(input).unwrap();
    }

    fn stop(self) -> Arc<Injected> {
        self.send(Input::Stop("the test says so"));
        assert_eq!(self.thread.join().unwrap(), "the test says so");
        self.injected
    }
}

pub fn open(mode: &Mode) -> Box<dyn Dataplane> {
    (mode.open)(&Opening { families: &Family::ALL, settings: &Settings::default() }).unwrap()
}

/// Damages the rules with the official tool. The tool may find nothing to damage.
pub fn run(program: &str, arguments: &[&str]) {
    Command::new(program).args(arguments).output().unwrap();
}
