//! The screen of `ferroxy top` as lines of styled text: a pure function of the model and of the size. `screen.rs` sends them.

use super::model::{Detail, Model, Row};
use crate::client::rates::short;

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

const KEYS: &str = "q quit  / search  s sort (b c n)  Enter endpoints  ↑ ↓ PgUp PgDn";
const DETAIL_KEYS: &str = "q quit  Esc back  ↑ ↓ PgUp PgDn";

/// Exactly `height` lines. Changes the model only in how many rows are a page.
pub fn draw(model: &mut Model, width: usize, height: usize) -> Vec<Line> {
    let mut lines = vec![heading(model)];
    lines.push(notice(model));
    model.page = height.saturating_sub(4);
    match &model.detail {
        Some(detail) => lines.extend(detail_lines(detail, model.page)),
        None => lines.extend(service_lines(model, model.page)),
    }
    lines.resize(height.saturating_sub(1), line(String::new(), Style::Plain));
    let keys = if model.detail.is_some() { DETAIL_KEYS } else { KEYS };
    lines.push(line(keys.to_owned(), Style::Faint));
    lines.truncate(height);
    lines.into_iter().map(|it| Line { text: cut(&it.text, width), ..it }).collect()
}

fn line(text: String, style: Style) -> Line {
    Line { text, style }
}

fn heading(model: &Model) -> Line {
    if model.title.is_empty() {
        // Nothing is known yet: no Services would be wrong.
        return line("asking the agent".to_owned(), Style::Strong);
    }
    let problems = model.rows.iter().filter(|row| row.is_problem()).count();
    let (services, sort) = (model.rows.len(), model.sort.words());
    line(format!("{}: {services} Services, {problems} with problems, by {sort}", model.title), Style::Strong)
}

/// What must be known about the rows below: an error, the search, or that nothing is counted.
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
        let words = "rates are unknown: start the agent with --traffic-metrics";
        return line(words.to_owned(), Style::Doubtful);
    }
    line(String::new(), Style::Plain)
}

fn service_lines(model: &Model, page: usize) -> Vec<Line> {
    let visible = model.visible();
    let place = model.place(&visible);
    // The selected row is always on the screen.
    let first = place.saturating_sub(page.saturating_sub(1));
    let name_width = visible.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).clamp(7, 50);
    let mut lines = vec![line(
        columns("SERVICE", name_width, ["CONN/S", "IN B/S", "OUT B/S", "ENDPOINTS"], "STATE"),
        Style::Strong,
    )];
    for (index, row) in visible.iter().enumerate().skip(first).take(page) {
        let style = match index == place {
            true => Style::Chosen,
            false if row.is_problem() => Style::Bad,
            false if row.state != "ok" => Style::Doubtful,
            false => Style::Plain,
        };
        lines.push(line(row_text(row, name_width, model.is_counted), style));
    }
    lines
}

fn row_text(row: &Row, name_width: usize, is_counted: bool) -> String {
    let rate = |number: f64| if is_counted { short(number) } else { "-".to_owned() };
    let state =
        if row.problem.is_empty() { row.state.clone() } else { format!("{}: {}", row.state, row.problem) };
    let endpoints = format!("{}/{}", row.used, row.total);
    let figures = [rate(row.rate.connections), rate(row.rate.bytes), rate(row.rate.reply_bytes), endpoints];
    columns(&row.name, name_width, figures.each_ref().map(String::as_str), &state)
}

fn columns(name: &str, name_width: usize, figures: [&str; 4], rest: &str) -> String {
    let [connections, bytes, replies, endpoints] = figures;
    let name = cut(name, name_width);
    format!("{name:name_width$}  {connections:>7}  {bytes:>7}  {replies:>7}  {endpoints:>9}  {rest}")
}

fn detail_lines(detail: &Detail, page: usize) -> Vec<Line> {
    let mut lines = vec![line(detail.name.clone(), Style::Strong)];
    if let Some(error) = &detail.error {
        lines.push(line(error.clone(), Style::Bad));
    }
    lines.extend(detail.findings.iter().map(|it| line(it.clone(), Style::Bad)));
    let width = |of: fn(&super::model::Endpoint) -> &str, least: usize| {
        detail.endpoints.iter().map(|it| of(it).chars().count()).max().unwrap_or(0).clamp(least, 50)
    };
    let (port, address) = (width(|it| &it.port, 4), width(|it| &it.address, 8));
    let heading = format!(
        "{:port$}  {:address$}  {:>7}  {:>7}  {:>7}  USED",
        "PORT", "ENDPOINT", "CONN/S", "IN B/S", "OUT B/S"
    );
    lines.push(line(heading, Style::Strong));
    let room = (page + 1).saturating_sub(lines.len());
    for it in detail.endpoints.iter().skip(detail.offset).take(room) {
        let used = match (it.is_used, it.reason.is_empty()) {
            (true, _) => format!("yes, on {}", it.place),
            (false, true) => "no".to_owned(),
            (false, false) => format!("no: {}", it.reason),
        };
        let rates = [it.rate.connections, it.rate.bytes, it.rate.reply_bytes].map(short);
        let [connections, bytes, replies] = rates;
        let text = format!(
            "{:port$}  {:address$}  {connections:>7}  {bytes:>7}  {replies:>7}  {used}",
            cut(&it.port, port),
            cut(&it.address, address)
        );
        lines.push(line(text, if it.is_used { Style::Plain } else { Style::Doubtful }));
    }
    lines
}

/// At most so many characters; `…` shows that there were more.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { String::new() } else { format!("{kept}…") }
}

#[cfg(test)]
mod tests {
    use super::super::keys::Key;
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
        detail.findings = vec!["One endpoint is not ready. Check it.".into()];
        let lines = shown(&mut model, 100, 10);
        assert_eq!(lines[2], "c/broken");
        assert!(lines[5].contains("10.0.0.2:80") && lines[5].ends_with("no: not ready"), "{lines:#?}");
        assert!(lines[6].ends_with("yes, on kb") && lines[9].starts_with("q quit  Esc back"), "{lines:#?}");
    }
}
