//! A headless Chromium that a test drives through the DevTools protocol: JSON messages over two pipes, separated by NUL. It
//! does not depend on what the page contains.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use ferroxy_lab::capability::skip;
use ferroxy_lab::{Namespace, PATIENCE};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The smaller one first.
const PROGRAMS: [&str; 3] = ["chromium-headless-shell", "chromium", "google-chrome"];

/// The pause between two checks of a page that is not yet as expected.
const POLL: Duration = Duration::from_millis(30);

/// One browser at a time: several would only take processors and memory from each other.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    last_call: u64,
    session: Value,
    /// Errors of scripts, of the console, and of the security policy.
    faults: Vec<String>,
    /// The addresses of all requests that the page made.
    requests: Vec<String>,
    _profile: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Starts a browser in the namespace of an agent, whose loopback address it opens. `None` if this machine has no Chromium
/// (prints a message; fails in CI).
pub fn open(node: &Namespace) -> Option<Browser> {
    let Some(program) = find() else {
        skip("no Chromium (as root, scripts/ensure-tools installs it)");
        return None;
    };
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let profile = tempfile::tempdir().unwrap();
    let mut child = node.run(|| start(&program, profile.path())).unwrap();
    let to = child.stdin.take().unwrap();
    let (sender, from) = channel();
    let stdout = child.stdout.take().unwrap();
    thread::spawn(move || {
        for message in BufReader::new(stdout).split(0) {
            // A browser that is killed may leave half a message.
            let message = message.ok().and_then(|message| serde_json::from_slice(&message).ok());
            if message.is_none_or(|message| sender.send(message).is_err()) {
                return;
            }
        }
    });
    let mut browser = Browser {
        child,
        to,
        from,
        last_call: 0,
        session: Value::Null,
        faults: Vec::new(),
        requests: Vec::new(),
        _profile: profile,
        _alone: alone,
    };
    let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
    let attach = json!({ "targetId": target, "flatten": true });
    browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].clone();
    for domain in ["Page", "Runtime", "Log", "Network"] {
        browser.call(&format!("{domain}.enable"), json!({}));
    }
    browser.size(1280, 800);
    Some(browser)
}

fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    PROGRAMS.iter().find_map(|name| folders.iter().map(|it| it.join(name)).find(|it| it.is_file()))
}

/// The protocol uses descriptors 3 and 4: a shell makes them of the pipes that a child has.
fn start(program: &Path, profile: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#]).arg(program);
    // The browser's own sandbox needs privileges that a test may not have; all it opens is our page.
    command.args(["--headless", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu"]);
    command.args(["--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--lang=en"]);
    // The browser must not look for updates and accounts: a namespace has no route to their servers, and the attempts take time.
    command.args(["--disable-quic", "--disable-background-networking", "--disable-component-update"]);
    command.args(["--disable-sync", "--disable-default-apps", "--disable-extensions", "--mute-audio"]);
    command.arg(format!("--user-data-dir={}", profile.display())).env("HOME", profile).env("TZ", "UTC");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

impl Browser {
    /// The result of one call of the protocol, which must succeed.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.try_call(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The result of one call, or the error that the browser answered.
    fn try_call(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.last_call += 1;
        let mut message = json!({ "id": self.last_call, "method": method, "params": parameters });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let answer = self.from.recv_timeout(PATIENCE);
            let mut answer =
                answer.unwrap_or_else(|error| panic!("{method}: no answer of the browser: {error}"));
            if answer["id"] != self.last_call {
                self.record(&answer);
                continue;
            }
            let error = answer["error"].take();
            return if error.is_null() { Ok(answer["result"].take()) } else { Err(error) };
        }
    }

    /// Records requests and faults. Requests that fail are no faults: tests make them fail.
    fn record(&mut self, event: &Value) {
        let parameters = &event["params"];
        if event["method"] == "Network.requestWillBeSent" {
            self.requests.push(parameters["request"]["url"].as_str().unwrap().to_owned());
        }
        let (entry, level) = (&parameters["entry"], &parameters["type"]);
        let is_fault = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => level == "error" || level == "warning" || level == "assert",
            Some("Log.entryAdded") => entry["source"] != "network" && entry["level"] != "verbose",
            _ => false,
        };
        if is_fault {
            self.faults.push(parameters.to_string());
        }
    }

    pub fn go(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
    }

    /// The value of an expression. If it is a promise, the value that it resolves to.
    pub fn js(&mut self, expression: &str) -> Value {
        let mut parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        // The policy of the page is in force for the expression, too.
        parameters["allowUnsafeEvalBlockedByCSP"] = false.into();
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true. An expression that throws counts as false. Panics after a fault.
    pub fn wait(&mut self, expression: &str) {
        let end = Instant::now() + PATIENCE;
        let attempt =
            format!("(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()");
        while !self.is_true(&attempt) {
            if Instant::now() >= end || !self.faults.is_empty() {
                let (place, seen) = (self.js("location.href"), self.js("document.body.innerText"));
                let seen = seen.as_str().unwrap_or_default();
                panic!("not true: {expression}; faults: {:?}; {place}:\n{seen}", self.faults);
            }
            thread::sleep(POLL);
        }
    }

    /// A document that is being replaced cannot answer: the browser then reports an error.
    fn is_true(&mut self, expression: &str) -> bool {
        let parameters = json!({ "expression": expression, "returnByValue": true });
        self.try_call("Runtime.evaluate", parameters).is_ok_and(|answer| answer["result"]["value"] == true)
    }

    /// The text of the first element that fits.
    pub fn text(&mut self, selector: &str) -> String {
        let text = self.js(&format!("document.querySelector({}).innerText", json!(selector)));
        text.as_str().unwrap_or_else(|| panic!("{selector}: {text}")).to_owned()
    }

    /// Waits until an element can be seen and has a text: a view that is hidden keeps the text it had.
    pub fn wait_for_text(&mut self, selector: &str, text: &str) {
        let (selector, text) = (json!(selector), json!(text));
        self.wait(&format!(
            "(it => it.checkVisibility() && it.innerText.includes({text}))(document.querySelector({selector}))"
        ));
    }

    /// A key as a keyboard sends it: `Enter`, `ArrowDown`, `/`.
    pub fn press(&mut self, key: &str) {
        let (text, code) = match key {
            "Tab" => ("", 9),
            "Enter" => ("\r", 13),
            "Escape" => ("", 27),
            "End" => ("", 35),
            "Home" => ("", 36),
            "ArrowLeft" => ("", 37),
            "ArrowUp" => ("", 38),
            "ArrowDown" => ("", 40),
            one => (one, u32::from(one.to_ascii_uppercase().as_bytes()[0])),
        };
        for (kind, text) in [("keyDown", text), ("keyUp", "")] {
            let parameters = json!({ "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", parameters);
        }
    }

    /// Types into the element that has the focus.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Clicks the middle of the first element that fits, as a mouse does.
    pub fn click(&mut self, selector: &str) {
        let selector = json!(selector);
        let place = self.js(&format!(
            "(() => {{ const it = document.querySelector({selector}); it.scrollIntoView({{ block: 'nearest' }}); \
             const box = it.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let parameters =
                json!({ "type": kind, "x": place[0], "y": place[1], "button": button, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", parameters);
        }
    }

    pub fn size(&mut self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        self.call("Emulation.setTouchEmulationEnabled", json!({ "enabled": width < 700 }));
    }

    /// Emulates the colour scheme that the operating system prefers.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// A picture of what is visible, as `docs/page-NAME.png`, if `UPDATE_SCREENSHOTS` is set.
    pub fn picture(&mut self, name: &str) {
        if env::var_os("UPDATE_SCREENSHOTS").is_none() {
            return;
        }
        let picture =
            self.call("Page.captureScreenshot", json!({ "format": "png", "optimizeForSpeed": false }));
        let bytes = base64(picture["data"].as_str().unwrap());
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        fs::write(docs.join(format!("page-{name}.png")), bytes).unwrap();
    }

    /// Elements without a name, of all that can be operated and that assistive technology sees.
    pub fn nameless(&mut self) -> Vec<String> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let operable = ["button", "link", "textbox", "searchbox", "combobox", "grid", "table", "dialog"];
        let is_nameless = |node: &&Value| {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            node["ignored"] != true && operable.contains(&role) && node["name"]["value"].as_str() == Some("")
        };
        tree["nodes"].as_array().unwrap().iter().filter(is_nameless).map(ToString::to_string).collect()
    }

    /// Seconds of processor time that the page's thread has used. Other load on the machine does not count.
    pub fn processor_time(&mut self) -> f64 {
        self.call("Performance.enable", json!({ "timeDomain": "threadTicks" }));
        let metrics = self.call("Performance.getMetrics", json!({}));
        let metrics = metrics["metrics"].as_array().unwrap();
        let time = metrics.iter().find(|it| it["name"] == "ThreadTime").unwrap();
        time["value"].as_f64().unwrap()
    }

    /// How many requests had this in their address.
    pub fn requests_with(&mut self, part: &str) -> usize {
        self.js("1");
        self.requests.iter().filter(|url| url.contains(part)).count()
    }

    /// Returns the faults so far, and clears them.
    pub fn take_faults(&mut self) -> Vec<String> {
        // Events come before the answer to a later call.
        self.js("1");
        std::mem::take(&mut self.faults)
    }

    /// All requests went to the agent, and some to its API. (The icon is a `data:` address of the page itself.)
    pub fn assert_own_requests(&self, origin: &str) {
        let is_own = |url: &str| url.starts_with(origin) || url.starts_with("data:") || url == "about:blank";
        let other: Vec<&String> = self.requests.iter().filter(|url| !is_own(url)).collect();
        assert!(other.is_empty(), "{other:?}");
        assert!(self.requests.iter().any(|url| url.contains("/api/v1/")), "{:?}", self.requests);
    }

    /// The end of a test: no fault, and no request to another origin.
    pub fn close(mut self) {
        assert_eq!(self.take_faults(), Vec::<String>::new());
        self.assert_own_requests(crate::URL);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes end with it. An error says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits =
            chunk.iter().fold(0, |bits, byte| bits << 6 | u32::from(digit(*byte))) << (6 * (4 - chunk.len()));
        bytes.extend(&bits.to_be_bytes()[1..chunk.len()]);
    }
    bytes
}
