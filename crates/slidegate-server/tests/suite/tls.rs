//! Tests TLS for every protocol: client certificates, and certificates that change while the server runs.

use std::path::Path;
use std::process::{Command, Output};

use slidegate_testkit::{certificates, eventually, process};

use crate::server::{BINARY, Server};

const RULES: &str = "rules: [{ name: one, key: [user], limit: 1, window: 1m }]";

fn curl(dir: &Path, arguments: &[&str], url: &str) -> Output {
    let mut command = Command::new("curl");
    command.args(["-sS", "--noproxy", "*", "--max-time", "60"]).args(arguments).arg(url).current_dir(dir);
    process::output(&mut command)
}

fn serve(dir: &Path, client_ca: bool) -> Server {
    Server::with_rules(&config(dir, client_ca))
}

fn config(dir: &Path, client_ca: bool) -> String {
    let path = |name: &str| dir.join(name).display().to_string();
    let client = if client_ca { format!(", client-ca: {}", path("ca.pem")) } else { String::new() };
    let tls =
        format!("tls: {{ certificate: {}, key: {}{client} }}\n", path("server.pem"), path("server.key"));
    tls + RULES
}

/// The certificate is for the name that clients use, and a health check calls the address.
#[test]
fn health_check_verifies_no_certificate() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let server = serve(dir.path(), false);
    let url = format!("https://{}", server.address);
    let output = process::output(Command::new(BINARY).args(["health", "--url", &url]));
    let ready = format!("{url}/readyz: 200 {{\"ready\":true");
    assert!(output.status.success() && output.stdout.starts_with(ready.as_bytes()), "{output:?}");
}

#[test]
fn every_protocol_is_encrypted() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let server = serve(dir.path(), false);
    let url = format!("https://{}/v1/acquire", server.address);
    let post = [
        "--cacert",
        "ca.pem",
        "-H",
        "content-type: application/json",
        "-d",
        r#"{"attributes":{"user":"a"}}"#,
    ];
    // Two requests on one connection: the fast path is encrypted too.
    let twice = [&post[..], &[&url]].concat();
    let output = curl(dir.path(), &twice, &url);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(r#"{"allowed":true"#) && text.contains(r#"{"allowed":false"#), "{text}");
    assert!(!curl(dir.path(), &[], &url).status.success(), "a client without the CA does not connect");
    let plain = format!("http://{}/v1/acquire", server.address);
    assert!(!curl(dir.path(), &[], &plain).status.success(), "plain HTTP is not answered");
    // The other protocols decide over TLS as well.
    let (host, port) = server.listener_address("rediss").split_once(':').unwrap();
    let redis = process::output(
        Command::new("redis-cli")
            .args(["--tls", "--cacert", "ca.pem", "-h", host, "-p", port, "SG.CHECK", "user", "a"])
            .current_dir(dir.path()),
    );
    assert!(redis.stdout.starts_with(b"0\n1\n0\n"), "{redis:?}");
    let call = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    std::fs::write(dir.path().join("call"), b"\0\0\0\0\0").unwrap();
    let grpc =
        ["--cacert", "ca.pem", "--http2", "-i", "-H", "content-type: application/grpc", "-H", "te: trailers"];
    let grpc = [&grpc[..], &["--data-binary", "@call"]].concat();
    let response = curl(dir.path(), &grpc, &format!("https://{}{call}", server.listener_address("grpcs")));
    let response = String::from_utf8_lossy(&response.stdout).into_owned();
    assert!(response.contains("grpc-status: 3") && response.contains("domain"), "{response}");
    for (listener, protocol, chosen) in [("https", "http/1.1,h2", "http/1.1"), ("grpcs", "h2", "h2")] {
        let output = process::output(
            Command::new("openssl")
                .args([
                    "s_client",
                    "-alpn",
                    protocol,
                    "-CAfile",
                    "ca.pem",
                    "-connect",
                    server.listener_address(listener),
                ])
                .current_dir(dir.path()),
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.contains("Verify return code: 0") && text.contains(&format!("ALPN protocol: {chosen}")),
            "{text}"
        );
    }
}

#[test]
fn client_certificates_are_required() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let server = serve(dir.path(), true);
    let url = format!("https://{}/healthz", server.address);
    let without_certificate = curl(dir.path(), &["--cacert", "ca.pem"], &url);
    assert!(!without_certificate.status.success(), "{without_certificate:?}");
    let with_certificate = ["--cacert", "ca.pem", "--cert", "client.pem", "--key", "client.key"];
    assert!(curl(dir.path(), &with_certificate, &url).status.success());
}

#[test]
fn changed_certificates_are_reloaded() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(dir.path());
    certificates(other.path());
    let log = tempfile::NamedTempFile::new().unwrap();
    let server = Server::logging_to(log.as_file(), &[], &config(dir.path(), false), &[]);
    let url = format!("https://{}/healthz", server.address);
    let by = |authority: &Path| {
        curl(dir.path(), &["--cacert", authority.join("ca.pem").to_str().unwrap()], &url).status.success()
    };
    assert!(by(dir.path()) && !by(other.path()));
    // The new key does not belong to the old certificate: the server logs the mismatch and keeps the old pair.
    std::fs::copy(other.path().join("server.key"), dir.path().join("server.key")).unwrap();
    eventually("the server has read the new key", || {
        std::fs::read_to_string(log.path()).unwrap().contains("the new certificates are not used: ")
    });
    assert!(by(dir.path()), "the old certificate and key stay");
    std::fs::copy(other.path().join("server.pem"), dir.path().join("server.pem")).unwrap();
    eventually("the new certificate", || by(other.path()));
    assert!(!by(dir.path()));
}

#[test]
fn invalid_certificate_prevents_the_start() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("server.pem", "nothing"), ("server.key", "nothing")] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let config = dir.path().join("config");
    std::fs::write(
        &config,
        format!("tls: {{ certificate: {0}/server.pem, key: {0}/server.key }}\n{RULES}", dir.path().display()),
    )
    .unwrap();
    let output = process::output(
        Command::new(crate::server::BINARY)
            .args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--config"])
            .arg(&config),
    );
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && message.contains("tls: cannot use"), "{message}");
}
