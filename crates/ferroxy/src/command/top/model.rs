//! The content of `ferroxy top`, and how keys change it. No drawing, no queries.

use ferroxy_core::foreign::printable;
use serde_json::Value;

use super::keys::Key;
use crate::client::rates::{Rate, Rates};
use crate::command::status::words;
use crate::view::explanation::is_note;

/// The longest text of a search.
const LONGEST_SEARCH: usize = 64;

/// One Service.
#[derive(Debug, Clone, Default)]
pub struct Row {
    pub name: String,
    pub used: u64,
    pub total: u64,
    pub state: String,
    pub problem: String,
    pub rate: Rate,
}

/// One endpoint of a port of the open Service.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Endpoint {
    /// `http 80/tcp`
    pub port: String,
    pub address: String,
    pub place: String,
    pub is_used: bool,
    pub reason: String,
    pub rate: Rate,
}

/// The Service that is open.
#[derive(Debug, Clone, Default)]
pub struct Detail {
    pub name: String,
    pub endpoints: Vec<Endpoint>,
    /// Problems, then notes.
    pub findings: Vec<Finding>,
    /// Why the Service could not be queried.
    pub error: Option<String>,
    pub offset: usize,
}

/// A problem with what to try, or a note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub is_note: bool,
    pub text: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Most bytes, in both directions
    #[default]
    Bytes,
    /// Most new connections
    Connections,
    /// By namespace and name
    Name,
}

impl Sort {
    pub fn words(self) -> &'static str {
        match self {
            Sort::Bytes => "bytes",
            Sort::Connections => "connections",
            Sort::Name => "name",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Bytes => Sort::Connections,
            Sort::Connections => Sort::Name,
            Sort::Name => Sort::Bytes,
        }
    }
}

/// The action that a key requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    Nothing,
    Quit,
    /// Details of another Service, or of none.
    Details(Option<String>),
}

#[derive(Debug, Clone, Default)]
pub struct Model {
    /// `node ka, nftables mode, ferroxy 0.1.0`
    pub title: String,
    /// The error of the last query, if it failed.
    pub error: Option<String>,
    pub is_counted: bool,
    pub rows: Vec<Row>,
    pub sort: Sort,
    pub search: String,
    pub is_searching: bool,
    /// The name of the selected Service.
    pub selected: String,
    pub detail: Option<Detail>,
    /// The help about keys is shown.
    pub is_helping: bool,
    /// The number of rows on the screen, for the keys that move by pages.
    pub page: usize,
}

impl Model {
    pub fn status(&mut self, status: &Value) {
        self.title = format!(
            "node {}, {} mode, ferroxy {}",
            words(&status["node"]),
            words(&status["mode"]),
            words(&status["version"])
        );
    }

    /// `items` of a ServiceList, all of them.
    pub fn services(&mut self, items: &[Value], rates: &Rates) {
        let row = |item: &Value| Row {
            name: words(&item["name"]),
            used: item["endpoints"]["used"].as_u64().unwrap_or(0),
            total: item["endpoints"]["total"].as_u64().unwrap_or(0),
            state: words(&item["state"]),
            problem: item["problem"].as_str().map(|it| printable(it).into_owned()).unwrap_or_default(),
            rate: Rate::default(),
        };
        self.rows = items.iter().map(row).collect();
        self.rates(rates);
    }

    pub fn rates(&mut self, rates: &Rates) {
        let mut sums: std::collections::HashMap<&str, Rate> = std::collections::HashMap::new();
        for ((service, ..), rate) in rates {
            sums.entry(service).or_default().add(rate);
        }
        for row in &mut self.rows {
            row.rate = sums.remove(row.name.as_str()).unwrap_or_default();
        }
    }

    /// A Service's explanation, and the rates of its endpoints.
    pub fn details(&mut self, name: &str, service: &Result<Value, String>, rates: &Rates) {
        let Some(detail) = self.detail.as_mut().filter(|detail| detail.name == name) else { return };
        match service {
            Err(error) => detail.error = Some(printable(error).into_owned()),
            Ok(service) => {
                detail.error = None;
                detail.endpoints = endpoints(service, rates);
                let findings = service["findings"].as_array().into_iter().flatten();
                detail.findings = findings.map(finding).collect();
            }
        }
    }

    /// The rows that match the search: problems first, then in the chosen order.
    pub fn visible(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.name.contains(&self.search)).collect();
        let by = |row: &Row| match self.sort {
            Sort::Bytes => row.rate.both(),
            Sort::Connections => row.rate.connections,
            Sort::Name => 0.0,
        };
        rows.sort_by(|a, b| {
            let problems = b.is_problem().cmp(&a.is_problem());
            problems.then(by(b).total_cmp(&by(a))).then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    /// The place of the selected row among the visible ones.
    pub fn place(&self, visible: &[&Row]) -> usize {
        visible.iter().position(|row| row.name == self.selected).unwrap_or(0)
    }

    pub fn key(&mut self, key: Key) -> Wish {
        if key == Key::Interrupt {
            return Wish::Quit;
        }
        if self.is_helping {
            self.is_helping = false;
            return Wish::Nothing;
        }
        if self.is_searching {
            self.type_search(key);
            return Wish::Nothing;
        }
        match (key, self.detail.is_some()) {
            (Key::Char('q'), _) => return Wish::Quit,
            (Key::Char('?'), _) => self.is_helping = true,
            (Key::Escape | Key::Backspace, true) => {
                self.detail = None;
                return Wish::Details(None);
            }
            (Key::Escape, false) => self.search.clear(),
            (Key::Char('/'), false) => self.is_searching = true,
            (Key::Char('s'), false) => self.sort = self.sort.next(),
            (Key::Char('b'), false) => self.sort = Sort::Bytes,
            (Key::Char('c'), false) => self.sort = Sort::Connections,
            (Key::Char('n'), false) => self.sort = Sort::Name,
            (Key::Enter, false) => return self.open(),
            (key, _) => self.step(key),
        }
        Wish::Nothing
    }

    fn type_search(&mut self, key: Key) {
        match key {
            Key::Char(character) if self.search.len() < LONGEST_SEARCH => self.search.push(character),
            Key::Backspace => drop(self.search.pop()),
            Key::Enter => self.is_searching = false,
            Key::Escape => {
                self.is_searching = false;
                self.search.clear();
            }
            _ => {}
        }
    }

    fn open(&mut self) -> Wish {
        let visible = self.visible();
        let Some(row) = visible.get(self.place(&visible)) else { return Wish::Nothing };
        let name = row.name.clone();
        self.detail = Some(Detail { name: name.clone(), ..Detail::default() });
        self.selected.clone_from(&name);
        Wish::Details(Some(name))
    }

    fn step(&mut self, key: Key) {
        let page = self.page.max(1);
        let moved = |place: usize| match key {
            Key::Up | Key::Char('k') => place.saturating_sub(1),
            Key::Down | Key::Char('j') => place + 1,
            Key::PageUp => place.saturating_sub(page),
            Key::PageDown => place + page,
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') => usize::MAX,
            _ => place,
        };
        if let Some(detail) = &mut self.detail {
            detail.offset = moved(detail.offset).min(detail.endpoints.len().saturating_sub(1));
            return;
        }
        let visible = self.visible();
        let place = moved(self.place(&visible)).min(visible.len().saturating_sub(1));
        self.selected = visible.get(place).map(|row| row.name.clone()).unwrap_or_default();
    }
}

impl Row {
    pub fn is_problem(&self) -> bool {
        matches!(self.state.as_str(), "problem" | "refused")
    }
}

fn finding(it: &Value) -> Finding {
    let is_note = is_note(it);
    let title = if is_note { "note: " } else { "" };
    let text = format!("{title}{} {}", words(&it["problem"]), words(&it["fix"]));
    Finding { is_note, text: text.trim_end().to_owned() }
}

fn endpoints(service: &Value, rates: &Rates) -> Vec<Endpoint> {
    let name = service["service"].as_str().unwrap_or_default().to_owned();
    let mut all = Vec::new();
    for port in service["ports"].as_array().into_iter().flatten() {
        let port_name = port["name"].as_str().unwrap_or_default();
        let number = port["port"].as_u64().unwrap_or(0);
        let shown = format!("{} {number}/{}", printable(port_name), words(&port["protocol"]));
        for endpoint in port["endpoints"].as_array().into_iter().flatten() {
            let address = words(&endpoint["address"]);
            let key = (name.clone(), port_name.to_owned(), address.clone());
            let place = match endpoint["local"] == true {
                true => "this node".to_owned(),
                false => endpoint["node"].as_str().map(|it| printable(it).into_owned()).unwrap_or_default(),
            };
            all.push(Endpoint {
                port: shown.trim_start().to_owned(),
                address,
                place,
                is_used: endpoint["usedForCluster"] == true || endpoint["usedForLocal"] == true,
                reason: endpoint["reason"].as_str().map(|it| printable(it).into_owned()).unwrap_or_default(),
                rate: rates.get(&key).cloned().unwrap_or_default(),
            });
        }
    }
    all.sort_by(|a, b| a.is_used.cmp(&b.is_used).then(b.rate.both().total_cmp(&a.rate.both())));
    all
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// Three Services: one idle, one busy, one with a problem.
    pub fn model() -> Model {
        let item = |name: &str, state: &str, problem: Option<&str>| json!({ "name": name, "state": state, "problem": problem, "endpoints": { "used": 1, "total": 2 } });
        let items = [
            item("a/idle", "ok", None),
            item("b/busy", "ok", None),
            item("c/broken", "problem", Some("No endpoint\x1b is ready.")),
        ];
        let rate = Rate { connections: 3.0, bytes: 1000.0, reply_bytes: 500.0, packets: 9.0 };
        let key = ("b/busy".to_owned(), "http".to_owned(), String::new());
        let mut model = Model { is_counted: true, page: 10, ..Model::default() };
        model.services(&items, &[(key, rate)].into());
        model.status(&json!({ "node": "ka", "mode": "nftables", "version": "0.1.0" }));
        model
    }

    fn names(model: &Model) -> Vec<&str> {
        model.visible().iter().map(|row| row.name.as_str()).collect()
    }

    fn press(model: &mut Model, keys: &[Key]) -> Wish {
        let mut wish = Wish::Nothing;
        for key in keys {
            wish = model.key(*key);
        }
        wish
    }

    #[test]
    fn problems_come_first_then_rates() {
        let mut model = model();
        assert_eq!(names(&model), ["c/broken", "b/busy", "a/idle"]);
        press(&mut model, &[Key::Char('n')]);
        assert_eq!(names(&model), ["c/broken", "a/idle", "b/busy"]);
        press(&mut model, &[Key::Char('s')]);
        assert_eq!((model.sort, names(&model)[1]), (Sort::Bytes, "b/busy"));
    }

    #[test]
    fn a_search_is_typed_and_cleared() {
        let mut model = model();
        press(&mut model, &[Key::Char('/'), Key::Char('q'), Key::Backspace, Key::Char('b'), Key::Char('u')]);
        assert_eq!(names(&model), ["b/busy"]);
        assert_eq!(press(&mut model, &[Key::Enter, Key::Char('q')]), Wish::Quit, "q is a key again");
        press(&mut model, &[Key::Escape]);
        assert_eq!(names(&model).len(), 3);
        assert_eq!(press(&mut model, &[Key::Char('/'), Key::Interrupt]), Wish::Quit);
    }

    #[test]
    fn the_selection_moves_and_stays_with_its_service() {
        let mut model = model();
        press(&mut model, &[Key::Down]);
        assert_eq!(model.selected, "b/busy");
        press(&mut model, &[Key::Char('n')]);
        assert_eq!(model.place(&model.visible()), 2, "it moved with its row");
        press(&mut model, &[Key::Down, Key::PageDown]);
        assert_eq!(model.selected, "b/busy", "it is the last");
        press(&mut model, &[Key::Home, Key::Up]);
        assert_eq!(model.selected, "c/broken");
    }

    #[test]
    fn a_service_is_opened_and_left() {
        let mut model = model();
        assert_eq!(press(&mut model, &[Key::Enter]), Wish::Details(Some("c/broken".to_owned())));
        let endpoint = |address: &str, used: bool| json!({ "address": address, "usedForCluster": used, "node": "kb", "reason": "not ready" });
        let service = json!({
            "service": "c/broken", "findings": [
                { "problem": "No endpoint is ready.", "fix": "Check." },
                { "severity": "note", "problem": "Hints are ignored.", "fix": "" }],
            "ports": [{ "name": "http", "port": 80, "protocol": "tcp", "endpoints": [endpoint("10.0.0.1:80", true), endpoint("10.0.0.2:80", false)] }],
        });
        model.details("a/other", &Ok(service.clone()), &Rates::new());
        assert!(model.detail.as_ref().unwrap().endpoints.is_empty(), "late, about another one");
        model.details("c/broken", &Ok(service), &Rates::new());
        let detail = model.detail.as_ref().unwrap();
        assert_eq!(detail.endpoints[0].address, "10.0.0.2:80", "what is not used comes first");
        let texts: Vec<&str> = detail.findings.iter().map(|it| it.text.as_str()).collect();
        assert_eq!(texts, ["No endpoint is ready. Check.", "note: Hints are ignored."]);
        assert_eq!(detail.findings.iter().filter(|it| it.is_note).count(), 1);
        assert_eq!(press(&mut model, &[Key::Escape]), Wish::Details(None));
        assert!(model.detail.is_none());
    }
}
