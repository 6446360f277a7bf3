//! Helper: Chromium over the WebDriver protocol, which is JSON over HTTP to a chromedriver that this file starts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slidegate_testkit::process;

use crate::server::Answer;

/// Limit of every wait for the page.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two checks of the page.
const PAUSE: Duration = Duration::from_millis(50);

/// Key under which the protocol names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// chromedriver and its browser, killed on drop.
struct Driver {
    child: Child,
    address: String,
}

impl Driver {
    /// Starts chromedriver. It exits if another process takes the port that it chose; then it is started again.
    fn start() -> Self {
        (0..10).find_map(|_| Self::try_start()).expect("chromedriver did not start in ten attempts")
    }

    fn try_start() -> Option<Self> {
        let child = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("scripts/tools.sh installs chromium and its driver");
        let mut driver = Driver { child, address: String::new() };
        let lines = process::Lines::of(driver.child.stdout.take()?);
        loop {
            let line = lines.next("chromedriver has started")?;
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                driver.address = format!("127.0.0.1:{}", port.trim_end_matches('.'));
                return Some(driver);
            }
        }
    }

    /// Sends a command and returns its `value`, or the driver's error as text.
    fn command(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let mut stream = TcpStream::connect(&self.address).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(2 * PATIENCE)).map_err(|error| error.to_string())?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).map_err(|error| error.to_string())?;
        let answer = read(stream).map_err(|error| error.to_string())?;
        let value = answer.json()["value"].clone();
        if answer.status == 200 { Ok(value) } else { Err(format!("{} {}", value["error"], value["message"])) }
    }
}

/// Reads one answer, by its length. It does not read to the end of the connection: a browser that chromedriver starts
/// meanwhile inherits the socket and keeps it open.
fn read(stream: TcpStream) -> std::io::Result<Answer> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let at = head.len();
        if reader.read_line(&mut head)? == 0 || head[at..].trim().is_empty() {
            break;
        }
        let header = head[at..].split_once(':');
        if let Some((_, value)) = header.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Answer::read(&[head.as_bytes(), &body].concat()[..]))
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One page in a headless browser. The browser ends when it is dropped.
pub(crate) struct Browser {
    driver: Driver,
    session: String,
}

impl Browser {
    pub(crate) fn open(url: &str) -> Self {
        let driver = Driver::start();
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--window-size=1280,1000",
        ];
        let capabilities = json!({ "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } });
        let created = driver.command("POST", "/session", &json!({ "capabilities": capabilities }));
        let session = created.unwrap()["sessionId"].as_str().unwrap().to_owned();
        let browser = Browser { driver, session };
        browser.post("timeouts", &json!({ "script": PATIENCE.as_millis() as u64 })).unwrap();
        browser.post("url", &json!({ "url": url })).unwrap();
        browser
    }

    fn post(&self, command: &str, body: &Value) -> Result<Value, String> {
        self.driver.command("POST", &format!("/session/{}/{command}", self.session), body)
    }

    fn get(&self, command: &str) -> Result<Value, String> {
        self.driver.command("GET", &format!("/session/{}/{command}", self.session), &Value::Null)
    }

    /// Repeats `attempt` until it succeeds; fails with its last error.
    fn wait_for<T>(&self, what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
        #[expect(clippy::disallowed_methods, reason = "the limit of a wait")]
        let began = Instant::now();
        loop {
            match attempt() {
                Ok(value) => return value,
                Err(error) if began.elapsed() > PATIENCE => {
                    panic!("not in {PATIENCE:?}: {what}: {error}");
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Waits for an element and returns its identifier.
    fn find(&self, css: &str) -> String {
        let query = json!({ "using": "css selector", "value": css });
        let found = self.wait_for(css, || self.post("element", &query));
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Waits until an element is there.
    pub(crate) fn wait_for_element(&self, css: &str) {
        self.find(css);
    }

    pub(crate) fn text(&self, css: &str) -> String {
        let element = self.find(css);
        self.get(&format!("element/{element}/text")).unwrap().as_str().unwrap().to_owned()
    }

    pub(crate) fn attribute(&self, css: &str, name: &str) -> Option<String> {
        let element = self.find(css);
        let value = self.get(&format!("element/{element}/attribute/{name}")).unwrap();
        value.as_str().map(str::to_owned)
    }

    /// Clicks on an element as soon as it can be clicked: a page that redraws may replace or cover it for a moment.
    pub(crate) fn click(&self, css: &str) {
        self.wait_for(css, || {
            let element = self.find(css);
            self.run("arguments[0].scrollIntoView({block: 'center'})", &[json!({ ELEMENT: element })])?;
            self.post(&format!("element/{element}/click"), &json!({}))
        });
    }

    /// Puts `text` into a field, as if it was typed.
    pub(crate) fn fill(&self, css: &str, text: &str) {
        self.wait_for_element(css);
        let script = "const field = document.querySelector(arguments[0]); field.focus(); field.value = arguments[1]; \
                      field.dispatchEvent(new Event('input', { bubbles: true })); \
                      field.dispatchEvent(new Event('change', { bubbles: true }));";
        self.run(script, &[css.into(), text.into()]).unwrap();
    }

    /// Runs JavaScript in the page and returns what it returns.
    pub(crate) fn run(&self, script: &str, arguments: &[Value]) -> Result<Value, String> {
        self.post("execute/sync", &json!({ "script": script, "args": arguments }))
    }

    /// Runs JavaScript that calls its last argument with the result.
    pub(crate) fn run_async(&self, script: &str) -> Value {
        self.post("execute/async", &json!({ "script": script, "args": [] })).unwrap()
    }

    /// Presses the mouse button on an element, moves the mouse, and releases the button. `from` and `to` are fractions of the
    /// width of the element.
    pub(crate) fn drag(&self, css: &str, from: f64, to: f64) {
        let script = "const box = document.querySelector(arguments[0]); box.scrollIntoView({ block: 'center' }); \
                      const { left, top, width, height } = box.getBoundingClientRect(); return [left, top, width, height]";
        let area = self.run(script, &[css.into()]).unwrap();
        let side = |n: usize| area[n].as_f64().unwrap();
        let y = (side(1) + side(3) / 2.0) as i64;
        let to_x = |share: f64| (side(0) + side(2) * share) as i64;
        let moves = |x: i64| json!({ "type": "pointerMove", "duration": 20, "x": x, "y": y });
        let steps = [
            moves(to_x(from)),
            json!({ "type": "pointerDown", "button": 0 }),
            moves(to_x((from + to) / 2.0)),
            moves(to_x(to)),
            json!({ "type": "pointerUp", "button": 0 }),
        ];
        let mouse = json!({ "type": "pointer", "id": "mouse", "parameters": { "pointerType": "mouse" }, "actions": steps });
        self.post("actions", &json!({ "actions": [mouse] })).unwrap();
    }

    /// Returns the messages of the console since the last call.
    pub(crate) fn console(&self) -> Vec<String> {
        let entries = self.post("se/log", &json!({ "type": "browser" })).unwrap();
        let text = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        entries.as_array().unwrap().iter().map(text).collect()
    }

    pub(crate) fn set_window_size(&self, width: u64, height: u64) {
        self.post("window/rect", &json!({ "width": width, "height": height })).unwrap();
    }

    /// PNG of the window, in base64.
    pub(crate) fn screenshot(&self) -> String {
        self.get("screenshot").unwrap().as_str().unwrap().to_owned()
    }

    /// Waits until a JavaScript expression holds.
    pub(crate) fn until(&self, what: &str, expression: &str) {
        let script = format!("return Boolean({expression})");
        self.wait_for(what, || {
            if self.run(&script, &[])? == json!(true) {
                return Ok(());
            }
            let shown = self.run("return document.body.innerText", &[])?;
            Err(format!("{expression}\n{}", shown.as_str().unwrap_or_default()))
        });
    }
}

impl Drop for Browser {
    /// Ends the browser; chromedriver would leave it running.
    fn drop(&mut self) {
        let _ = self.driver.command("DELETE", &format!("/session/{}", self.session), &Value::Null);
    }
}
