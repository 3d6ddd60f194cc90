//! Actions of users on the page: search, sort, open, trace, follow.

use serde_json::json;

use crate::{Open, URL, loaded, names, shop};

#[test]
fn services_are_searched_filtered_and_sorted() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    // Problems first, and then by name.
    assert_eq!(names(browser)[..3], ["payments/fraud", "shop/checkout", "auth/oidc"]);
    browser.press("/");
    browser.write("shop 10.96.0.8");
    browser.wait_for_text("#services .summary", "8 of 24");
    browser.write("5");
    browser.wait_for_text("#services .summary", "1 of 24");
    assert_eq!(names(browser), ["shop/search"]);
    assert_eq!(browser.js("location.hash"), "#/services?q=shop+10.96.0.85");
    browser.press("Escape");
    loaded(browser, shop::SERVICES);
    // By name, down and up, and by the endpoints in use.
    browser.click("[data-sort=name]");
    assert_eq!(names(browser)[..2], ["auth/oidc", "auth/sessions"]);
    browser.click("[data-sort=name]");
    assert_eq!(names(browser)[0], "shop/web");
    browser.click("[data-sort=endpoints]");
    browser.click("[data-sort=endpoints]");
    assert_eq!(names(browser)[0], "shop/orders");
    assert_eq!(browser.js("document.querySelector('.head .c-endpoints').ariaSort"), "descending");
    // By state and by namespace; a link with all of it shows the same.
    browser.click(".chip[value=problem]");
    browser.wait_for_text("#services .summary", "2 of 24");
    browser.js("(() => { const it = document.getElementById('namespace'); it.value = 'shop'; it.dispatchEvent(new Event('change')); })()");
    browser.wait_for_text("#services .summary", "1 of 24");
    let link = browser.js("location.href");
    browser.go("about:blank");
    browser.go(link.as_str().unwrap());
    browser.wait_for_text("#services .summary", "1 of 24");
    assert_eq!(names(browser), ["shop/checkout"]);
    browser.press("/");
    browser.write("nothing-has-this-name");
    browser.wait_for_text("#view-services .empty", "No Service matches");
    open.browser.close();
}

#[test]
fn everything_is_reached_by_keyboard() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    let selected = "document.querySelector('#services .row[aria-selected=true]')?.dataset.name";
    for key in ["ArrowDown", "j", "ArrowDown", "k"] {
        browser.press(key);
    }
    assert_eq!(browser.js(selected), "shop/checkout");
    browser.press("End");
    assert_eq!(browser.js(selected), "data/kafka", "what is not handled is last");
    browser.press("Home");
    browser.press("Enter");
    browser.wait_for_text("#view-service h1", "payments/fraud");
    // The next Tab goes into this view, and the title of the tab names it.
    assert_eq!(browser.js("document.activeElement.id"), "main");
    browser.press("Tab");
    assert_eq!(browser.js("document.activeElement.title"), "Back to the list (Esc)");
    assert_eq!(browser.js("document.title"), "(2) payments/fraud · ka · Ferroxy");
    browser.press("t");
    browser.wait_for_text("#view-trace h1", "Trace");
    assert_eq!(browser.js("document.getElementById('trace-to').value"), "payments/fraud:9000");
    browser.press("Escape");
    browser.wait_for_text("#view-service h1", "payments/fraud");
    browser.press("Escape");
    browser.wait("!document.getElementById('view-services').hidden");
    assert_eq!(browser.js(selected), "payments/fraud", "the list is as it was");
    // From the search straight to the first match.
    browser.press("/");
    browser.write("cart");
    browser.wait_for_text("#services .summary", "1 of 24");
    browser.press("Enter");
    browser.wait_for_text("#view-service h1", "shop/cart");
    for (key, view) in [("2", "trace"), ("3", "journal"), ("4", "agent"), ("1", "services")] {
        browser.js("document.activeElement.blur()");
        browser.press(key);
        browser.wait(&format!("!document.getElementById('view-{view}').hidden"));
        assert_eq!(browser.js("document.querySelector('nav [aria-current]').dataset.view"), view);
    }
    assert_eq!(browser.js("document.title"), "(2) ka · Ferroxy");
    // The keys of the list work although the focus was on the tabs above.
    browser.press("ArrowDown");
    browser.press("Enter");
    browser.wait_for_text("#view-service h1", "/");
    browser.press("Escape");
    browser.wait("!document.getElementById('view-services').hidden");
    browser.press("?");
    browser.wait("document.getElementById('help').open");
    // The help lists the same keys as docs/page.md.
    let keys = browser.js("[...document.querySelectorAll('#help kbd')].map(it => it.innerText)");
    let documented = include_str!("../../../../docs/page.md");
    for key in keys.as_array().unwrap().iter().map(|key| key.as_str().unwrap()) {
        assert!(documented.contains(&format!("`{key}`")), "{key} is not in docs/page.md");
    }
    browser.press("Escape");
    browser.wait("!document.getElementById('help').open");
    open.browser.close();
}

#[test]
fn a_service_says_what_happens_and_why() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    browser.click("#services .row[data-name='shop/checkout'] .c-type");
    browser.wait_for_text("#view-service .finding", "Try");
    assert_eq!(browser.js("location.hash"), "#/service/shop/checkout");
    browser.wait_for_text(".front.bad", "rejected: no usable endpoint");
    assert_eq!(browser.js("document.querySelectorAll('.end.off').length"), 2);
    assert!(browser.text(".end .why").contains("not ready"), "{}", browser.text(".end"));
    browser.wait_for_text("#not-counted", "--traffic-metrics");
    // Both frontends of this one lead to both endpoints that are ready.
    browser.go(&format!("{URL}#/service/shop/web"));
    browser.wait("document.querySelectorAll('.flow > .lines path').length === 4");
    assert_eq!(browser.js("document.querySelectorAll('.front').length"), 2);
    assert_eq!(browser.js("document.querySelectorAll('.end').length"), 3);
    assert!(browser.text(".end").contains("web-5c9d7f-x2k7p"), "{}", browser.text(".end"));
    // For a Service that does not exist, the page suggests similar names.
    browser.go(&format!("{URL}#/service/shop/chekout"));
    browser.wait_for_text("#view-service .empty", "There is no such Service");
    browser.click(".similar a[href='#/service/shop/checkout']");
    browser.wait_for_text("#view-service h1", "shop/checkout");
    open.browser.close();
}

#[test]
fn a_change_appears_without_being_asked_for() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    let mut objects = shop::objects();
    let replace = |objects: &mut Vec<serde_json::Value>, with: serde_json::Value| {
        let name = |it: &serde_json::Value| (it["kind"].clone(), it["metadata"].clone());
        let place = objects.iter().position(|it| name(it) == name(&with)).unwrap();
        objects[place] = with;
    };
    // The stream is open, and the list is not read again from here on.
    browser.wait("document.body.dataset.connection === 'live'");
    assert_eq!(
        (browser.requests_with("/api/v1/events"), browser.requests_with("/api/v1/services?limit=")),
        (1, 1)
    );
    // In the table.
    replace(&mut objects, shop::moved("shop", "checkout", &["10.244.1.7", "!10.244.2.7"]));
    open.cluster.write("shop.yaml", &objects);
    browser.wait_for_text("#services .row[data-name='shop/checkout'] .c-endpoints", "1/2");
    browser.wait(
        "document.querySelector('#services .row[data-name=\"shop/checkout\"] .c-state').title === 'OK'",
    );
    browser.wait_for_text("#tile-problems b", "1");
    assert_eq!(
        (browser.requests_with("/api/v1/events"), browser.requests_with("/api/v1/services?limit=")),
        (1, 1)
    );
    // In the view of a Service, and in its journal.
    browser.go(&format!("{URL}#/service/shop/checkout"));
    browser.wait("document.querySelectorAll('.end:not(.off)').length === 1");
    replace(&mut objects, shop::moved("shop", "checkout", &["10.244.1.7", "10.244.2.7"]));
    open.cluster.write("shop.yaml", &objects);
    browser.wait("document.querySelectorAll('.end:not(.off)').length === 2");
    browser.wait("document.querySelectorAll('#view-service .entries .row').length >= 2");
    // In the journal, which can be paused and searched.
    browser.go(&format!("{URL}#/journal?q=shop/checkout"));
    browser.wait_for_text("#journal .rows .row", "shop/checkout");
    browser.press("p");
    browser.wait_for_text("#pause", "Resume");
    open.cluster.remove("shop.yaml");
    browser.wait_for_text("#pause", "Resume, 1 new");
    browser.press("p");
    browser.wait_for_text("#journal .rows .row .j-kind", "removed");
    browser.go(&format!("{URL}#/services"));
    browser.wait_for_text("#view-services .empty", "This agent knows no Service yet");
    open.browser.close();
}

#[test]
fn a_connection_is_traced_step_by_step() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    browser.press("2");
    browser.wait("document.activeElement.id === 'trace-to'");
    browser.write("shop/cart:80");
    browser.press("Enter");
    browser.wait_for_text("#path .verdict", "One of 3 endpoints");
    assert_eq!(browser.js("document.querySelectorAll('#path .targets li').length"), 3);
    assert!(browser.text("#path .step:nth-child(2) .where").len() > 1);
    // Through a node port from elsewhere: masqueraded.
    browser.go(&format!("{URL}#/trace?from=172.18.0.9&to=172.18.0.2:30871&interface=eth0"));
    browser.wait_for_text("#path .targets", "masqueraded");
    browser.wait_for_text("#path .command", "ferroxy trace 172.18.0.9 172.18.0.2:30871 --interface eth0");
    browser.go(&format!("{URL}#/trace?from=node&to=shop/checkout:80"));
    browser.wait_for_text("#path .verdict", "Rejected");
    browser.go(&format!("{URL}#/trace?from=node&to=10.9.9.9:1"));
    browser.wait_for_text("#path .verdict", "Not translated");
    // An invalid question gets the error message of the command.
    browser.go(&format!("{URL}#/trace?from=node&to=10.96.0.80"));
    browser.wait_for_text("#path .finding", "has no port");
    // A Service is suggested while its name is written.
    browser.js("(() => { const it = document.getElementById('trace-to'); it.value = 'ord'; it.dispatchEvent(new Event('input')); })()");
    let suggested = browser.js("[...document.querySelectorAll('#trace-names option')].map(it => it.value)");
    assert_eq!(suggested, json!(["shop/orders:80"]));
    open.browser.close();
}

/// Replaces the findings of `shop/cart` in the agent's answers with this one.
fn answer_with(finding: &serde_json::Value) -> String {
    format!(
        "(() => {{ window.asked ??= window.fetch; window.fetch = async (url, ...rest) => {{ \
         const answer = await asked(url, ...rest); \
         if (!String(url).endsWith('/services/shop/cart')) return answer; \
         return new Response(JSON.stringify({{ ...await answer.json(), findings: [{finding}] }})); }}; return 1; }})()"
    )
}

#[test]
fn what_works_as_designed_is_a_note_and_no_problem() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    let note = json!({ "problem": "Hints are ignored.", "fix": "Nothing to do.", "severity": "note" });
    browser.js(&answer_with(&note));
    browser.go(&format!("{URL}#/service/shop/cart"));
    browser.wait_for_text("#view-service .note:not(.off)", "Hints are ignored. Nothing to do.");
    assert_eq!(browser.js("document.querySelectorAll('#view-service .finding').length"), 0);
    assert_eq!(browser.text("#view-service .title .badge"), "OK");
    browser.wait_for_text("#view-service .good-text", "No problem found");
    // From an agent without severities, and from an agent with severities.
    for problem in [
        json!({ "problem": "Endpoints are missing.", "fix": "Start one." }),
        json!({ "problem": "Endpoints are missing.", "fix": "Start one.", "severity": "problem" }),
    ] {
        browser.js(&answer_with(&problem));
        browser.go(&format!("{URL}#/services"));
        browser.go(&format!("{URL}#/service/shop/cart"));
        browser.wait_for_text("#view-service .title .badge", "Problem");
        browser.wait_for_text("#view-service .finding", "Endpoints are missing.");
        assert_eq!(browser.js("document.querySelectorAll('#view-service .note:not(.off)').length"), 0);
    }
    open.browser.close();
}
