//! Tests the dashboard in a real browser. The tests leave screenshots in `target/screenshots`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use slidegate_testkit::{Flavour, RedisServer, eventually, lasting_port};

use crate::server::Server;
use crate::webdriver::Browser;

const ADMIN: &str = "admin-token-0123456789";

const RULES: &str = "
rules:
  - { name: login-per-ip, match: { api: /login }, key: [ip], limit: 3, window: 4s }
  - { name: api-per-user, match: { api: /search }, key: [user], limit: 500, window: 10s }
  - { name: watched, match: { api: /search }, key: [user], limit: 50, window: 10s, mode: shadow }
";

fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").canonicalize().unwrap()
}

/// The dashboard in a browser.
struct Page(Browser);

/// Opens the dashboard of `server` and runs `look` on it.
fn look(server: &Server, look: impl FnOnce(&Page)) {
    look(&Page(Browser::open(&format!("http://{}/", server.address))));
}

impl std::ops::Deref for Page {
    type Target = Browser;

    fn deref(&self) -> &Browser {
        &self.0
    }
}

impl Page {
    fn run(&self, script: &str, arguments: &[Value]) -> Value {
        self.0.run(script, arguments).unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Saves a picture of the window.
    fn picture(&self, name: &str) {
        let folder = target().join("screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        let picture = BASE64_STANDARD.decode(self.screenshot()).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
    }

    /// Saves a picture of the whole page, in a window as high as the page.
    fn whole_picture(&self, name: &str, width: u64) {
        self.set_window_size(width, 1_000);
        let height = self.run("return document.documentElement.scrollHeight", &[]).as_u64().unwrap();
        self.set_window_size(width, height.min(8_000) + 150);
        self.picture(name);
    }

    /// Asserts that axe-core finds no serious obstacle for people with disabilities.
    fn accessible(&self, what: &str) {
        let tools = target().join("tools/axe.min.js");
        let axe = std::fs::read_to_string(tools).expect("scripts/tools.sh installs axe-core");
        self.run(&axe, &[]);
        let script = "const done = arguments[arguments.length - 1]; axe.run(document).then(found => done(found.violations \
                      .filter(one => ['serious', 'critical'].includes(one.impact)) \
                      .map(one => one.id + ': ' + one.nodes.map(node => node.target.join(' ') + ' ' + node.failureSummary).join('; '))))";
        assert_eq!(self.run_async(script), json!([]), "{what}");
    }

    fn become_admin(&self) {
        self.click("#token-open");
        self.fill("#token-input", ADMIN);
        self.click("#token-save");
        self.until("the token is taken", "!document.querySelector('#token-dialog').open");
    }
}

/// Sends requests until it is stopped.
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
fn live_numbers_change_and_a_key_shows_its_window() {
    let server = Server::with_rules(RULES);
    look(&server, |page| {
        page.until("no request has arrived yet", "!document.querySelector('#empty').hidden");
        page.picture("empty");
        page.accessible("empty");
    });
    under_load(&server, || {
        look(&server, |page| {
            let number = |css: &str| {
                format!("Number(document.querySelector('{css}').textContent.replace(/[^0-9.]/g, ''))")
            };
            page.until("requests are allowed", &format!("{} > 0", number("#allowed-rate")));
            page.until("requests are denied", &format!("{} > 0", number("#denied-rate")));
            page.until(
                "rules have rows",
                "document.querySelectorAll('#rules tbody tr[data-rule]').length === 3",
            );
            page.until(
                "keys are hot",
                "document.querySelector('#top-hottest li[data-key^=\"api-per-user:\"]')",
            );
            page.until(
                "keys are denied",
                "document.querySelector('#top-denied li[data-key^=\"login-per-ip:\"]')",
            );
            let first = page.run("return document.querySelector('#chart').innerHTML", &[]);
            page.until("the chart moves", &format!("document.querySelector('#chart').innerHTML !== {first}"));
            page.click("#top-denied li[data-key^=\"login-per-ip:\"] button");
            page.until(
                "its admissions are drawn",
                "document.querySelectorAll('#timeline [data-cost]').length > 0",
            );
            page.until("the wait is shown", "/\\d/.test(document.querySelector('#next-free').textContent)");
            assert!(page.text("#inspector-used").contains("3"));
            for theme in ["light", "dark"] {
                page.run(&format!("document.documentElement.dataset.theme = '{theme}'"), &[]);
                for (width, device) in [(1_280, ""), (390, "-phone")] {
                    page.whole_picture(&format!("dashboard-{theme}{device}"), width);
                    page.accessible(&format!("{theme}{device}"));
                    let cut_off =
                        "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
                    assert_eq!(page.run(cut_off, &[]), json!(0), "{theme}{device}: nothing is cut off");
                }
            }
        });
    });
}

#[test]
fn try_it_form_shows_denied_and_allowed() {
    let server = Server::with_rules(RULES);
    look(&server, |page| {
        page.until("it is loaded", "!document.body.classList.contains('loading')");
        page.fill("#try-attributes", "api=/login\nip=1.2.3.4");
        for allowed in ["true", "true", "true", "false"] {
            page.run("document.querySelector('#try-verdict').dataset.allowed = ''", &[]);
            page.click("#try-acquire");
            page.until("it is answered", "document.querySelector('#try-verdict').dataset.allowed !== ''");
            let verdict = page.attribute("#try-verdict", "data-allowed");
            assert_eq!(verdict.as_deref(), Some(allowed));
        }
        assert!(page.text("#try-verdict").contains("login-per-ip"));
        page.picture("denied");
        // The button is enabled again after `retry_after`, not before.
        page.click("#try-explain");
        page.until("it says why", "document.querySelector('#try-why').textContent.includes('match needs api to be /search, but it is /login')");
        assert!(page.text("#try-limits").contains("3 of 3 used"));
        page.until("there is something to try", "!document.querySelector('#try-again').hidden");
        page.until("the wait is over", "!document.querySelector('#try-again').disabled");
        page.click("#try-again");
        page.until("it is allowed", "document.querySelector('#try-verdict').dataset.allowed === 'true'");
    });
}

#[test]
fn rule_editor_reports_errors_and_saves() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &[]);
    look(&server, |page| {
        page.until("the rules are there", "document.querySelector('#editor').value.includes('login-per-ip')");
        assert_eq!(page.run("return document.querySelector('#editor').readOnly", &[]), json!(true));
        page.become_admin();
        page.until("it may be edited", "!document.querySelector('#editor').readOnly");
        let text = page.run("return document.querySelector('#editor').value", &[]);
        let text = text.as_str().unwrap();
        assert!(text.contains("limit: 3"), "{text}");
        let wrong = text.replacen("limit: 3", "limit: none", 1);
        let line = 1 + wrong.lines().position(|line| line.contains("limit: none")).unwrap();
        page.fill("#editor", &wrong);
        page.click("#editor-check");
        page.wait_for_element(&format!("#editor-messages li[data-line=\"{line}\"]"));
        page.picture("editor-wrong");
        page.accessible("a mistake");
        page.fill("#editor", &text.replacen("limit: 3", "limit: 4", 1));
        page.click("#editor-check");
        page.until("it is right", "document.querySelectorAll('#editor-messages li[data-line]').length === 0");
        page.until("it may be put", "!document.querySelector('#editor-apply').disabled");
        page.click("#editor-apply");
        page.wait_for_element("#confirm-dialog[open]");
        page.picture("editor-right");
        page.click("#confirm-yes");
        page.until(
            "the edition is the second",
            "document.querySelector('#edition').textContent.includes('2')",
        );
    });
    let rules = server.get("/v1/rules").json();
    assert_eq!((&rules["edition"]["version"], &rules["rules"][0]["limit"]), (&2.into(), &4.into()));
}

#[test]
fn switches_a_mode_and_resets_a_key() {
    let rules = RULES.replace("window: 4s", "window: 1h");
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], &rules, &[]);
    for _ in 0..4 {
        server.post("/v1/acquire", r#"{"attributes":{"api":"/login","ip":"1.2.3.4"}}"#);
    }
    look(&server, |page| {
        page.become_admin();
        page.click("#rules tbody tr[data-rule=\"login-per-ip\"] .mode button");
        page.wait_for_element("#confirm-dialog[open]");
        page.click("#confirm-yes");
        let shadow = "document.querySelector('#rules tbody tr[data-rule=\"login-per-ip\"] [data-mode]').dataset.mode === 'shadow'";
        page.until("it only watches", shadow);
        page.fill("#inspector-key", "login-per-ip:ip=1.2.3.4");
        page.click("#inspector-open");
        page.until("it may be reset", "!document.querySelector('#inspector-reset').disabled");
        page.click("#inspector-reset");
        page.wait_for_element("#confirm-dialog[open]");
        page.click("#confirm-yes");
        page.until("nothing is used", "!document.querySelector('#confirm-dialog').open");
    });
    assert_eq!(server.get("/v1/rules").json()["rules"][0]["mode"], "shadow");
    eventually("it is forgotten", || server.get("/v1/keys/login-per-ip:ip=1.2.3.4").status == 404);
}

#[test]
fn shows_a_redis_outage_and_its_end() {
    let port = lasting_port();
    let redis = RedisServer::at(Flavour::Redis7, port);
    let url = redis.url();
    let server = Server::with_env(&[], RULES, &["--store", &url]);
    under_load(&server, || {
        look(&server, |page| {
            let state =
                |state: &str| format!("document.querySelector('#store-state').dataset.state === '{state}'");
            page.until("Redis is there", &state("ok"));
            page.picture("redis");
            redis.kill();
            page.until("Redis is gone", &format!("!({})", state("ok")));
            page.until("the banner is shown", "document.querySelector('#banner').textContent.trim() !== ''");
            page.picture("redis-down");
            page.accessible("Redis is gone");
            redis.restart();
            page.until("Redis is back", &state("ok"));
        });
    });
}

#[test]
fn shows_that_the_server_is_gone() {
    let server = Server::with_env(&[("SLIDEGATE_TOKEN", ADMIN)], RULES, &[]);
    look(&server, |page| {
        page.until("the token dialog opens", "document.querySelector('#token-dialog').open");
        page.picture("token");
        page.fill("#token-input", ADMIN);
        page.click("#token-save");
        page.until("it is live", "document.querySelector('#live-state').dataset.state === 'ok'");
        server.terminate();
        page.until("it is lost", "document.querySelector('#live-state').dataset.state === 'lost'");
        page.picture("lost");
    });
}
