//! The budgets, read from `budgets.txt`, and the comparison with what was counted.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Compilers and libraries differ a little.
const TOLERANCE_PERCENT: u64 = 5;

#[derive(Debug)]
pub struct Costs {
    budgets: BTreeMap<String, u64>,
    found: Vec<(&'static str, u64)>,
}

impl Costs {
    pub fn read() -> Costs {
        let text = fs::read_to_string(file()).unwrap();
        let budgets = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (number, name) = line.trim().split_once(' ').expect("a number and a name");
            (name.trim().to_owned(), number.parse().expect("a number"))
        });
        Costs { budgets: budgets.collect(), found: Vec::new() }
    }

    pub fn found(&mut self, name: &'static str, count: u64) {
        self.found.push((name, count));
    }

    /// Fails when something costs more than it may. Prints everything.
    pub fn judge(mut self) {
        let mut excess = String::new();
        for (name, count) in &self.found {
            let budget = self.budgets.get(*name).copied();
            println!("{count:>12} {name} (budget: {budget:?})");
            let limit = budget.unwrap_or(0) * (100 + TOLERANCE_PERCENT) / 100;
            if *count > limit {
                writeln!(excess, "{name}: {count}, and may be {limit}").unwrap();
            }
        }
        if std::env::var_os("UPDATE_COSTS").is_some() {
            return self.write();
        }
        assert!(excess.is_empty(), "more than the budgets in {} allow:\n{excess}", file().display());
    }

    /// Costs that were not counted this time keep their budgets.
    fn write(&mut self) {
        let found = self.found.iter().map(|(name, count)| ((*name).to_owned(), *count));
        self.budgets.extend(found);
        let text = fs::read_to_string(file()).unwrap();
        let mut text: String =
            text.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        for (name, count) in &self.budgets {
            writeln!(text, "{count:>8} {name}").unwrap();
        }
        fs::write(file(), text).unwrap();
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cost/budgets.txt")
}
