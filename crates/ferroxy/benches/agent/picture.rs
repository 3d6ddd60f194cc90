//! The most important figures as bars in an SVG: hand-written, with colours for light and for dark pages.

use super::figures::{Figure, Results, Run};
use super::report::show;

const PANELS: [Figure; 5] =
    [Figure::FirstPacket, Figure::Cpu, Figure::SteadyMemory, Figure::Change50, Figure::Churn99];

// Pixels.
const WIDTH: f64 = 860.0;
const MARGIN: f64 = 24.0;
const LABEL: f64 = 110.0;
/// The space beside a bar, for its value.
const VALUE: f64 = 230.0;
const BAR: f64 = 11.0;
const ROW: f64 = 2.0 * BAR + 12.0;
const HEAD: f64 = 78.0;
const TITLE: f64 = 34.0;

/// The picture of the larger clusters. For a single Service there is nothing to compare.
pub fn svg(results: &Results) -> String {
    let runs: Vec<&Run> = results.runs.iter().filter(|run| run.size.services > 1).collect();
    let mut at = HEAD;
    let mut panels = String::new();
    for figure in PANELS {
        panels.push_str(&panel(figure, &runs, at, results));
        at += TITLE + ROW * runs.len() as f64 + 8.0;
    }
    let height = at + MARGIN;
    let setting: Vec<String> = results
        .setting
        .iter()
        .filter(|(word, _)| ["mode", "kernel", "processors", "load before", "churn"].contains(word))
        .map(|(word, says)| format!("{word}: {says}"))
        .collect();
    let other =
        if results.has_peer() { "peer, same run" } else { "kube-proxy 1.37, as published (not of this run)" };
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">
<title>Ferroxy beside kube-proxy: start, CPU, memory, changes</title>
<style>
text {{ font: 13px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2328 }}
.title {{ font-weight: 600 }}
.faint {{ fill: #59636e; font-size: 12px }}
.ours {{ fill: #0969da }}
.other {{ fill: #9a6700 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #f0f6fc }}
.faint {{ fill: #9198a1 }}
.ours {{ fill: #4493f8 }}
.other {{ fill: #d29922 }}
}}
</style>
<text class="faint" x="{MARGIN}" y="24">{setting}</text>
<rect class="ours" x="{MARGIN}" y="40" width="12" height="12" rx="2"/><text x="42" y="51">Ferroxy</text>
<rect class="other" x="112" y="40" width="12" height="12" rx="2"/><text x="130" y="51">{other}</text>
{panels}</svg>
"#,
        setting = escape(&setting.join(" · ")),
    )
}

/// One figure: for each size a bar of ours, and below it the other's if there is one. All to one scale, from zero.
fn panel(figure: Figure, runs: &[&Run], top: f64, results: &Results) -> String {
    let values = |run: &Run| [run.ours.get(figure), results.other(run, figure)];
    let largest = runs.iter().flat_map(|run| values(run)).flatten().fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - 2.0 * MARGIN - LABEL - VALUE) / largest;
    let title = figure.title();
    let mut text = format!("<text class=\"title\" x=\"{MARGIN}\" y=\"{}\">{title}</text>\n", top + 18.0);
    for (index, run) in runs.iter().enumerate() {
        let y = top + TITLE + ROW * index as f64;
        let (size, middle) = (format!("{} x {}", run.size.services, run.size.endpoints), y + BAR + 4.0);
        text.push_str(&format!("<text class=\"faint\" x=\"{MARGIN}\" y=\"{middle}\">{size}</text>\n"));
        let [ours, theirs] = values(run);
        if let Some(ours) = ours {
            // Only if both were measured here: published figures are from other machines.
            let ratio = theirs.filter(|_| results.has_peer() && ours > 0.0).map(|theirs| theirs / ours);
            let less = ratio.filter(|ratio| *ratio >= 1.5).map(|ratio| format!("  ({ratio:.1}x less)"));
            let label = show(figure, ours) + &less.unwrap_or_default();
            text.push_str(&bar("ours", y, ours * scale, &label));
        }
        if let Some(theirs) = theirs {
            text.push_str(&bar("other", y + BAR + 2.0, theirs * scale, &show(figure, theirs)));
        }
    }
    text
}

fn bar(class: &str, y: f64, width: f64, label: &str) -> String {
    let (x, width) = (MARGIN + LABEL, width.max(1.5));
    let (label_x, label_y) = (x + width + 6.0, y + BAR - 1.0);
    format!(
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\"/>\
         <text class=\"faint\" x=\"{label_x:.1}\" y=\"{label_y}\">{}</text>\n",
        escape(label)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
