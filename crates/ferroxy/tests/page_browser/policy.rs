//! The Content-Security-Policy in force: the page keeps it in every view, and the browser refuses what it forbids.

use serde_json::json;

use crate::looks::{VIEWS, see};
use crate::{Open, URL};

/// Each expression tries something that a less strict policy would allow, and is true if the browser refused it.
const FORBIDDEN: [(&str, &str); 6] = [
    (
        "a script in the document",
        "(() => { const it = document.createElement('script'); it.textContent = 'window.ran = 1'; document.head.append(it); return window.ran === undefined; })()",
    ),
    ("eval", "(() => { try { (0, eval)('1'); return false; } catch { return true; } })()"),
    (
        "a style in the document",
        "(() => { const it = document.createElement('style'); it.textContent = 'body { opacity: 0 }'; document.head.append(it); return getComputedStyle(document.body).opacity === '1'; })()",
    ),
    (
        "a request to another origin",
        "fetch('http://127.0.0.1:10256/healthz', { mode: 'no-cors' }).then(() => false, () => true)",
    ),
    (
        "a picture of another origin",
        "new Promise(done => { const it = new Image(); it.onload = () => done(false); it.onerror = () => done(true); it.src = 'http://127.0.0.1:10256/x.png'; })",
    ),
    (
        "a frame",
        "new Promise(done => { const it = document.createElement('iframe'); addEventListener('securitypolicyviolation', () => done(true), { once: true }); it.src = 'http://127.0.0.1:10256/'; document.body.append(it); })",
    ),
];

#[test]
fn the_policy_forbids_the_rest_of_the_world_and_the_page_keeps_it() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    for view in VIEWS {
        see(browser, view);
        assert_eq!(browser.take_faults(), Vec::<String>::new(), "{view}");
    }
    browser.assert_own_requests(URL);
    browser.js("(window.violated = [], addEventListener('securitypolicyviolation', it => violated.push(it.effectiveDirective)), 1)");
    for (what, attempt) in FORBIDDEN {
        assert_eq!(browser.js(attempt), true, "{what}");
    }
    let expected =
        json!(["connect-src", "frame-src", "img-src", "script-src", "script-src-elem", "style-src-elem"]);
    assert_eq!(browser.js("[...new Set(violated)].sort()"), expected);
    assert!(browser.take_faults().len() >= FORBIDDEN.len() - 1, "the log of the browser shows violations");
}
