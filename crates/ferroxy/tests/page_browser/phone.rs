//! The page on a phone, 390 by 844 pixels: sorting without a head of the table, problems that can be read, the verdict of a trace at once.

use serde_json::json;

use crate::browser::Browser;
use crate::looks::see;
use crate::{Open, URL, names};

const SIZE: (u32, u32) = (390, 844);

/// Rows that cover another row, or that end before their text does.
const BAD_ROWS: &str = "(() => {
    const rows = [...document.querySelectorAll('#services .rows .row')].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex);
    const box = row => row.getBoundingClientRect();
    const covers = rows.filter((row, index) => index && box(row).top < box(rows[index - 1]).bottom - 0.5);
    const cut = rows.map(row => row.querySelector('.c-problem'))
        .filter(it => it.innerText && (it.scrollHeight > it.clientHeight || it.scrollWidth > it.clientWidth));
    return [...covers, ...cut].map(it => it.innerText);
})()";

#[test]
fn services_are_sorted_and_problems_are_read_on_a_phone() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    browser.size(SIZE.0, SIZE.1);
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        see(browser, "services");
        assert_eq!(
            browser.js("document.querySelector('.head').checkVisibility({ visibilityProperty: true })"),
            false
        );
        // Problems first: all words of them can be read.
        let text = browser.text("#services .row[data-name='shop/checkout'] .c-problem");
        assert!(text.contains("No IPv4 endpoint of port 80 is ready") && text.ends_with('.'), "{text}");
        for width in [360, SIZE.0] {
            browser.size(width, SIZE.1);
            browser.wait("document.querySelectorAll('#services .rows .row.tall').length === 2");
            assert_eq!(browser.js(BAD_ROWS), json!([]), "{width}");
        }
        assert_eq!(browser.js(include_str!("contrast.js")), json!([]), "{scheme}");
    }
    assert_eq!(browser.nameless(), Vec::<String>::new());
    browser.js("document.getElementById('sort').focus()");
    browser.press("ArrowDown");
    browser.wait("location.hash === '#/services?sort=name'");
    assert_eq!(names(browser)[..2], ["auth/oidc", "auth/sessions"]);
    assert_eq!(browser.js(BAD_ROWS), json!([]), "tall rows are between others now");
    browser.click("#direction");
    assert_eq!(names(browser)[0], "shop/web");
    assert_eq!(browser.js("document.getElementById('direction').ariaLabel"), "Sorted descending: change");
    // The last row, below rows of both heights.
    browser.js("document.activeElement.blur()");
    browser.press("End");
    let last = "document.querySelector('#services .row[aria-selected=true]')";
    browser.wait(&format!("{last}?.dataset.name === 'auth/oidc'"));
    browser.wait(&within(last));
    open.browser.close();
}

/// An element is on the screen with all of its edges.
fn within(element: &str) -> String {
    format!(
        "(box => box.height > 0 && box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth)\
         ({element}.getBoundingClientRect())"
    )
}

fn trace(browser: &mut Browser, to: &str, verdict: &str) {
    browser.click("#trace-to");
    browser.js("document.getElementById('trace-to').select()");
    browser.write(to);
    browser.click("#view-trace .primary");
    browser.wait_for_text("#path .verdict", verdict);
    browser.wait(&within("document.querySelector('#path .verdict')"));
    let wide = browser.js("document.documentElement.scrollWidth");
    assert!(wide.as_u64().unwrap() <= u64::from(SIZE.0), "{to}: {wide}");
}

#[test]
fn the_verdict_of_a_trace_is_on_the_screen_of_a_phone() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    browser.size(SIZE.0, SIZE.1);
    browser.go(&format!("{URL}#/trace"));
    browser.wait_for_text("#view-trace h1", "Trace");
    trace(browser, "shop/orders:80", "One of 4 endpoints");
    // Also by the phone's keyboard, which closes then.
    browser.click("#trace-to");
    assert_eq!(browser.js("document.activeElement.id"), "trace-to");
    browser.press("Enter");
    browser.wait("document.activeElement === document.body");
    browser.wait(&within("document.querySelector('#path .verdict')"));
    trace(browser, "shop/checkout:80", "Rejected");
    trace(browser, "10.9.9.9:1", "Not translated");
    // A link shows it at once, too.
    browser.go("about:blank");
    browser.go(&format!("{URL}#/trace?from=172.18.0.9&to=172.18.0.2:30871&interface=eth0"));
    browser.wait_for_text("#path .verdict", "masqueraded");
    browser.wait(&within("document.querySelector('#path .verdict')"));
    // A wide screen has room for both, and does not scroll.
    browser.size(1280, 800);
    browser.go("about:blank");
    browser.go(&format!("{URL}#/trace?to=shop/orders:80"));
    browser.wait_for_text("#path .verdict", "One of 4 endpoints");
    assert_eq!(browser.js("scrollY"), 0);
    open.browser.close();
}
