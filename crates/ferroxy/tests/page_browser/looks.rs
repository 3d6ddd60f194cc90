//! The look of the page and its accessibility: light and dark, contrast, a phone, names for assistive technology. And a cluster with
//! an API server and traffic, which the pictures of the documents show.

use std::time::Duration;

use ferroxy_lab::load::LoadPlan;
use ferroxy_lab::{Load, Protocol};
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::support::{Agent, Setting, Stage, nft};
use crate::{Open, URL, browser, loaded, shop};

pub const VIEWS: [&str; 6] = [
    "services",
    "service/shop/checkout",
    "service/ingress/nginx",
    "trace?from=node&to=shop/cart:80",
    "journal",
    "agent",
];

/// Opens a view and waits until it has its content.
pub fn see(browser: &mut Browser, view: &str) {
    browser.go(&format!("{URL}#/{view}"));
    browser.wait(match view.split(['/', '?']).next() {
        Some("services") => "document.querySelectorAll('#services .rows .row').length > 3",
        Some("service") => "document.querySelectorAll('#view-service .front').length > 0",
        Some("trace") => "document.querySelectorAll('#path .targets li').length === 3",
        Some("journal") => "document.querySelectorAll('#journal .rows .row').length > 0",
        _ => "document.querySelectorAll('#view-agent .plot .series').length > 3",
    });
}

#[test]
fn every_view_is_readable_in_light_and_dark() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for view in VIEWS {
            see(browser, view);
            let bad = browser.js(include_str!("contrast.js"));
            assert_eq!(bad, json!([]), "{view}, {scheme}");
            assert_eq!(browser.nameless(), Vec::<String>::new(), "{view}");
        }
        let background = browser.js("getComputedStyle(document.documentElement).backgroundColor");
        let expected = if scheme == "dark" { "rgb(14, 17, 21)" } else { "rgb(244, 245, 247)" };
        assert_eq!(background, expected);
    }
    // The system prefers dark; the user chooses light, and the page remembers the choice.
    browser.press("d");
    browser.go("about:blank");
    see(browser, "services");
    assert_eq!(
        browser.js("getComputedStyle(document.documentElement).backgroundColor"),
        "rgb(244, 245, 247)"
    );
    browser.click("#theme");
    assert_eq!(browser.js("getComputedStyle(document.documentElement).backgroundColor"), "rgb(14, 17, 21)");
    open.browser.close();
}

#[test]
fn a_phone_never_scrolls_sideways() {
    let Some(mut open) = Open::new() else { return };
    let browser = &mut open.browser;
    for width in [360, 760, 1024] {
        browser.size(width, 780);
        for view in VIEWS {
            see(browser, view);
            let wide = browser.js("document.documentElement.scrollWidth");
            assert!(wide.as_u64().unwrap() <= u64::from(width), "{view}: {wide} of {width}");
        }
    }
    browser.size(390, 780);
    see(browser, "services");
    browser.click("#services .row[data-name='shop/checkout'] .c-name");
    browser.wait_for_text("#view-service h1", "shop/checkout");
    open.browser.close();
}

/// A slice as its controller writes it: with the time at which a pod changed.
fn changed_now(mut slice: Value) -> Value {
    let now = jiff::Timestamp::now().to_string();
    slice["metadata"]["annotations"] = json!({ "endpoints.kubernetes.io/last-change-trigger-time": now });
    slice
}

/// An agent at an API server, which counts traffic.
fn start(stage: &Stage) -> Agent {
    let more = ["--page-address=127.0.0.1:10261", "--traffic-metrics"];
    Agent::start_with(stage.ka(), stage.arguments().into_iter().chain(more.map(Into::into)))
}

/// Some changes, as a cluster has them, the last of which leaves the shop as it was.
fn churn(stage: &Stage) {
    let endpoints =
        [&["10.244.1.5"][..], &["10.244.1.5", "10.244.2.5"], &["10.244.1.5", "10.244.1.6", "10.244.2.5"]];
    for round in 0..12 {
        for name in ["cart", "orders", "users"] {
            stage.put(&changed_now(shop::moved("shop", name, endpoints[round % 3])));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn rates_latency_drift_and_watches_are_live() {
    let Some(stage) = Stage::empty(Setting::default()) else { return };
    let Some(mut browser) = browser::open(stage.ka()) else { return };
    shop::frame().iter().chain(&shop::objects()).for_each(|object| stage.put(object));
    let _agent = start(&stage);
    let loads = ["10.96.0.80:80", "10.96.0.83:80", "10.96.0.87:80"].map(|target| {
        let plan = LoadPlan {
            interval: Duration::from_millis(15),
            ..LoadPlan::back_to_back(Protocol::Tcp, target.parse().unwrap())
        };
        Load::start(stage.network.namespace("a1").unwrap(), plan).unwrap()
    });
    churn(&stage);
    browser.prefer("light");
    browser.go(URL);
    // An API server does not send headless Services to a proxy.
    loaded(&mut browser, shop::SERVICES - 1);
    browser.wait("/([1-9]) of \\1 alive/.test(document.getElementById('tile-watch').innerText)");
    browser.wait_for_text("#tile-latency", "API to kernel");
    browser.wait(
        "/^[1-9]/.test(document.querySelector('#services .row[data-name=\"shop/cart\"] .c-rate').innerText)",
    );
    // Another program removes rules: they are repaired, and that is shown.
    nft(stage.ka(), &["flush", "map", "ip", "ferroxy", "frontends"]);
    browser.wait_for_text("#tile-drift b", "1");
    // Counters begin again with the repaired rules.
    browser.wait(
        "/^[1-9]/.test(document.querySelector('#services .row[data-name=\"shop/cart\"] .c-rate').innerText)",
    );
    browser.picture("services");
    see(&mut browser, "service/shop/cart");
    browser.wait("/^[1-9]/.test(document.querySelector('.port .rate b')?.innerText)");
    browser.wait("/^[1-9]/.test(document.querySelector('.end .rate')?.innerText)");
    browser.wait("document.querySelectorAll('.port .spark path').length > 0");
    browser.picture("service");
    see(&mut browser, "trace?from=10.244.1.5&to=shop/cart:80");
    browser.size(1280, 1060);
    browser.picture("trace");
    browser.size(1280, 800);
    see(&mut browser, "agent");
    browser.wait("document.querySelectorAll('#watch tbody tr').length > 2");
    browser.prefer("dark");
    // The value under the pointer.
    browser.js("document.querySelector('.plotbox').focus()");
    browser.press("ArrowLeft");
    browser.wait_for_text(".tip", "ms");
    browser.picture("agent");
    browser.size(390, 844);
    see(&mut browser, "services");
    browser.picture("phone");
    see(&mut browser, "trace?from=10.244.1.5&to=shop/cart:80");
    browser.picture("phone-trace");
    loads.into_iter().for_each(|load| drop(load.stop().unwrap()));
    browser.close();
}
