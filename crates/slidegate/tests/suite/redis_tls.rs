//! Tests TLS connections to Redis: the trusted authority and the client certificate.

use std::time::Duration;

use slidegate::{
    Fault, Key, Quota, Store,
    redis::{RedisMode, RedisOptions, RedisStore, RedisTls},
    store::{Check, Checks, Outcome},
};
use slidegate_testkit::{Flavour, RedisServer, certificates, lasting_port};

#[tokio::test]
async fn verifies_server_and_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let port = lasting_port();
    let (cert, key, ca, tls_port) =
        (path("server.pem"), path("server.key"), path("ca.pem"), port.to_string());
    let server = RedisServer::with(
        Flavour::Redis7,
        &[
            "--tls-port",
            &tls_port,
            "--tls-cert-file",
            &cert,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
            "--tls-auth-clients",
            "yes",
        ],
        &[],
    );
    let read = |name: &str| Some(std::fs::read(dir.path().join(name)).unwrap());
    let batch = || [Checks::one(Check::new(Key::new("tls", []), Quota::per_minute(9).unwrap(), 1)).unwrap()];
    let store = |tls, mode| {
        let url = format!("rediss://localhost:{port}");
        let patience = Duration::from_secs(20);
        let options =
            RedisOptions { response_timeout: patience, connect_timeout: patience, ..RedisOptions::new(url) };
        RedisStore::with_options(&RedisOptions { tls, mode, ..options }).unwrap()
    };
    let all = RedisTls { ca: read("ca.pem"), cert: read("client.pem"), key: read("client.key") };
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let batch_verdicts = store(all.clone(), mode).admit(&batch()).await.unwrap();
        assert_eq!(batch_verdicts[0].verdicts[0].outcome, Outcome::Charged);
    }
    // Neither a server of another authority nor a client without a certificate is accepted.
    for tls in [RedisTls::default(), RedisTls { ca: read("ca.pem"), ..RedisTls::default() }] {
        let error = store(tls, RedisMode::Script).admit(&batch()).await.unwrap_err();
        assert_eq!(error.fault(), Some(Fault::Unreachable), "{error}");
    }
    let plain = RedisStore::with_options(&RedisOptions { tls: all, ..RedisOptions::new(server.url()) });
    assert!(plain.err().unwrap().to_string().contains("rediss://"));
}
