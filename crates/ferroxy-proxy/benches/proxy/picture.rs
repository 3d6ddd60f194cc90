//! The table as a picture (SVG): a panel for each row, a bar for each contestant, scaled to the longest one.

use std::fmt::Write;

use crate::report::Line;

const WIDTH: usize = 860;
const LEFT: usize = 110;
const LONGEST: f64 = 560.0;
const BAR: usize = 17;
const NAMES: [(&str, &str); 5] = [
    ("direct", "direct"),
    ("Ferroxy", "ours"),
    ("HAProxy", "other"),
    ("nginx", "another"),
    ("original", "original"),
];

pub fn svg(lines: &[Line], note: &str) -> String {
    let mut panels = String::new();
    let mut y = 56;
    for line in lines {
        y = panel(&mut panels, line, y);
    }
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">
<title>The proxy engine beside HAProxy, nginx and the shape of kube-proxy's own</title>
<style>
text {{ font: 13px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2328 }}
.title {{ font-weight: 600 }}
.faint {{ fill: #59636e; font-size: 12px }}
.direct {{ fill: #818b98 }}
.ours {{ fill: #0969da }}
.other {{ fill: #9a6700 }}
.another {{ fill: #1a7f37 }}
.original {{ fill: #8250df }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #f0f6fc }}
.faint {{ fill: #9198a1 }}
.ours {{ fill: #4493f8 }}
.other {{ fill: #d29922 }}
.another {{ fill: #3fb950 }}
.original {{ fill: #ab7df8 }}
}}
</style>
<text class="faint" x="24" y="24">{note}</text>
{panels}</svg>
"#
    )
}

/// Returns the `y` at which the next panel begins.
fn panel(text: &mut String, line: &Line, mut y: usize) -> usize {
    let better = if line.more_is_better { "more is better" } else { "less is better" };
    let Line { title, unit, .. } = line;
    let _ = writeln!(
        text,
        r#"<text class="title" x="24" y="{y}">{}</text><text class="faint" x="330" y="{y}">{unit}, {better}</text>"#,
        title.trim()
    );
    y += 8;
    let longest = line.values.iter().flatten().fold(f64::MIN_POSITIVE, |longest, it| longest.max(*it));
    for ((name, class), value) in NAMES.iter().zip(line.values) {
        let Some(value) = value else { continue };
        let width = (value / longest * LONGEST).max(1.5);
        let (base, end) = (y + 12, LEFT as f64 + width + 6.0);
        let _ = writeln!(
            text,
            r#"<text class="faint" x="24" y="{base}">{name}</text><rect class="{class}" x="{LEFT}" y="{}" width="{width:.1}" height="11" rx="2"/><text class="faint" x="{end:.1}" y="{base}">{value:.2}</text>"#,
            y + 2
        );
        y += BAR;
    }
    y + 28
}
