//! Tests bad replies and bad servers: each is a typed error that says what to do, never a panic, never a silent allow.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use slidegate::{
    Encoding, Error, Fault, Key, Micros, Quota, RequestId, Source, Store,
    redis::{
        Failover, FailoverOptions, RedisMode, RedisOptions, RedisStore, RedisTopology, Stack, StackOptions,
    },
    store::{Check, Checks, Correction, Entry, Outcome, Settlement, Verdict},
};
use slidegate_testkit::{Flavour, RedisServer, lasting_port, until};

use crate::audit_healthy::patient;

fn key(name: &str) -> Key {
    Key::new("f", [("n", name)])
}

fn checks(name: &str) -> Checks {
    Checks::one(Check::new(key(name), Quota::per_minute(5).unwrap(), 1)).unwrap()
}

fn packed(name: &str) -> Checks {
    let check = Check::new(key(name), Quota::per_minute(5).unwrap(), 1);
    Checks::one(Check { encoding: Encoding::Packed, ..check }).unwrap()
}

fn options(server: &RedisServer) -> RedisOptions {
    RedisOptions { connections: 1, ..patient(server) }
}

fn store(server: &RedisServer) -> RedisStore {
    RedisStore::with_options(&options(server)).unwrap()
}

async fn fails(store: &RedisStore, checks: Checks, fault: Fault, words: &str) -> Error {
    let error = store.admit(&[checks]).await.expect_err(words);
    assert_eq!(error.fault(), Some(fault), "{error}");
    assert!(error.is_unavailable() && error.to_string().contains(words), "{error}");
    error
}

async fn used(store: &RedisStore, checks: Checks) -> u64 {
    answered(store, checks.peek()).await.used
}

/// Retries until there is an answer, as a client of a store with a short timeout does. The call must not be charged twice.
async fn answered(store: &RedisStore, checks: Checks) -> Verdict {
    let mut verdict = None;
    until("an answer", async || match store.admit(std::slice::from_ref(&checks)).await {
        Ok(batch_verdicts) => {
            verdict = Some(batch_verdicts[0].verdicts[0]);
            true
        }
        Err(error) => {
            assert_eq!(error.fault(), Some(Fault::Timeout), "{error}");
            false
        }
    })
    .await;
    verdict.unwrap()
}

#[tokio::test]
async fn foreign_type_under_our_key_is_an_error() {
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour).without_ttl_check();
        server.run("SET sg:{f:n=string} x");
        server.run("ZADD sg:{f:n=zset} 5 member");
        server.run("ZADD sg:{f:n=zset} -5 other");
        server.run("SET sg:{f:n=packed}:log not-a-log");
        server.run("RPUSH sg:{f:n=list}:log x");
        let transactions = RedisOptions { mode: RedisMode::Transaction, ..options(&server) };
        let transactions = RedisStore::with_options(&transactions).unwrap();
        let store = store(&server);
        let advice = "delete it, or set another redis.prefix";
        for store in [&store, &transactions] {
            fails(store, checks("string"), Fault::WrongType, advice).await;
            fails(store, checks("zset").with_id(RequestId::new("a").unwrap()), Fault::WrongType, advice)
                .await;
            // A request with two keys charges nothing if one key fails.
            let both =
                Checks::new(["good", "string"].map(|name| checks(name).as_slice()[0].clone())).unwrap();
            fails(store, both, Fault::WrongType, advice).await;
            assert_eq!(used(store, checks("good")).await, 0);
        }
        fails(&store, packed("packed"), Fault::WrongType, advice).await;
        fails(&store, packed("list"), Fault::WrongType, advice).await;
        assert!(store.inspect(&key("string")).await.unwrap_err().fault() == Some(Fault::WrongType));
        let error = transactions.admit(&[packed("fine")]).await.unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains("redis.mode: transaction"), "{error}");
    }
}

#[tokio::test]
async fn replica_is_an_error() {
    let primary = RedisServer::start(Flavour::Redis7);
    let port = primary.port.to_string();
    let replica =
        RedisServer::with(Flavour::Redis7, &["--replicaof", "127.0.0.1", &port], &[]).without_ttl_check();
    until("the replica follows", async || {
        format!("{:?}", replica.run("INFO replication")).contains("master_link_status:up")
    })
    .await;
    fails(&store(&replica), checks("a"), Fault::ReadOnly, "set redis.url to the primary").await;
}

#[tokio::test]
async fn full_memory_is_an_error() {
    for flavour in Flavour::ALL {
        let server =
            RedisServer::with(flavour, &["--maxmemory-policy", "noeviction"], &[]).without_ttl_check();
        let store = store(&server);
        for _ in 0..3 {
            store.admit(&[checks("a")]).await.unwrap();
        }
        server.run(&format!("SET filler {}", "x".repeat(200_000)));
        server.run("CONFIG SET maxmemory 100kb");
        fails(&store, checks("a"), Fault::OutOfMemory, "raise maxmemory").await;
        fails(&store, checks("new"), Fault::OutOfMemory, "raise maxmemory").await;
        server.run("CONFIG SET maxmemory 0");
        assert_eq!(used(&store, checks("a")).await, 3, "what was denied for lack of memory is not charged");
    }
}

#[tokio::test]
async fn missing_password_or_permission_is_an_error() {
    let server = RedisServer::with(Flavour::Redis7, &["--requirepass", "hush"], &[]).without_ttl_check();
    fails(&store(&server), checks("a"), Fault::NotAllowed, "redis://user:password@host").await;
    let at = format!("127.0.0.1:{}", server.port);
    let store_at = |url: String| {
        let patience = Duration::from_secs(20);
        let options =
            RedisOptions { response_timeout: patience, connect_timeout: patience, ..RedisOptions::new(url) };
        RedisStore::with_options(&options).unwrap()
    };
    let wrong = store_at(format!("redis://:wrong@{at}"));
    let error = fails(&wrong, checks("a"), Fault::NotAllowed, "correct redis.url").await;
    assert!(!error.to_string().contains("wrong@") && !error.to_string().contains("hush"));
    let right = store_at(format!("redis://:hush@{at}"));
    assert_eq!(right.admit(&[checks("a")]).await.unwrap()[0].verdicts[0].outcome, Outcome::Charged);
    assert_eq!(right.address(), at);

    // A Redis user with only the permissions that docs/reference/redis.md lists, and one that may not run scripts.
    let mut admin = redis::Client::open(format!("redis://:hush@{at}")).unwrap().get_connection().unwrap();
    let needed = include_str!("../../../../docs/reference/redis.md");
    let rule = needed.lines().find(|line| line.starts_with("ACL SETUSER slidegate")).unwrap();
    let mut command = redis::cmd("ACL");
    rule.split(' ').skip(1).for_each(|word| {
        command.arg(word);
    });
    command.exec(&mut admin).unwrap();
    let limited = |mode| {
        let (url, patience) = (format!("redis://slidegate:secret@{at}"), Duration::from_secs(20));
        let options =
            RedisOptions { response_timeout: patience, connect_timeout: patience, ..RedisOptions::new(url) };
        RedisStore::with_options(&RedisOptions { mode, ..options }).unwrap()
    };
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let store = limited(mode);
        let oracle = crate::conformance::Traffic {
            encoding: Encoding::Zset,
            exact: false,
            hot: false,
            steady: false,
            seed: 3,
        };
        oracle.play(&store, 3_000).await;
        crate::conformance::forget(&store).await;
        store.ping().await.unwrap();
        store.report().await.unwrap();
        store.keys(0, 10).await.unwrap();
        store.memory().await.unwrap();
        store.admit(&[checks("a")]).await.unwrap();
        assert!(store.weigh(10).await.unwrap().bytes > 0);
        assert!(store.audit(&key("a"), None, true).await.unwrap().is_some());
        store.clean(0, 100).await.unwrap();
        store.broadcast("fleet", "a", "text").await.unwrap();
        assert!(!store.broadcasts("fleet", Duration::from_secs(60)).await.unwrap().is_empty());
        if mode == RedisMode::Script {
            let oracle = crate::conformance::Traffic {
                encoding: Encoding::Packed,
                exact: true,
                hot: false,
                steady: false,
                seed: 3,
            };
            oracle.play(&store, 3_000).await;
            crate::conformance::forget(&store).await;
        }
    }
    // The permissions also suffice for the wrappers of the store: notifications of freed permits, and heartbeats.
    let patient = FailoverOptions { deadline: Duration::from_secs(20), ..FailoverOptions::default() };
    let failover = Failover::new(limited(RedisMode::Script), patient).unwrap();
    let hot = Stack::around(failover.clone(), &StackOptions::default()).unwrap();
    let once = Checks::one(Check::new(Key::new("once", []), Quota::per_hour(1).unwrap(), 1)).unwrap();
    let mut sources = Vec::new();
    until("the deny cache answers", async || {
        sources.push(hot.admit(std::slice::from_ref(&once)).await.unwrap()[0].source);
        sources.last() == Some(&Source::DenyCache)
    })
    .await;
    sources.pop();
    assert!(!sources.is_empty());
    assert!(sources.iter().all(|source| *source == Source::Store), "{sources:?}");
    assert_eq!((failover.servers()[0].direct, failover.servers()[0].outages), (true, 0));
    hot.reset(&Key::new("once", [])).await.unwrap();
    failover.leave().await;
    drop((hot, failover));
    redis::cmd("ACL").arg(&["SETUSER", "slidegate", "-watch", "-unwatch"]).exec(&mut admin).unwrap();
    limited(RedisMode::Script).admit(&[checks("a")]).await.unwrap();
    redis::cmd("ACL")
        .arg(&["SETUSER", "slidegate", "+watch", "+unwatch", "-evalsha", "-eval"])
        .exec(&mut admin)
        .unwrap();
    fails(&limited(RedisMode::Script), checks("a"), Fault::NotAllowed, "docs/reference/redis.md").await;
    limited(RedisMode::Transaction).admit(&[checks("a")]).await.unwrap();
}

/// The test server asserts at its end that every key has an expiry.
#[tokio::test]
async fn stream_is_never_stored_without_its_expiry() {
    let server = RedisServer::start(Flavour::Redis7);
    server.run("ACL SETUSER limited on >secret ~* &* +@all -pexpire");
    let url = server.url().replace("://", "://limited:secret@");
    let limited = RedisStore::with_options(&RedisOptions {
        topology: RedisOptions::new(url).topology,
        ..options(&server)
    })
    .unwrap();
    let error = limited.broadcast("fleet", "a", "text").await.unwrap_err();
    assert_eq!(error.fault(), Some(Fault::NotAllowed), "{error}");
    assert_eq!(server.run("DBSIZE"), redis::Value::Int(0));
    let store = store(&server);
    for text in ["first", "second"] {
        store.broadcast("fleet", "a", text).await.unwrap();
    }
    let broadcasts = store.broadcasts("fleet", Duration::from_secs(60)).await.unwrap();
    assert_eq!(
        broadcasts.iter().map(|broadcast| broadcast.text.as_str()).collect::<Vec<_>>(),
        ["second", "first"]
    );
}

#[tokio::test]
async fn loading_server_is_an_error() {
    let first = RedisServer::start(Flavour::Redis7).without_ttl_check();
    let mut client = first.client();
    for n in 0..200 {
        redis::cmd("SET").arg(format!("key{n}")).arg("x".repeat(2_000)).exec(&mut client).unwrap();
    }
    first.run("SAVE");
    let dir = first.dir.path().to_str().unwrap().to_owned();
    let slow =
        ["--dir", &dir, "--key-load-delay", "30000", "--loading-process-events-interval-bytes", "1024"];
    let server = RedisServer::with(Flavour::Redis7, &slow, &[]).without_ttl_check();
    fails(&store(&server), checks("a"), Fault::Loading, "still loading its data").await;
}

#[tokio::test]
async fn busy_server_is_an_error() {
    let server = RedisServer::with(Flavour::Redis7, &["--lua-time-limit", "20"], &[]);
    let store = store(&server);
    store.admit(&[checks("a")]).await.unwrap();
    let url = server.url();
    let endless = std::thread::spawn(move || {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        let _ = redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection);
    });
    let mut client = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    until("Redis says that it is busy", async || {
        let answer = redis::cmd("GET").arg("x").query::<redis::Value>(&mut client);
        answer.is_err_and(|error| error.to_string().contains("BUSY"))
    })
    .await;
    fails(&store, checks("a"), Fault::Busy, "SCRIPT KILL").await;
    server.run("SCRIPT KILL");
    endless.join().unwrap();
    assert_eq!(used(&store, checks("a")).await, 1);
}

#[tokio::test]
async fn cluster_without_cluster_mode_is_an_error() {
    let node = || RedisServer::with(Flavour::Redis7, &["--cluster-enabled", "yes"], &[]).without_ttl_check();
    let (one, two) = (node(), node());
    one.run("CLUSTER ADDSLOTSRANGE 0 8191");
    fails(&store(&one), checks("a"), Fault::Cluster, "node of a cluster").await;
    two.run("CLUSTER ADDSLOTSRANGE 8192 16383");
    one.run(&format!("CLUSTER MEET 127.0.0.1 {}", two.port));
    until("the nodes have met", async || {
        format!("{:?}", one.run("CLUSTER INFO")).contains("cluster_state:ok")
    })
    .await;
    // Some keys are on this server, some are not, and two keys are rarely on the same server.
    let store = store(&one);
    let (mut here, mut moved) = (0, 0);
    for n in 0..20 {
        match store.admit(&[checks(&n.to_string())]).await {
            Ok(_) => here += 1,
            Err(error) => {
                assert_eq!(error.fault(), Some(Fault::Cluster), "{error}");
                assert!(error.to_string().contains("MOVED"), "{error}");
                moved += 1;
            }
        }
    }
    assert!(here > 0 && moved > 0);
    let both = Checks::new(["a", "b"].map(|name| checks(name).as_slice()[0].clone())).unwrap();
    fails(&store, both, Fault::Cluster, "node of a cluster").await;
    assert!(store.report().await.unwrap().warnings[0].contains("cluster"));
}

/// Answers every command with the same bytes.
fn parrot(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    // A pipeline is answered command by command.
                    for _ in 0..buffer[..read].iter().filter(|byte| **byte == b'*').count() {
                        let _ = stream.write_all(answer);
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}

#[tokio::test]
async fn server_that_is_not_redis_is_an_error() {
    let answers: [&[u8]; 9] = [
        b"+OK\r\n",
        b":5\r\n",
        b"$-1\r\n",
        b"$3\r\nabc\r\n",
        b"*1\r\n:1\r\n",
        b"$8\r\n\xff\xff\xff\xff\xff\xff\xff\xff\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0",
        b"-ERR what\r\n",
    ];
    // All cases run at once, because each incomplete answer takes until the timeout.
    let modes = [RedisMode::Script, RedisMode::Transaction];
    let cases = answers.into_iter().flat_map(|answer| modes.map(|mode| is_an_error(answer, mode)));
    futures_util::future::join_all(cases).await;
}

async fn is_an_error(answer: &'static [u8], mode: RedisMode) {
    let timeout = Duration::from_millis(200);
    let options = RedisOptions { response_timeout: timeout, mode, ..RedisOptions::new(parrot(answer)) };
    let store = RedisStore::with_options(&options).unwrap();
    let name = String::from_utf8_lossy(answer).into_owned();
    let error = store.admit(&[checks("a")]).await.expect_err(&name);
    assert!(error.is_unavailable(), "{name}: {error:?}");
    let settlement = Settlement {
        key: key("a"),
        entry: Entry { at: Micros::new(1), seq: 0, cost: 1 },
        correction: Correction::Cost(0),
    };
    assert!(store.settle(&[settlement]).await.is_err() || mode == RedisMode::Transaction, "{name}");
    // These calls may fail, but they must not panic.
    let _ = store.inspect(&key("a")).await;
    let _ = store.report().await;
    let _ = store.keys(0, 1).await;
}

#[tokio::test]
async fn store_reconnects_after_an_outage() {
    let port = lasting_port();
    let store = RedisStore::new(&format!("redis://127.0.0.1:{port}")).unwrap();
    let error = fails(&store, checks("a"), Fault::Unreachable, "cannot be reached").await;
    assert!(!error.outcome_unknown());
    let server = RedisServer::at(Flavour::Redis7, port);
    recovers(&store).await;
    drop(server);
    let error = store.admit(&[checks("a")]).await.unwrap_err();
    assert!(matches!(error.fault(), Some(Fault::Lost | Fault::Unreachable)), "{error:?}");
    let _server = RedisServer::at(Flavour::Redis7, port);
    recovers(&store).await;
}

/// Attempts to connect are at most a second apart.
async fn recovers(store: &RedisStore) {
    until("the store notices that Redis is back", async || store.admit(&[checks("a")]).await.is_ok()).await;
}

/// The server stops for longer than the store waits, and then executes the call.
#[tokio::test]
async fn unknown_outcome_is_charged_at_most_once() {
    let server = RedisServer::start(Flavour::Redis7);
    for mode in [RedisMode::Script, RedisMode::Transaction] {
        let timeout = Duration::from_millis(50);
        let impatient = RedisOptions { mode, response_timeout: timeout, ..options(&server) };
        let store = RedisStore::with_options(&impatient).unwrap();
        let name = format!("{mode:?}");
        let request = |n: u64| checks(&name).with_id(RequestId::new(&format!("request-{n}")).unwrap());
        assert_eq!(answered(&store, request(0)).await.used, 1);
        for n in 1..=5 {
            server.signal("-STOP");
            let error = fails(&store, request(n), Fault::Timeout, "did not answer in time").await;
            assert!(error.outcome_unknown());
            server.signal("-CONT");
            let (again, third) = (answered(&store, request(n)).await, answered(&store, request(n)).await);
            if n < 5 {
                assert_eq!((again.outcome, again.used), (Outcome::Charged, n + 1), "{mode:?}");
                assert_eq!((third.outcome, third.used, third.entry), (Outcome::Charged, n + 1, again.entry));
            } else {
                assert_eq!((again.outcome, third.outcome), (Outcome::Denied, Outcome::Denied));
            }
        }
        let used = used(&store, checks(&name)).await;
        assert_eq!(used, 5, "{mode:?}: five requests are charged once each, also if they were sent again");
    }
}

#[tokio::test]
async fn script_flush_fails_no_decision() {
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour);
        let store = store(&server);
        let flusher = {
            let mut connection = server.client();
            std::thread::spawn(move || {
                for _ in 0..400 {
                    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
                    std::thread::sleep(Duration::from_micros(300));
                }
            })
        };
        let quota = Quota::per_hour(1_000_000).unwrap();
        let mut charged = 0;
        while !flusher.is_finished() {
            let batch = [Checks::one(Check::new(key("n"), quota, 1)).unwrap()];
            charged += 1;
            assert_eq!(store.admit(&batch).await.unwrap()[0].verdicts[0].used, charged);
        }
        flusher.join().unwrap();
        eprintln!("{flavour:?}: {charged} decisions while scripts were flushed 400 times, 0 failed");
        assert!(charged > 100);
    }
}

#[tokio::test]
async fn calls_over_the_in_flight_limit_fail() {
    let server = RedisServer::start(Flavour::Redis7);
    let (wait, timeout) = (Duration::from_millis(20), Duration::from_millis(500));
    let few =
        RedisOptions { max_in_flight: 4, max_wait: wait, response_timeout: timeout, ..options(&server) };
    let store = RedisStore::with_options(&few).unwrap();
    until("the store is connected", async || store.ping().await.is_ok()).await;
    server.signal("-STOP");
    let calls = (0..20).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.admit(&[checks("b")]).await.unwrap_err().fault() })
    });
    let mut faults = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        faults.push(call.await.unwrap());
    }
    server.signal("-CONT");
    let count = |fault| faults.iter().filter(|f| **f == Some(fault)).count();
    assert_eq!((count(Fault::Timeout), count(Fault::Overloaded)), (4, 16), "{faults:?}");
    assert_eq!(answered(&store, checks("c")).await.outcome, Outcome::Charged);
}

#[tokio::test]
async fn options_out_of_bounds_are_rejected() {
    let with = |change: fn(&mut RedisOptions)| {
        let mut options = RedisOptions::new("redis://127.0.0.1");
        change(&mut options);
        RedisStore::with_options(&options).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(with(|_| {}), "");
    assert_eq!(with(|o| o.connections = 0), "connections must be between 1 and 64, not 0");
    assert_eq!(with(|o| o.batch_size = 5_000), "batch-size must be between 1 and 1000, not 5000");
    assert_eq!(with(|o| o.max_in_flight = 0), "max-in-flight must be between 1 and 1000000, not 0");
    assert_eq!(with(|o| o.prefix = "a{b".into()), "prefix must be 1 to 32 letters, digits or any of `._-`");
    let bad = with(|o| o.response_timeout = Duration::ZERO);
    assert_eq!(bad, "response-timeout must be between 1ms and 1m, not 0s");
    let bad = with(|o| o.topology = RedisTopology::One("http://user:hush@x".into()));
    assert!(bad.starts_with("the redis url must look like redis://"), "{bad}");
    assert!(!bad.contains("hush"));
    let secret = RedisOptions::new("redis://user:hush@host:1/2?protocol=resp3");
    assert_eq!(secret.address(), "host:1/2");
    assert!(!format!("{secret:?}").contains("hush"));
}
