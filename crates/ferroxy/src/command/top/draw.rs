//! The screen of `ferroxy top` as lines of styled text: a pure function of the model and of the size. `screen.rs` sends them.

use super::layout::{LEAST_STATE, Layout, RATES, cut, wrapped};
use super::model::{Detail, Endpoint, Model, Row};
use crate::client::rates::short;
use crate::modes::MODES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Strong,
    Faint,
    Doubtful,
    Bad,
    /// The selected row.
    Chosen,
}

/// Text of one style; a line has as many characters as the screen is wide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub text: String,
    pub style: Style,
}

const KEYS: &str = "q quit  ? help  / search  s sort  Enter endpoints  ↑ ↓";
const DETAIL_KEYS: &str = "q quit  Esc back  ? help  ↑ ↓ PgUp PgDn";
const HELP_KEYS: &str = "any key goes back";

const HELP: [(&str, &str); 11] = [
    ("q, Ctrl-C", "quit"),
    ("↑ ↓, k j", "the Service above, below; scroll its endpoints"),
    ("PgUp PgDn", "a page up, down"),
    ("Home End, g G", "the first, the last"),
    ("Enter", "endpoints and problems of the Service"),
    ("Esc", "back; all Services after a search"),
    ("/", "search by namespace and name"),
    ("s", "change the sort order"),
    ("b", "most bytes first"),
    ("c", "most connections first"),
    ("n", "by name"),
];

/// Exactly `height` lines. Changes only `page` of the model.
pub fn draw(model: &mut Model, width: usize, height: usize) -> Vec<Line> {
    let mut lines = vec![heading(model, width)];
    lines.push(notice(model));
    model.page = height.saturating_sub(4);
    let keys = match &model.detail {
        _ if model.is_helping => {
            lines.extend(help_lines());
            HELP_KEYS
        }
        Some(detail) => {
            lines.extend(detail_lines(detail, width, model.page));
            DETAIL_KEYS
        }
        None => {
            lines.extend(service_lines(model, width, model.page));
            KEYS
        }
    };
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), line(String::new(), Style::Plain));
    lines.push(line(keys.to_owned(), Style::Faint));
    lines.truncate(height);
    lines.into_iter().map(|it| Line { text: cut(&it.text, width), ..it }).collect()
}

fn line(text: String, style: Style) -> Line {
    Line { text, style }
}

fn help_lines() -> Vec<Line> {
    let keys = HELP.iter().map(|(key, words)| line(format!("{key:13}  {words}"), Style::Plain));
    [line("KEYS".to_owned(), Style::Strong)].into_iter().chain(keys).collect()
}

fn heading(model: &Model, width: usize) -> Line {
    if model.title.is_empty() {
        // Nothing is known yet: a count of 0 Services would be wrong.
        return line("asking the agent".to_owned(), Style::Strong);
    }
    let problems = model.rows.iter().filter(|row| row.is_problem()).count();
    let (services, sort) = (model.rows.len(), model.sort.words());
    let figures = format!("{services} Services, {problems} with problems, by {sort}");
    let whole = format!("{}: {figures}", model.title);
    if whole.chars().count() <= width {
        return line(whole, Style::Strong);
    }
    // If there is no room, the name of the node is enough.
    let node = model.title.split(',').next().unwrap_or_default();
    line(format!("{node}: {figures}"), Style::Strong)
}

/// A notice about the rows below: an error, the search, or that traffic is not counted.
fn notice(model: &Model) -> Line {
    if let Some(error) = &model.error {
        return line(format!("no answer: {error}"), Style::Bad);
    }
    if model.is_searching {
        return line(format!("/{}_", model.search), Style::Strong);
    }
    if !model.search.is_empty() && model.detail.is_none() {
        return line(format!("/{} (Esc shows all)", model.search), Style::Plain);
    }
    if !model.is_counted {
        let modes = MODES.counting("or");
        let words = format!("rates are unknown: start the agent with --traffic-metrics ({modes} mode)");
        return line(words, Style::Doubtful);
    }
    line(String::new(), Style::Plain)
}

fn service_lines(model: &Model, width: usize, page: usize) -> Vec<Line> {
    let visible = model.visible();
    let place = model.place(&visible);
    // The selected row is always on the screen.
    let first = place.saturating_sub(page.saturating_sub(1));
    let longest = visible.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let layout = Layout::of(width, longest);
    let titles = layout.figures.iter().map(|figure| figure.title().to_owned());
    let mut lines = vec![line(layout.columns("SERVICE", titles, "STATE"), Style::Strong)];
    for (index, row) in visible.iter().enumerate().skip(first).take(page) {
        let style = match index == place {
            true => Style::Chosen,
            false if row.is_problem() => Style::Bad,
            false if row.state != "ok" => Style::Doubtful,
            false => Style::Plain,
        };
        lines.push(line(row_text(row, &layout, model.is_counted), style));
    }
    lines
}

fn row_text(row: &Row, layout: &Layout, is_counted: bool) -> String {
    let state =
        if row.problem.is_empty() { row.state.clone() } else { format!("{}: {}", row.state, row.problem) };
    let figures = layout.figures.iter().map(|figure| figure.of(row, is_counted));
    layout.columns(&row.name, figures, &state)
}

fn detail_lines(detail: &Detail, width: usize, page: usize) -> Vec<Line> {
    let mut lines = vec![line(detail.name.clone(), Style::Strong)];
    if let Some(error) = &detail.error {
        lines.extend(wrapped(error, width).into_iter().map(|it| line(it, Style::Bad)));
    }
    lines.extend(finding_lines(detail, width, page / 2));
    let longest = |of: fn(&Endpoint) -> &str, least: usize| {
        detail.endpoints.iter().map(|it| of(it).chars().count()).max().unwrap_or(0).clamp(least, 50)
    };
    let (port, address) = (longest(|it| &it.port, 4), longest(|it| &it.address, 8));
    let has_rates = width >= port + address + RATES + LEAST_STATE;
    let columns = |name: &str, at: &str, rates: [&str; 3], used: &str| {
        let [connections, bytes, replies] = rates;
        let rates = match has_rates {
            true => format!("  {connections:>7}  {bytes:>7}  {replies:>7}"),
            false => String::new(),
        };
        format!("{:port$}  {:address$}{rates}  {used}", cut(name, port), cut(at, address))
    };
    lines.push(line(columns("PORT", "ENDPOINT", ["CONN/S", "IN B/S", "OUT B/S"], "USED"), Style::Strong));
    let room = (page + 1).saturating_sub(lines.len());
    for it in detail.endpoints.iter().skip(detail.offset).take(room) {
        let used = match (it.is_used, it.reason.is_empty()) {
            (true, _) => format!("yes, on {}", it.place),
            (false, true) => "no".to_owned(),
            (false, false) => format!("no: {}", it.reason),
        };
        let rates = [it.rate.connections, it.rate.bytes, it.rate.reply_bytes].map(short);
        let text = columns(&it.port, &it.address, rates.each_ref().map(String::as_str), &used);
        lines.push(line(text, if it.is_used { Style::Plain } else { Style::Doubtful }));
    }
    lines
}

/// Problems and notes, cut to `most` lines, because endpoints need room as well.
fn finding_lines(detail: &Detail, width: usize, most: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for finding in &detail.findings {
        let style = if finding.is_note { Style::Plain } else { Style::Bad };
        lines.extend(wrapped(&finding.text, width).into_iter().map(|it| line(it, style)));
    }
    let most = most.max(2);
    if lines.len() > most {
        lines.truncate(most - 1);
        lines.push(line(format!("… `ferroxy explain {}` has all of it", detail.name), Style::Faint));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::keys::Key;
    use super::super::model::Finding;
    use super::super::model::tests::model;
    use super::*;

    fn shown(model: &mut Model, width: usize, height: usize) -> Vec<String> {
        let lines = draw(model, width, height);
        assert_eq!(lines.len(), height);
        for line in &lines {
            assert!(line.text.chars().count() <= width, "{line:?}");
            assert!(!line.text.chars().any(char::is_control), "{line:?}");
        }
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn the_screen_has_every_service_and_what_is_wrong() {
        assert_eq!(shown(&mut Model::default(), 100, 8)[0], "asking the agent");
        let lines = shown(&mut model(), 100, 8);
        assert_eq!(lines[0], "node ka, nftables mode, ferroxy 0.1.0: 3 Services, 1 with problems, by bytes");
        assert!(lines[2].starts_with("SERVICE"), "{lines:#?}");
        assert!(
            lines[3].starts_with("c/broken ") && lines[3].contains(r"problem: No endpoint\u{1b} is ready."),
            "{lines:#?}"
        );
        let busy: Vec<&str> = lines[4].split_whitespace().collect();
        assert_eq!(busy, ["b/busy", "3.0", "1.0k", "500", "1/2", "ok"]);
        assert!(lines[7].starts_with("q quit"));
    }

    #[test]
    fn a_small_screen_is_no_problem() {
        for (width, height) in [(0, 0), (1, 1), (10, 3), (20, 5), (300, 2)] {
            shown(&mut model(), width, height);
        }
    }

    #[test]
    fn the_selected_row_is_on_the_screen() {
        let mut model = model();
        shown(&mut model, 80, 5);
        model.key(Key::End);
        let lines = draw(&mut model, 80, 5);
        let chosen: Vec<&Line> = lines.iter().filter(|line| line.style == Style::Chosen).collect();
        assert!(chosen.len() == 1 && chosen[0].text.starts_with("a/idle"), "{lines:#?}");
    }

    #[test]
    fn without_counters_rates_are_unknown() {
        let mut model = model();
        model.is_counted = false;
        let lines = shown(&mut model, 100, 8);
        assert!(lines[1].contains("--traffic-metrics") && lines[4].contains("      -  "), "{lines:#?}");
        model.error = Some("connection refused".to_owned());
        assert_eq!(shown(&mut model, 100, 8)[1], "no answer: connection refused");
    }

    #[test]
    fn endpoints_of_a_service_are_drawn() {
        let mut model = model();
        model.key(Key::Enter);
        let endpoint = |address: &str, is_used, reason: &str| super::super::model::Endpoint {
            port: "http 80/tcp".into(),
            address: address.into(),
            place: "kb".into(),
            is_used,
            reason: reason.into(),
            ..Default::default()
        };
        let detail = model.detail.as_mut().unwrap();
        detail.endpoints =
            vec![endpoint("10.0.0.2:80", false, "not ready"), endpoint("10.0.0.1:80", true, "")];
        let finding = |is_note, text: &str| Finding { is_note, text: text.to_owned() };
        detail.findings = vec![finding(false, "One endpoint is not ready. Check it.")];
        let lines = shown(&mut model, 100, 10);
        assert_eq!(lines[2], "c/broken");
        assert!(lines[5].contains("10.0.0.2:80") && lines[5].ends_with("no: not ready"), "{lines:#?}");
        assert!(lines[6].ends_with("yes, on kb") && lines[9].starts_with("q quit  Esc back"), "{lines:#?}");

        let note = "note: All endpoints of the Service are used in turn. No action is needed.";
        model.detail.as_mut().unwrap().findings.push(finding(true, note));
        let lines = shown(&mut model, 40, 20);
        let text = lines[3..6].join(" ");
        assert_eq!(text, format!("One endpoint is not ready. Check it. {note}"), "{lines:#?}");
        assert!(lines[7].ends_with("no: not ready"), "without rates: {lines:#?}");
        let lines = shown(&mut model, 40, 9);
        assert!(lines[4].starts_with("… `ferroxy explain c/broken`"), "endpoints need room: {lines:#?}");
    }

    #[test]
    fn the_state_is_seen_on_a_narrow_screen() {
        for width in [30, 40, 60, 80] {
            let lines = shown(&mut model(), width, 8);
            assert!(lines[2].ends_with("STATE"), "{width}: {lines:#?}");
            assert!(lines[3].contains(" problem"), "{width}: {lines:#?}");
            assert!(lines[4].starts_with("b/busy ") && lines[4].ends_with(" ok"), "{width}: {lines:#?}");
        }
        let lines = shown(&mut model(), 55, 8);
        assert_eq!(lines[0], "node ka: 3 Services, 1 with problems, by bytes");
        assert_eq!(lines[4].split_whitespace().collect::<Vec<_>>(), ["b/busy", "3.0", "1.5k", "1/2", "ok"]);
    }

    #[test]
    fn keys_are_explained_over_everything_else() {
        let mut model = model();
        model.key(Key::Char('?'));
        let lines = shown(&mut model, 60, 20);
        assert!(lines[2] == "KEYS" && lines.iter().any(|it| it.starts_with("/ ")), "{lines:#?}");
        assert_eq!(lines[19], "any key goes back");
        assert!(!lines.iter().any(|it| it.starts_with("b/busy")), "{lines:#?}");
        model.key(Key::Char('n'));
        assert!(shown(&mut model, 60, 20)[0].ends_with("by bytes"), "the key only went back");
    }
}
