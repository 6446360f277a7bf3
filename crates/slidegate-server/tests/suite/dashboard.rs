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
    look_at(server, "", look);
}

/// Opens the dashboard of `server` with `hash` at the end of its URL, and runs `look` on it.
fn look_at(server: &Server, hash: &str, look: impl FnOnce(&Page)) {
    look(&Page(Browser::open(&format!("http://{}/{hash}", server.address))));
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
                "the admissions of the key are drawn",
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
        page.until("the page is loaded", "!document.body.classList.contains('loading')");
        page.fill("#try-attributes", "api=/login\nip=1.2.3.4");
        for allowed in ["true", "true", "true", "false"] {
            page.run("document.querySelector('#try-verdict').dataset.allowed = ''", &[]);
            page.click("#try-acquire");
            page.until(
                "the request is answered",
                "document.querySelector('#try-verdict').dataset.allowed !== ''",
            );
            let verdict = page.attribute("#try-verdict", "data-allowed");
            assert_eq!(verdict.as_deref(), Some(allowed));
        }
        assert!(page.text("#try-verdict").contains("login-per-ip"));
        page.picture("denied");
        // The button is enabled again after `retry_after`, not before.
        page.click("#try-explain");
        page.until("the page shows the reason", "document.querySelector('#try-why').textContent.includes('match needs api to be /search, but it is /login')");
        assert!(!page.text("#try-why").contains('`'), "names are marked as code");
        assert_eq!(page.attribute("#try-limits .meter", "data-full").as_deref(), Some("true"));
        assert!(page.text("#try-limits").contains("3 of 3 used"));
        page.until("the button appears", "!document.querySelector('#try-again').hidden");
        page.until("the wait is over", "!document.querySelector('#try-again').disabled");
        page.click("#try-again");
        page.until(
            "the request is allowed",
            "document.querySelector('#try-verdict').dataset.allowed === 'true'",
        );
    });
}

#[test]
fn rule_editor_reports_errors_and_saves() {
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], RULES, &[]);
    look(&server, |page| {
        page.until("the rules are there", "document.querySelector('#editor').value.includes('login-per-ip')");
        assert_eq!(page.run("return document.querySelector('#editor').readOnly", &[]), json!(true));
        page.become_admin();
        page.until("the rules can be edited", "!document.querySelector('#editor').readOnly");
        let text = page.run("return document.querySelector('#editor').value", &[]);
        let text = text.as_str().unwrap();
        assert!(text.contains("limit: 3"), "{text}");
        let wrong =
            text.replacen("limit: 3", "limit: none, a-field-that-no-rule-has: 1, another-such-field: 2", 1);
        let line = 1 + wrong.lines().position(|line| line.contains("limit: none")).unwrap();
        page.fill("#editor", &wrong);
        page.click("#editor-check");
        page.wait_for_element(&format!("#editor-messages li[data-line=\"{line}\"]"));
        assert_eq!(page.run("return document.querySelectorAll('#editor-marks div').length", &[]), json!(1));
        let covered = "const message = document.querySelector('#editor-marks span').getBoundingClientRect(); \
                       const text = document.createRange(); text.selectNodeContents(document.querySelector('#editor-colors')); \
                       return message.width > 0 && [...text.getClientRects()].some(part => part.right > message.left && part.left < message.right \
                       && part.bottom > message.top && part.top < message.bottom)";
        assert_eq!(page.run(covered, &[]), json!(false), "the message covers no text");
        page.picture("editor-wrong");
        page.accessible("a mistake");
        page.fill("#editor", &text.replacen("limit: 3", "limit: 4", 1));
        page.click("#editor-check");
        page.until(
            "the rules have no mistakes",
            "document.querySelectorAll('#editor-messages li[data-line]').length === 0",
        );
        page.until("the rules can be applied", "!document.querySelector('#editor-apply').disabled");
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
        page.until("the rule is a shadow", shadow);
        page.fill("#inspector-key", "login-per-ip:ip=1.2.3.4");
        page.click("#inspector-open");
        page.until("the key can be reset", "!document.querySelector('#inspector-reset').disabled");
        page.click("#inspector-reset");
        page.wait_for_element("#confirm-dialog[open]");
        page.click("#confirm-yes");
        page.until("nothing is used", "!document.querySelector('#confirm-dialog').open");
    });
    assert_eq!(server.get("/v1/rules").json()["rules"][0]["mode"], "shadow");
    eventually("the count is reset", || server.get("/v1/keys/login-per-ip:ip=1.2.3.4").status == 404);
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
fn shows_all_nodes_and_their_sum() {
    let redis = RedisServer::start(Flavour::Redis7);
    let node = |rules: &str| Server::with_env(&[], rules, &["--store", &redis.url()]);
    let (one, two) = (node(RULES), node(&RULES.replace("limit: 500", "limit: 400")));
    let rows = |n: usize| format!("document.querySelectorAll('#nodes tbody tr[data-node]').length === {n}");
    // The sum of a column of a table is the figure; each row has more than `least`.
    let adds_up = |table: &str, column: &str, least: i32, figure: &str| {
        format!(
            "(() => {{ const number = cell => Number(cell.textContent.replace(/[^0-9.]/g, '')); \
             const cells = [...document.querySelectorAll('{table} td[data-label=\"{column}\"]')].map(number); \
             return cells.every(n => n > {least}) && cells.reduce((all, n) => all + n) === number(document.querySelector('{figure}')) }})()"
        )
    };
    under_load(&one, || {
        look(&one, |page| {
            under_load(&two, || {
                page.until("the switch is shown", "!document.querySelector('#scope').hidden");
                assert_eq!(page.run("return document.querySelector('#nodes').hidden", &[]), json!(true));
                page.run("document.querySelector('#scope input[value=all]').click()", &[]);
                page.until("both nodes are listed", &rows(2));
                page.until("requests are added up", &adds_up("#nodes", "Allowed/s", 0, "#allowed-rate"));
                page.until("denials are added up", &adds_up("#nodes", "Denied/s", 0, "#denied-rate"));
                page.until("rules have the sums", &adds_up("#rules", "Denied/s", -1, "#denied-rate"));
                assert_eq!(page.text("#nodes tbody .differs small").len(), 16, "the hash of the other node");
                page.until(
                    "the chart has two seconds",
                    "document.querySelector('#chart .line-allowed').getAttribute('d').includes('L')",
                );
                for theme in ["light", "dark"] {
                    page.run(&format!("document.documentElement.dataset.theme = '{theme}'"), &[]);
                    for (width, device) in [(1_280, ""), (390, "-phone")] {
                        page.whole_picture(&format!("fleet-{theme}{device}"), width);
                        page.accessible(&format!("fleet {theme}{device}"));
                        let cut_off = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
                        assert_eq!(page.run(cut_off, &[]), json!(0), "{theme}{device}: nothing is cut off");
                    }
                }
                let hash = page.run("return location.hash", &[]).as_str().unwrap().to_owned();
                assert!(hash.contains("scope=all"), "{hash}");
                look_at(&two, &hash, |copy| copy.until("a link shows all nodes", &rows(2)));
            });
            two.terminate();
            page.until("the stopped node is gone", &rows(1));
            page.run("document.querySelector('#scope input[value=node]').click()", &[]);
            page.until(
                "this node is shown",
                "document.querySelector('#nodes').hidden && !location.hash.includes('scope')",
            );
        });
    });
    // Without Redis there is no other node.
    let memory = Server::with_rules(RULES);
    look_at(&memory, "#scope=all", |page| {
        page.until("it is live", "document.querySelectorAll('#rules tbody tr[data-rule]').length === 3");
        let hidden = "return ['scope', 'nodes'].map(id => document.getElementById(id).hidden)";
        assert_eq!(page.run(hidden, &[]), json!([true, true]));
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
        page.until("the feed is live", "document.querySelector('#live-state').dataset.state === 'ok'");
        server.terminate();
        page.until("the feed is lost", "document.querySelector('#live-state').dataset.state === 'lost'");
        page.picture("lost");
    });
}

const DATA: &str = "data-token-0123456789";

#[test]
fn wrong_token_is_not_accepted() {
    let env = [("SLIDEGATE_TOKEN", DATA), ("SLIDEGATE_ADMIN_TOKEN", ADMIN)];
    let server = Server::with_env(&env, RULES, &[]);
    look(&server, |page| {
        page.until("the token dialog opens", "document.querySelector('#token-dialog').open");
        assert_eq!(page.console(), Vec::<String>::new(), "a page without a token causes no error");
        page.fill("#token-input", "wrong-token-0123456789");
        page.click("#token-save");
        page.until("the token is rejected", "document.querySelector('#token-said').dataset.bad === 'true'");
        assert!(page.text("#token-said").contains("does not accept"));
        assert_eq!(page.run("return document.querySelector('#token-dialog').open", &[]), json!(true));
        assert_eq!(page.run("return sessionStorage.length", &[]), json!(0), "the token is not stored");
        page.picture("token-wrong");
        page.accessible("a wrong token");
        for (token, shown) in [(DATA, "Client token"), (ADMIN, "Admin token")] {
            page.run("document.querySelector('#token-dialog').open || document.querySelector('#token-open').click()", &[]);
            page.fill("#token-input", token);
            page.click("#token-save");
            page.until(
                "the token is accepted",
                &format!("document.querySelector('#token-open').textContent === '{shown}'"),
            );
            page.until("the feed is live", "document.querySelector('#live-state').dataset.state === 'ok'");
            let readonly = page.run("return document.querySelector('#editor').readOnly", &[]);
            assert_eq!(readonly, json!(token == DATA));
        }
        // A token that the server no longer accepts.
        page.run("sessionStorage.setItem('slidegate-token', 'old-token-0123456789'); location.reload()", &[]);
        page.until("the token dialog opens again", "document.querySelector('#token-dialog').open");
        assert_eq!(page.text("#token-open"), "Wrong token");
    });
}

#[test]
fn page_without_tokens_logs_no_error() {
    let variables = [("SLIDEGATE_ADMIN_TOKEN", ADMIN)];
    for variables in [&variables[..0], &variables] {
        let server = Server::with_env(variables, RULES, &[]);
        look(&server, |page| {
            page.until("the feed is live", "document.querySelector('#live-state').dataset.state === 'ok'");
            page.until(
                "the rules are there",
                "document.querySelector('#editor').value.includes('login-per-ip')",
            );
            assert_eq!(page.console(), Vec::<String>::new());
            assert_eq!(
                page.run("return document.title", &[]),
                json!(format!("{} – Slidegate", server.address)),
                "the title names the node"
            );
        });
    }
}

#[test]
fn address_keeps_range_filters_zoom_and_rule() {
    let server = Server::with_rules(RULES);
    let checked = |name: &str| format!("document.querySelector('#{name} input:checked').value");
    under_load(&server, || {
        look(&server, |page| {
            page.until(
                "rules have rows",
                "document.querySelectorAll('#rules tbody tr[data-rule]').length === 3",
            );
            page.click("#rules tr[data-rule=\"api-per-user\"] th button");
            page.fill("#rules-filter", "per-user");
            page.fill("#rules-order", "denied");
            for (group, value) in [("range", "300"), ("period", "hour")] {
                page.run(
                    &format!("document.querySelector('#{group} input[value=\"{value}\"]').click()"),
                    &[],
                );
            }
            page.until(
                "the keys of the rule are shown",
                "document.querySelector('#rule-hottest li[data-key^=\"api-per-user:\"]')",
            );
            page.picture("rule");
            page.accessible("a rule");
            page.drag("#chart", 0.5, 0.9);
            page.until("the chart is zoomed", "!document.querySelector('#zoom-out').hidden");
            page.picture("zoom");
            page.accessible("zoomed");
            let hash = page.run("return location.hash", &[]).as_str().unwrap().to_owned();
            for part in
                ["range=300", "rules=per-user", "order=denied", "period=hour", "rule=api-per-user", "zoom="]
            {
                assert!(hash.contains(part), "{part} in {hash}");
            }
            // Links to sections keep the hash of the URL.
            page.click("nav a[href=\"#store\"]");
            assert_eq!(page.run("return location.hash", &[]), json!(hash));
            look_at(&server, &hash, |copy| {
                copy.until("the rule is open", "!document.querySelector('#rule').hidden");
                let shown = copy.run(
                    &format!(
                        "return [{}, {}, document.querySelector('#rules-filter').value, document.querySelector('#rules-order').value, \
                         document.querySelector('#rule-name').textContent, document.querySelector('#zoom-out').hidden]",
                        checked("range"),
                        checked("period")
                    ),
                    &[],
                );
                assert_eq!(shown, json!(["300", "hour", "per-user", "denied", "api-per-user", false]));
                copy.until(
                    "one rule is shown",
                    "document.querySelectorAll('#rules tbody tr[data-rule]').length === 1",
                );
            });
            page.click("#zoom-out");
            page.until("the chart is no longer zoomed", "!location.hash.includes('zoom')");
        });
    });
}

/// The first event contains the history, so that a new page shows it at once.
#[test]
fn charts_begin_with_the_past_of_the_server() {
    let server = Server::with_rules(RULES);
    under_load(&server, || {
        eventually("three seconds are over", || {
            server.get("/v1/top?rule=login-per-ip").json()["denied"][0]["count"].as_u64() > Some(100)
        });
    });
    look(&server, |page| {
        let points = "(document.querySelector('#rules tr[data-rule=\"login-per-ip\"] .spark .line-allowed')?.getAttribute('d') ?? '').split('L').length";
        page.until("the first chart shows several seconds", &format!("{points} > 3"));
        // The range begins when the server started, not a quarter of an hour ago.
        let first = "Number(document.querySelector('#chart').getAttribute('aria-valuemax'))";
        page.until("the range is short", &format!("{first} > 0 && {first} < 300"));
    });
}

#[test]
fn inspector_has_one_scale_and_shows_attempts() {
    let server = Server::with_rules(
        "rules:
  - { name: tries, match: { api: /login }, key: [ip], limit: 3, window: 1h, count: attempts }
  - { name: many, match: { api: /many }, key: [], limit: 400, window: 10m }
  - { name: bucket, match: { api: /bucket }, key: [], limit: 10, window: 1h, algorithm: token-bucket }
",
    );
    for _ in 0..5 {
        server.post("/v1/acquire", r#"{"attributes":{"api":"/login","ip":"1.2.3.4"}}"#);
    }
    for _ in 0..300 {
        server.post("/v1/acquire", r#"{"attributes":{"api":"/many"}}"#);
    }
    server.post("/v1/acquire", r#"{"attributes":{"api":"/bucket"},"permits":8}"#);
    look_at(&server, "#inspect=tries%3Aip%3D1.2.3.4", |page| {
        page.until("attempts are shown", "document.querySelectorAll('#timeline [data-cost]').length === 3");
        assert!(
            page.text("#inspector-used").contains("3 attempts, limit 3"),
            "{}",
            page.text("#inspector-used")
        );
        assert!(page.text("#timeline-note").contains("denied requests too"));
        assert_eq!(page.attribute("#inspector-bar", "style").unwrap_or_default(), "width: 100%;");
        page.picture("inspector-attempts");
        // The steps add up to the level of the line on the right.
        let tops = "[...document.querySelectorAll('#timeline [data-cost]')].map(mark => Number(mark.getAttribute('y'))).sort((a, b) => a - b)";
        let line = "Number(/^M[^ ,]+[ ,]([0-9.]+)/.exec(document.querySelector('#timeline .t-ahead').getAttribute('d'))[1])";
        page.until("steps and line have one scale", &format!("Math.abs({tops}[0] - {line}) < 1"));
        page.fill("#inspector-key", "many");
        page.click("#inspector-open");
        page.until(
            "many marks are summed",
            "document.querySelector('#timeline-note').textContent.includes('sum')",
        );
        let most = page.run(
            "return Math.max(...[...document.querySelectorAll('#timeline [data-entries]')].map(mark => Number(mark.dataset.entries)))",
            &[],
        );
        assert!(most.as_u64() > Some(50), "{most}");
        page.picture("inspector-many");
        page.accessible("many marks");
        // A token bucket that denies is orange, even if its usage is below the limit.
        let denied = server.post("/v1/acquire", r#"{"attributes":{"api":"/bucket"},"permits":3}"#);
        assert_eq!(denied.status, 429);
        page.until(
            "the row of the rule is orange",
            "document.querySelector('#rules tr[data-rule=\"bucket\"] .meter').dataset.full === 'true'",
        );
    });
}

#[test]
fn editor_keeps_the_text_of_its_author() {
    let rules = format!("# Limits of the shop.\n{}", RULES.trim_start());
    let server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", ADMIN)], &rules, &[]);
    look(&server, |page| {
        page.until("the rules are there", "document.querySelector('#editor').value.includes('login-per-ip')");
        assert_eq!(
            page.run("return document.querySelector('#editor').value.includes('shop')", &[]),
            json!(false)
        );
        page.become_admin();
        page.until(
            "the comment is shown",
            "document.querySelector('#editor').value.includes('# Limits of the shop.')",
        );
        page.until(
            "the comment is coloured",
            "document.querySelectorAll('#editor-colors .y-comment').length === 1",
        );
        page.fill("#editor", &rules.replace("limit: 3", "limit: 4"));
        page.picture("editor-colours");
        page.click("#editor-apply");
        page.wait_for_element("#confirm-dialog[open]");
        page.click("#confirm-yes");
        page.until(
            "the change is applied",
            "document.querySelector('#editor-said').textContent.includes('edition 2')",
        );
        // Changing a mode keeps the comment too.
        page.click("#rules tbody tr[data-rule=\"login-per-ip\"] .mode button");
        page.wait_for_element("#confirm-dialog[open]");
        page.click("#confirm-yes");
        page.until(
            "the text has the mode",
            "/login-per-ip.*mode: shadow/.test(document.querySelector('#editor').value)",
        );
        let text = page.run("return document.querySelector('#editor').value", &[]);
        let text = text.as_str().unwrap();
        assert!(text.starts_with("# Limits of the shop.\n") && text.contains("limit: 4"), "{text}");
        // A page that is opened later shows the comment too.
        page.run("location.reload()", &[]);
        page.until(
            "the text is read again",
            "document.querySelector('#editor').value.includes('# Limits of the shop.')",
        );
    });
}

#[test]
fn phone_navigation_reaches_every_section() {
    let server = Server::with_rules(RULES);
    look(&server, |page| {
        page.until("the page is loaded", "!document.body.classList.contains('loading')");
        for width in [390, 520] {
            page.set_window_size(width, 844);
            for section in ["edit", "store", "try", "inspector", "keys", "rules", "live"] {
                page.run(&format!("document.querySelector('nav a[href=\"#{section}\"]').click()"), &[]);
                page.until(
                    "all links are in view, and the section is below them",
                    &format!(
                        "[...document.querySelectorAll('nav a')].every(link => {{ const r = link.getBoundingClientRect(); \
                         return r.left >= 0 && r.right <= innerWidth && r.top >= -1 && r.bottom <= innerHeight }}) \
                         && document.activeElement.id === '{section}' \
                         && document.querySelector('#{section} h2').getBoundingClientRect().top >= document.querySelector('nav').getBoundingClientRect().bottom - 1"
                    ),
                );
            }
            page.picture(&format!("phone-{width}"));
        }
    });
}
