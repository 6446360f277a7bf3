//! Tests a real Prometheus with the alerts of `deploy/prometheus`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use slidegate_testkit::{Flavour, RedisServer, eventually, lasting_port, process};

use crate::server::Server;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn promtool(arguments: &[&str]) {
    let mut command = Command::new("promtool");
    let run = process::output(command.args(arguments).current_dir(deploy().join("prometheus")));
    let text = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{text}");
}

#[test]
fn alerts_fire_when_they_should() {
    promtool(&["check", "rules", "alerts.yaml"]);
    promtool(&["test", "rules", "alerts.test.yaml"]);
}

/// Each alert describes the problem, and links to its runbook, whose base Prometheus sets.
#[test]
fn every_alert_links_to_a_runbook() {
    let alerts = fs::read_to_string(deploy().join("prometheus/alerts.yaml")).unwrap();
    let tests = fs::read_to_string(deploy().join("prometheus/alerts.test.yaml")).unwrap();
    let operations = include_str!("../../../../docs/explanation/operations.md");
    let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        assert!(
            operations.contains(&format!("\n### {name}\n")),
            "docs/explanation/operations.md says what to do about {name}"
        );
        let path = format!("docs/explanation/operations.md#{}\"\n", name.to_lowercase());
        let link = format!("runbook_url: \"{{{{ $externalLabels.slidegate_docs }}}}{path}");
        assert!(alerts.contains(&link), "{link}");
        assert!(tests.contains(&format!("alertname: {name}\n")), "alerts.test.yaml shows {name}");
    }
}

/// Every metric that an alert or the Grafana dashboard queries exists.
#[test]
fn every_queried_metric_exists() {
    let documented = include_str!("../../../../docs/reference/metrics.md");
    for file in ["prometheus/alerts.yaml", "grafana/slidegate.json"] {
        let text = fs::read_to_string(deploy().join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        // `slidegate_docs` is the label with which the links of alerts begin.
        let is_metric = |word: &&str| word.starts_with("slidegate_") && *word != "slidegate_docs";
        let names: Vec<&str> = words.filter(is_metric).collect();
        assert!(names.len() >= 10, "{file}: {names:?}");
        for name in names {
            let exists = ["_bucket", "_sum", "_count", ""].iter().any(|suffix| {
                let family = name.strip_suffix(suffix).unwrap_or(name);
                documented.contains(&format!("| `{family}` |"))
            });
            assert!(exists, "{file} queries {name}");
        }
    }
}

struct Prometheus {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Scrapes `target` often, and alerts without a delay.
    fn start(target: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let alerts = fs::read_to_string(deploy().join("prometheus/alerts.yaml")).unwrap();
        let hasty: String = alerts
            .lines()
            .filter(|line| !line.trim().starts_with("for: "))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(folder.path().join("alerts.yaml"), hasty).unwrap();
        let config = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }}\n\
             rule_files: [alerts.yaml]\n\
             scrape_configs: [{{ job_name: slidegate, static_configs: [{{ targets: ['{target}'] }}] }}]\n"
        );
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let address = format!("127.0.0.1:{}", lasting_port());
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("scripts/tools.sh installs Prometheus");
        let prometheus = Prometheus { child, address, _folder: folder };
        eventually("Prometheus is ready", || prometheus.get("/-/ready").is_some());
        prometheus
    }

    fn get(&self, path: &str) -> Option<String> {
        let request = ureq::get(format!("http://{}{path}", self.address));
        let request = request.config().timeout_global(Some(Duration::from_secs(10))).build();
        request.call().ok()?.body_mut().read_to_string().ok()
    }

    fn json(&self, path: &str) -> Value {
        self.get(path).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    fn fires(&self, alert: &str) -> bool {
        let alerts = self.json("/api/v1/alerts");
        let mut alerts = alerts["data"]["alerts"].as_array().into_iter().flatten();
        alerts.any(|one| one["labels"]["alertname"] == alert && one["state"] == "firing")
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn redis_alert_fires_until_redis_is_back() {
    let redis = RedisServer::at(Flavour::Redis7, lasting_port());
    let rules = "rules: [{ name: one, key: [user], limit: 5, window: 1m }]";
    let server = Server::with_env(&[], rules, &["--store", &redis.url()]);
    let prometheus = Prometheus::start(&server.address);
    let acquire = || server.post("/v1/acquire", r#"{"attributes":{"user":"alice"}}"#).status;
    acquire();
    let up = || {
        prometheus.json("/api/v1/query?query=slidegate_redis_direct")["data"]["result"][0]["value"][1] == "1"
    };
    eventually("the server is scraped", up);
    assert!(!prometheus.fires("SlidegateRedisAway"));
    redis.kill();
    eventually("the alert fires", || acquire() > 0 && prometheus.fires("SlidegateRedisAway"));
    redis.restart();
    eventually("the alert clears", || acquire() > 0 && !prometheus.fires("SlidegateRedisAway"));
    // On a busy machine a scrape may fail once. Invalid metrics would fail every scrape.
    eventually("a scrape succeeds", || {
        prometheus.json("/api/v1/targets")["data"]["activeTargets"][0]["lastError"] == ""
    });
}
