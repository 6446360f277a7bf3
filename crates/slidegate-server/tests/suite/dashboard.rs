//! The dashboard, in a real browser. Pictures of it are left in `target/screenshots`, for people to look at.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fantoccini::elements::Element;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::redis_server::{self, Flavour, lasting_port};
use crate::server::Server;

const ADMIN: &str = "admin-token-0123456789";

const RULES: &str = "
rules:
  - { name: login-per-ip, match: { api: /login }, key: [ip], limit: 3, window: 4s }
  - { name: api-per-user, match: { api: /search }, key: [user], limit: 500, window: 10s }
  - { name: watched, match: { api: /search }, key: [user], limit: 50, window: 10s, mode: shadow }
";

/// How long anything may take to be seen.
const PATIENCE: Duration = Duration::from_secs(20);

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").canonicalize().unwrap()
}

/// A browser and its driver, killed on drop.
struct Driver {
    child: Child,
    address: String,
}

/// One browser after the other: each keeps the machine busy by itself.
static TURN: Mutex<()> = Mutex::const_new(());

impl Driver {
    /// It may find the port taken that it has chosen, and leave; then another is started.
    fn start() -> Self {
        (0..10).find_map(|_| Self::try_start()).expect("it starts")
    }

    fn try_start() -> Option<Self> {
        let child = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("scripts/tools.sh installs chromium and its driver");
        let mut driver = Driver { child, address: String::new() };
        let lines = BufReader::new(driver.child.stdout.take()?).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            Some(line.split_once("started successfully on port ")?.1.trim_end_matches('.').to_owned())
        });
        driver.address = format!("http://127.0.0.1:{}", port?);
        Some(driver)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page in a browser.
struct Page {
    client: Client,
}

/// Shows the dashboard of `server` and lets `look` at it.
fn look<F: Future<Output = ()>>(server: &Server, look: impl FnOnce(Page) -> F) {
    let _turn = TURN.blocking_lock();
    let driver = Driver::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = json!({
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1000"],
        });
        let mut capabilities = serde_json::Map::new();
        capabilities.insert("goog:chromeOptions".to_owned(), options);
        let mut builder = ClientBuilder::new(HttpConnector::new());
        let client = builder.capabilities(capabilities).connect(&driver.address).await.unwrap();
        client.goto(&format!("http://{}/", server.address)).await.unwrap();
        let page = Page { client: client.clone() };
        look(page).await;
        client.close().await.unwrap();
    });
}

impl Page {
    async fn find(&self, css: &str) -> Element {
        self.client
            .wait()
            .at_most(PATIENCE)
            .for_element(Locator::Css(css))
            .await
            .unwrap_or_else(|error| panic!("{css}: {error}"))
    }

    async fn text(&self, css: &str) -> String {
        self.find(css).await.text().await.unwrap()
    }

    async fn click(&self, css: &str) {
        let element = self.find(css).await;
        self.run(
            "arguments[0].scrollIntoView({block: 'center'})",
            &[serde_json::to_value(&element).unwrap()],
        )
        .await;
        element.click().await.unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    /// Puts `text` in a field, as if it was typed.
    async fn fill(&self, css: &str, text: &str) {
        self.find(css).await;
        let script = "const field = document.querySelector(arguments[0]); field.focus(); field.value = arguments[1]; \
                      field.dispatchEvent(new Event('input', { bubbles: true })); \
                      field.dispatchEvent(new Event('change', { bubbles: true }));";
        self.run(script, &[css.into(), text.into()]).await;
    }

    async fn run(&self, script: &str, arguments: &[Value]) -> Value {
        self.client
            .execute(script, arguments.to_vec())
            .await
            .unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Waits until an expression of JavaScript holds.
    async fn until(&self, what: &str, expression: &str) {
        let script = format!("return Boolean({expression})");
        let mut looks = PATIENCE.as_millis() / 50;
        while self.run(&script, &[]).await != json!(true) {
            looks -= 1;
            if looks == 0 {
                self.picture("failed").await;
                let shown = self.run("return document.body.innerText", &[]).await;
                panic!("{what}: {expression}\n{}", shown.as_str().unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn picture(&self, name: &str) {
        let folder = target().join("screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), self.client.screenshot().await.unwrap()).unwrap();
    }

    /// All of it, as high as it is.
    async fn whole_picture(&self, name: &str, width: u32) {
        self.client.set_window_size(width, 1_000).await.unwrap();
        let height = self.run("return document.documentElement.scrollHeight", &[]).await.as_u64().unwrap();
        self.client.set_window_size(width, u32::try_from(height).unwrap().min(8_000) + 150).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.picture(name).await;
    }

    /// Nothing that would keep somebody out.
    async fn accessible(&self, what: &str) {
        let tools = target().join("tools/axe.min.js");
        let axe = std::fs::read_to_string(tools).expect("scripts/tools.sh installs axe-core");
        self.run(&axe, &[]).await;
        let script = "const done = arguments[arguments.length - 1]; axe.run(document).then(found => done(found.violations \
                      .filter(one => ['serious', 'critical'].includes(one.impact)) \
                      .map(one => one.id + ': ' + one.nodes.map(node => node.target.join(' ') + ' ' + node.failureSummary).join('; '))))";
        let found = self.client.execute_async(script, Vec::new()).await.unwrap();
        assert_eq!(found, json!([]), "{what}");
    }

    async fn become_admin(&self) {
        self.click("#token-open").await;
        self.fill("#token-input", ADMIN).await;
        self.click("#token-save").await;
        self.until("the token is taken", "!document.querySelector('#token-dialog').open").await;
    }
}

/// Asks until told to stop.
fn load(server: &Server, stop: &AtomicBool) {
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let body = match n % 3 {
            0 => format!(r#"{{"attributes":{{"api":"/login","ip":"10.0.0.{}"}}}}"#, n % 4),
            _ => format!(
                r#"{{"attributes":{{"api":"/search","user":"user-{}"}},"permits":{}}}"#,
                n % 7 % 3,
                1 + n % 2
            ),
        };
        server.post("/v1/acquire", &body);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn under_load(server: &Server, during: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| load(server, &stop));
        let during = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = during {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn numbers_move_and_a_key_shows_its_window() {
    let server = Server::with_rules(RULES);
    look(&server, async |page| {
        page.until("nobody has asked yet", "!document.querySelector('#empty').hidden").await;
        page.picture("empty").await;
        page.accessible("empty").await;
    });
    under_load(&server, || {
        look(&server, async |page| {
            let number = |css: &str| {
                format!("Number(document.querySelector('{css}').textContent.replace(/[^0-9.]/g, ''))")
            };
            page.until("requests are allowed", &format!("{} > 0", number("#allowed-rate"))).await;
            page.until("requests are refused", &format!("{} > 0", number("#refused-rate"))).await;
            page.until(
                "rules have rows",
                "document.querySelectorAll('#rules tbody tr[data-rule]').length === 3",
            )
            .await;
            page.until(
                "keys are hot",
                "document.querySelector('#top-hottest li[data-key^=\"api-per-user:\"]')",
            )
            .await;
            page.until(
                "keys are refused",
                "document.querySelector('#top-refused li[data-key^=\"login-per-ip:\"]')",
            )
            .await;
            let first = page.run("return document.querySelector('#chart').innerHTML", &[]).await;
            page.until("the chart moves", &format!("document.querySelector('#chart').innerHTML !== {first}"))
                .await;
            page.click("#top-refused li[data-key^=\"login-per-ip:\"] button").await;
            page.until(
                "its admissions are drawn",
                "document.querySelectorAll('#timeline [data-cost]').length > 0",
            )
            .await;
            page.until(
                "when the next is free is told",
                "/\\d/.test(document.querySelector('#next-free').textContent)",
            )
            .await;
            assert!(page.text("#inspector-used").await.contains("3"));
            for theme in ["light", "dark"] {
                page.run(&format!("document.documentElement.dataset.theme = '{theme}'"), &[]).await;
                for (width, device) in [(1_280, ""), (390, "-phone")] {
                    page.whole_picture(&format!("dashboard-{theme}{device}"), width).await;
                    page.accessible(&format!("{theme}{device}")).await;
                    let cut_off =
                        "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
                    assert_eq!(page.run(cut_off, &[]).await, json!(0), "{theme}{device}: nothing is cut off");
                }
            }
        });
    });
}

#[test]
fn refused_then_allowed_in_try_it() {
    let server = Server::with_rules(RULES);
    look(&server, async |page| {
        page.until("it is loaded", "!document.body.classList.contains('loading')").await;
        page.fill("#try-attributes", "api=/login\nip=1.2.3.4").await;
        for allowed in ["true", "true", "true", "false"] {
            page.run("document.querySelector('#try-verdict').dataset.allowed = ''", &[]).await;
            page.click("#try-acquire").await;
            page.until("it is answered", "document.querySelector('#try-verdict').dataset.allowed !== ''")
                .await;
            let verdict = page.find("#try-verdict").await.attr("data-allowed").await.unwrap();
            assert_eq!(verdict.as_deref(), Some(allowed));
        }
        assert!(page.text("#try-verdict").await.contains("login-per-ip"));
        page.picture("refused").await;
        // It can be tried again when the wait that was told is over, not before.
        page.click("#try-explain").await;
        page.until("it says why", "document.querySelector('#try-why').textContent.includes('`match` wants `api` to be /search, and it is /login')").await;
        assert!(page.text("#try-limits").await.contains("3 of 3 used"));
        page.until("there is something to try", "!document.querySelector('#try-again').hidden").await;
        page.until("the wait is over", "!document.querySelector('#try-again').disabled").await;
        page.click("#try-again").await;
        page.until("it is allowed", "document.querySelector('#try-verdict').dataset.allowed === 'true'")
            .await;
    });
}

#[test]
fn rules_are_edited_wrongly_and_then_rightly() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &[]);
    look(&server, async |page| {
        page.until("the rules are there", "document.querySelector('#editor').value.includes('login-per-ip')")
            .await;
        assert_eq!(page.run("return document.querySelector('#editor').readOnly", &[]).await, json!(true));
        page.become_admin().await;
        page.until("it may be edited", "!document.querySelector('#editor').readOnly").await;
        let text = page.run("return document.querySelector('#editor').value", &[]).await;
        let text = text.as_str().unwrap();
        assert!(text.contains("limit: 3"), "{text}");
        let wrong = text.replacen("limit: 3", "limit: none", 1);
        let line = 1 + wrong.lines().position(|line| line.contains("limit: none")).unwrap();
        page.fill("#editor", &wrong).await;
        page.click("#editor-check").await;
        page.find(&format!("#editor-messages li[data-line=\"{line}\"]")).await;
        page.picture("editor-wrong").await;
        page.accessible("a mistake").await;
        page.fill("#editor", &text.replacen("limit: 3", "limit: 4", 1)).await;
        page.click("#editor-check").await;
        page.until("it is right", "document.querySelectorAll('#editor-messages li[data-line]').length === 0")
            .await;
        page.until("it may be put", "!document.querySelector('#editor-apply').disabled").await;
        page.click("#editor-apply").await;
        page.find("#confirm-dialog[open]").await;
        page.picture("editor-right").await;
        page.click("#confirm-yes").await;
        page.until(
            "the edition is the second",
            "document.querySelector('#edition').textContent.includes('2')",
        )
        .await;
    });
    let rules = server.get("/v1/rules").json();
    assert_eq!((&rules["edition"]["version"], &rules["rules"][0]["limit"]), (&2.into(), &4.into()));
}

#[test]
fn a_mode_is_flipped_and_a_key_is_reset() {
    let rules = RULES.replace("window: 4s", "window: 1h");
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], &rules, &[]);
    for _ in 0..4 {
        server.post("/v1/acquire", r#"{"attributes":{"api":"/login","ip":"1.2.3.4"}}"#);
    }
    look(&server, async |page| {
        page.become_admin().await;
        page.click("#rules tbody tr[data-rule=\"login-per-ip\"] .mode button").await;
        page.find("#confirm-dialog[open]").await;
        page.click("#confirm-yes").await;
        let shadow = "document.querySelector('#rules tbody tr[data-rule=\"login-per-ip\"] [data-mode]').dataset.mode === 'shadow'";
        page.until("it only watches", shadow).await;
        page.fill("#inspector-key", "login-per-ip:ip=1.2.3.4").await;
        page.click("#inspector-open").await;
        page.until("it may be reset", "!document.querySelector('#inspector-reset').disabled").await;
        page.click("#inspector-reset").await;
        page.find("#confirm-dialog[open]").await;
        page.click("#confirm-yes").await;
        page.until("nothing is used", "!document.querySelector('#confirm-dialog').open").await;
    });
    assert_eq!(server.get("/v1/rules").json()["rules"][0]["mode"], "shadow");
    redis_server::eventually("it is forgotten", || {
        server.get("/v1/keys/login-per-ip:ip=1.2.3.4").status == 404
    });
}

#[test]
fn redis_goes_and_comes_back() {
    let port = lasting_port();
    let redis = redis_server::Server::at(Flavour::Redis7, port);
    let url = redis.url();
    let server = Server::with_env(&[], RULES, &["--store", &url]);
    under_load(&server, || {
        look(&server, async |page| {
            let state =
                |state: &str| format!("document.querySelector('#store-state').dataset.state === '{state}'");
            page.until("Redis is there", &state("ok")).await;
            page.picture("redis").await;
            redis.kill();
            page.until("Redis is gone", &format!("!({})", state("ok"))).await;
            page.until("that is said", "document.querySelector('#banner').textContent.trim() !== ''").await;
            page.picture("redis-down").await;
            page.accessible("Redis is gone").await;
            redis.restart();
            page.until("Redis is back", &state("ok")).await;
        });
    });
}

#[test]
fn a_server_that_goes_is_noticed() {
    let server = Server::with_env(&[("SLIDEGATE_TOKEN", ADMIN)], RULES, &[]);
    look(&server, async |page| {
        page.until("a token is asked for", "document.querySelector('#token-dialog').open").await;
        page.picture("token").await;
        page.fill("#token-input", ADMIN).await;
        page.click("#token-save").await;
        page.until("it is live", "document.querySelector('#live-state').dataset.state === 'ok'").await;
        server.terminate();
        page.until("it is lost", "document.querySelector('#live-state').dataset.state === 'lost'").await;
        page.picture("lost").await;
    });
}
