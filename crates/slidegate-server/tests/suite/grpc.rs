//! Tests the gRPC protocol with the client of tonic.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use prost_types::Duration as Wait;
use slidegate::{Clock, MemoryStore, Rules, SystemClock};
use slidegate_server::AnyStore;
use slidegate_server::AppState;
use slidegate_server::Limits;
use slidegate_server::messages::{
    Code, DescriptorStatus, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
    RateLimitResponse, RateLimitUnit, Unit,
};
use slidegate_server::serve::{self, Listeners};
use slidegate_server::{Auth, Token};
use slidegate_testkit::{Flavour, RedisServer, eventually, http2_client, lasting_port};
use tokio::sync::oneshot;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::server::Server;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

const RULES: &str = "
ad-hoc: { limit: { default: 10, min: 1, max: 100 } }
rules:
  - { name: user, match: { domain: shop }, key: [user], limit: 5, window: 1m }
  - { name: item, match: { domain: shop }, key: [item], limit: 3, window: 90s }
  - { name: pair, match: { domain: pairs }, key: [tag, tag.2], limit: 1, window: 1h }
  - { name: both-small, match: { domain: both }, key: [who], limit: 2, window: 1h }
  - { name: both-large, match: { domain: both }, key: [who], limit: 9, window: 1s }
  - { name: watch, mode: shadow, match: { domain: watched }, limit: 1, window: 1h }
";

/// Calls the service as a generated client does.
pub(crate) async fn should_rate_limit(
    channel: Channel,
    request: impl tonic::IntoRequest<RateLimitRequest>,
) -> Result<RateLimitResponse, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let codec = tonic_prost::ProstCodec::default();
    client.unary(request.into_request(), path, codec).await.map(tonic::Response::into_inner)
}

/// A channel in a runtime: tests are not async, so that they can wait for processes.
pub(crate) struct Client {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Client {
    pub(crate) fn of(server: &Server) -> Self {
        Self::at(server.listener_address("grpc"))
    }

    fn at(address: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let endpoint = Endpoint::new(format!("http://{address}")).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Client { runtime, channel }
    }

    pub(crate) fn call(
        &self,
        request: impl tonic::IntoRequest<RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status> {
        self.wait(should_rate_limit(self.channel.clone(), request))
    }

    /// Waits for a response. The timeout is not sent as a deadline of the call, because the server would see it.
    fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        let limited = async { tokio::time::timeout(Duration::from_secs(60), answer).await };
        self.runtime.block_on(limited).expect("an answer within 60 s")
    }

    pub(crate) fn codes(&self, request: RateLimitRequest) -> Vec<i32> {
        let response = self.call(request).unwrap();
        let each = response.statuses.iter().map(|status| status.code);
        std::iter::once(response.overall_code).chain(each).collect()
    }

    fn health(&self, service: &str) -> Result<i32, Status> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest { service: service.to_owned() };
        self.wait(client.check(request)).map(|answer| answer.into_inner().status)
    }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

pub(crate) fn rate_limit_request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
    RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 }
}

fn overriding(entries: &[(&str, &str)], requests_per_unit: u32, unit: i32) -> RateLimitRequest {
    let mut request = rate_limit_request("shop", &[entries]);
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit, unit });
    request
}

/// Fields of a status: code, rule, limit, unit, remaining, seconds.
fn status_fields(status: &DescriptorStatus) -> (i32, &str, u32, i32, u32, i64) {
    let limit = status.current_limit.as_ref().unwrap();
    let wait = status.duration_until_reset.unwrap();
    assert_eq!(wait, Wait { seconds: wait.seconds, nanos: 0 });
    let (unit, limit, name) = (limit.unit, limit.requests_per_unit, limit.name.as_str());
    (status.code, name, limit, unit, status.limit_remaining, wait.seconds)
}

fn header<'r>(response: &'r RateLimitResponse, name: &str) -> Option<&'r str> {
    let headers = &response.response_headers_to_add;
    headers.iter().find(|header| header.key == name).map(|header| header.value.as_str())
}

const OK: i32 = Code::Ok as i32;
const OVER: i32 = Code::OverLimit as i32;

#[test]
fn statuses_and_headers() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let ann = rate_limit_request("shop", &[&[("user", "ann")]]);
    let clock = SystemClock::new();
    let start = clock.now();
    // The first request leaves the window 60 s after it was admitted.
    let waits = || 60_u64.saturating_sub((clock.now().get() - start.get()).div_ceil(1_000_000))..=60;
    for left in (0..5).rev() {
        let response = client.call(ann.clone()).unwrap();
        assert_eq!(response.overall_code, OK);
        assert_eq!(status_fields(&response.statuses[0]), (OK, "user", 5, Unit::Minute as i32, left, 60));
        assert_eq!(header(&response, "ratelimit-policy"), Some(r#""user";q=5;w=60"#));
        let start = format!(r#""user";r={left};t="#);
        let seconds = header(&response, "ratelimit").and_then(|text| text.strip_prefix(start.as_str()));
        assert!(waits().contains(&seconds.unwrap().parse::<u64>().unwrap()), "{response:?}");
        assert_eq!(header(&response, "retry-after"), None);
    }
    let response = client.call(ann).unwrap();
    assert_eq!((response.overall_code, response.statuses.len()), (OVER, 1));
    let (code, name, limit, unit, left, wait) = status_fields(&response.statuses[0]);
    assert_eq!((code, name, limit, unit, left), (OVER, "user", 5, Unit::Minute as i32, 0));
    assert!(waits().contains(&wait.try_into().unwrap()), "{wait}");
    assert_eq!(header(&response, "retry-after"), Some(wait.to_string().as_str()));

    // This window is not one of Envoy's units.
    let response = client.call(rate_limit_request("shop", &[&[("item", "7")]])).unwrap();
    assert_eq!(status_fields(&response.statuses[0]), (OK, "item", 3, Unit::Unknown as i32, 2, 90));
}

#[test]
fn headers_show_the_tightest_rule() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let both = rate_limit_request("both", &[&[("who", "x")]]);
    for left in [1, 0] {
        let response = client.call(both.clone()).unwrap();
        assert_eq!(
            status_fields(&response.statuses[0]),
            (OK, "both-small", 2, Unit::Hour as i32, left, 3600)
        );
        let policy = r#""both-small";q=2;w=3600, "both-large";q=9;w=1"#;
        assert_eq!(header(&response, "ratelimit-policy"), Some(policy));
    }
    let response = client.call(both).unwrap();
    assert_eq!(status_fields(&response.statuses[0]).1, "both-small");
}

#[test]
fn headers_omit_shadows_and_unmatched() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    for domain in ["elsewhere", "watched", "watched"] {
        let response = client.call(rate_limit_request(domain, &[&[("user", "ann")], &[]])).unwrap();
        assert_eq!(response.overall_code, OK);
        let quiet = DescriptorStatus { code: OK, ..Default::default() };
        assert_eq!(response.statuses, [quiet.clone(), quiet]);
        assert!(response.response_headers_to_add.is_empty());
    }
}

#[test]
fn descriptors_are_charged_all_or_nothing() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let both = rate_limit_request("shop", &[&[("user", "ann")], &[("item", "7")]]);
    for _ in 0..3 {
        assert_eq!(client.codes(both.clone()), [OK, OK, OK]);
    }
    for _ in 0..10 {
        let response = client.call(both.clone()).unwrap();
        assert_eq!(response.overall_code, OVER);
        // Ann has two permits left: she was not charged for requests that the item denied.
        let ann = status_fields(&response.statuses[0]);
        assert_eq!((ann.0, ann.1, ann.4), (OK, "user", 2));
        assert_eq!(
            (status_fields(&response.statuses[1]).0, status_fields(&response.statuses[1]).4),
            (OVER, 0)
        );
        assert_eq!(header(&response, "ratelimit-policy"), Some(r#""user";q=5;w=60, "item";q=3;w=90"#));
    }
    let alone = rate_limit_request("shop", &[&[("user", "ann")]]);
    assert_eq!([(); 3].map(|()| client.codes(alone.clone())[0]), [OK, OK, OVER]);
}

#[test]
fn one_key_in_two_descriptors_is_charged_for_both() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let twice = rate_limit_request("shop", &[&[("user", "ann")], &[("user", "ann"), ("more", "x")]]);
    assert_eq!([(); 3].map(|()| client.codes(twice.clone())[0]), [OK, OK, OVER]);
    assert_eq!(client.codes(rate_limit_request("shop", &[&[("user", "ann")]])), [OK, OK]);
}

#[test]
fn hits_addend_is_the_cost() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let hits = |request: u32, descriptor: Option<u64>| {
        let mut call = rate_limit_request("shop", &[&[("user", "ann")]]);
        call.hits_addend = request;
        call.descriptors[0].hits_addend = descriptor;
        let response = client.call(call).unwrap();
        (response.overall_code, response.statuses[0].limit_remaining)
    };
    assert_eq!(hits(2, None), (OK, 3));
    assert_eq!(hits(4, None), (OVER, 3));
    assert_eq!(hits(4, Some(1)), (OK, 2));
    assert_eq!(hits(4, Some(0)), (OK, 2));
    // A cost above the limit is denied, because after an error Envoy would let the request pass.
    assert_eq!(hits(6, None), (OVER, 2));
    assert_eq!(hits(1, Some(1_000_000_000_000)).0, OVER);
    assert_eq!(hits(0, None), (OK, 1));
}

#[test]
fn descriptor_entries_become_attributes() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let pair =
        |first, second| client.codes(rate_limit_request("pairs", &[&[("tag", first), ("tag", second)]]))[0];
    assert_eq!([pair("a", "b"), pair("a", "b"), pair("b", "a")], [OK, OVER, OK]);
    // An empty entry is left out, so the rule does not apply.
    assert_eq!([pair("a", ""), pair("a", ""), pair("", "a"), pair("", "a")], [OK; 4]);
    // An entry named `domain` does not change the domain.
    let disguised = rate_limit_request("elsewhere", &[&[("domain", "pairs"), ("tag", "a"), ("tag", "b")]]);
    assert_eq!(client.codes(disguised), [OK, OK]);
}

#[test]
fn longer_value_does_not_escape_a_rule() {
    let server = Server::with_rules(
        "rules: [{ name: login, match: { path: \"/login*\" }, key: [remote_address], limit: 2, window: 1h }]",
    );
    let client = Client::of(&server);
    let codes = [0, 1_000, 9_000, 900_000].map(|n| {
        let path = format!("/login/{}", "x".repeat(n));
        client.codes(rate_limit_request("edge", &[&[("path", &path), ("remote_address", "1.1.1.1")]]))[0]
    });
    assert_eq!(codes, [OK, OK, OVER, OVER]);
}

#[test]
fn limit_in_the_descriptor_is_applied() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let own = overriding(&[("user", "ann")], 2, 2);
    let response = client.call(own.clone()).unwrap();
    assert_eq!(status_fields(&response.statuses[0]), (OK, "ad-hoc", 2, Unit::Minute as i32, 1, 60));
    assert_eq!([(); 2].map(|()| client.codes(own.clone())[0]), [OK, OVER]);
    // Other entries are counted separately, even if their joined texts are equal.
    assert_eq!(client.codes(overriding(&[("user", "ann|x=y")], 1, 2)), [OK, OK]);
    assert_eq!(client.codes(overriding(&[("user", "ann"), ("x", "y")], 1, 2)), [OK, OK]);

    let message = |request| {
        let status = client.call(request).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        status.message().to_owned()
    };
    let of = |limit, unit| overriding(&[("user", "ann")], limit, unit);
    assert_eq!(message(of(101, 2)), "limit must be between 1 and 100, not 101");
    assert!(message(of(5, 4)).starts_with("window must be between 1s and "), "{}", message(of(5, 4)));
    let units = "descriptors[0].limit.unit must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR, not 0";
    assert_eq!(message(of(5, 0)), units);
}

#[test]
fn zero_limit_denies_all() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let mut request = overriding(&[("user", "ann")], 0, 2);
    request.descriptors.push(descriptor(&[("user", "bob")]));
    for _ in 0..7 {
        let response = client.call(request.clone()).unwrap();
        assert_eq!(response.overall_code, OVER);
        let limit = response.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit), (0, Unit::Minute as i32));
        assert_eq!(response.statuses[1].limit_remaining, 5);
    }
}

#[test]
fn invalid_descriptors_are_rejected() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let denied = |request| {
        let status = client.call(request).unwrap_err();
        (status.code(), status.message().to_owned())
    };
    let invalid = |message: &str| (tonic::Code::InvalidArgument, message.to_owned());
    assert_eq!(denied(rate_limit_request("", &[&[("user", "x")]])), invalid("domain must not be empty"));
    assert_eq!(
        denied(rate_limit_request("shop", &[])),
        invalid("a request must have 1 to 64 descriptors, not 0")
    );
    let many = vec![[("user", "x")].as_slice(); 65];
    assert_eq!(
        denied(rate_limit_request("shop", &many)),
        invalid("a request must have 1 to 64 descriptors, not 65")
    );
    let entries = vec![("user", "x"); 32];
    let message = "descriptors[1] has 32 entries; at most 31 are accepted";
    assert_eq!(denied(rate_limit_request("shop", &[&[], &entries])), invalid(message));
    let mut negative = rate_limit_request("shop", &[&[("user", "x")]]);
    negative.descriptors[0].is_negative_hits = true;
    let message = "descriptors[0].is_negative_hits is not supported: refund with `settle` over HTTP";
    assert_eq!(denied(negative), invalid(message));
    assert_eq!(denied(rate_limit_request("shop", &[&[("no spaces", "x")]])).0, tonic::Code::InvalidArgument);
    let twice = rate_limit_request("shop", &[&[("a.2", "x"), ("a", "x"), ("a", "x")]]);
    assert_eq!(denied(twice), invalid("attribute `a.2` is given twice"));
    // An error would let Envoy pass the request on.
    let large = "x".repeat(1_100_000);
    assert_eq!(client.codes(rate_limit_request("shop", &[&[("user", &large)]])), [OVER]);
    // A client cannot avoid a limit with a long header: long values are counted too.
    for long in ["x".repeat(9_000), "x".repeat(70_000)] {
        let codes: Vec<i32> =
            (0..6).map(|_| client.codes(rate_limit_request("shop", &[&[("user", &long)]]))[0]).collect();
        assert_eq!(codes, [OK, OK, OK, OK, OK, OVER]);
    }
    // The maximum number of descriptors is accepted, and the rejected requests were not counted.
    let many = vec![[("user", "x")].as_slice(); 64];
    assert_eq!(client.codes(rate_limit_request("shop", &many))[0], OVER);
    assert_eq!(
        client.call(rate_limit_request("shop", &[&[("user", "x")]])).unwrap().statuses[0].limit_remaining,
        4
    );
}

/// Descriptors that meet too many limits together are rejected before anything is charged.
#[test]
fn descriptors_with_too_many_limits_are_rejected() {
    let rules = (0..20).map(|n| format!("  - {{ name: r{n}, key: [user], limit: 9, window: 1h }}\n"));
    let server = Server::with_rules(&format!("rules:\n{}", rules.collect::<String>()));
    let client = Client::of(&server);
    let users: Vec<String> = (0..64).map(|n| n.to_string()).collect();
    let entries: Vec<[(&str, &str); 1]> = users.iter().map(|user| [("user", user.as_str())]).collect();
    let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|entry| entry.as_slice()).collect();
    let status = client.call(rate_limit_request("d", &descriptors)).unwrap_err();
    assert_eq!(status.message(), "requests that are decided together may have at most 1024 checks, not 1280");
    let few = client.call(rate_limit_request("d", &descriptors[..51])).unwrap();
    assert_eq!(few.statuses[0].limit_remaining, 8);
}

/// Envoy lets a request pass if its check fails, and clients choose the bytes of their headers.
#[test]
fn values_that_are_not_utf_8_are_limited() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let mut request = rate_limit_request("shop", &[&[("user", "x")]]);
    request.descriptors[0].entries[0].value = b"ann\xff".to_vec();
    let codes: Vec<i32> = (0..6).map(|_| client.codes(request.clone())[0]).collect();
    assert_eq!(codes, [OK, OK, OK, OK, OK, OVER]);
    // The value is counted under the same text as the same bytes over HTTP.
    assert_eq!(client.codes(rate_limit_request("shop", &[&[("user", "ann\u{fffd}")]])), [OVER, OVER]);
    // The same holds with a limit in the descriptor, and in a domain that is not UTF-8 either.
    request.domain = b"shop\xc3".to_vec();
    let minute = RateLimitUnit::Minute as i32;
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit: minute });
    assert_eq!([client.codes(request.clone())[0], client.codes(request)[0]], [OK, OVER]);
}

/// Encodes a message as it is sent.
fn message(request: &RateLimitRequest) -> Vec<u8> {
    let message = prost::Message::encode_to_vec(request);
    let mut bytes = vec![0, 0, 0, 0, message.len().try_into().unwrap()];
    bytes.extend(message);
    bytes
}

/// Sends a call with this body, as bytes, and returns its status.
fn raw(client: &http2_client::Client, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
    client.call(&format!("/{SERVICE}/ShouldRateLimit"), headers, Some(body))
}

#[test]
fn invalid_messages_are_rejected() {
    let server = Server::with_rules(RULES);
    let client = http2_client::Client::of(server.listener_address("grpc"));
    let code = |body: &[u8]| raw(&client, &[], body).1;
    assert_eq!(code(b""), "3");
    assert_eq!(code(b"\0\0"), "3");
    assert_eq!(code(b"\0\0\0\0\x05ab"), "3");
    assert_eq!(code(b"\0\0\0\0\x02\xff\xff"), "3");
    assert_eq!(code(b"\0\0\0\0\0\0\0\0\0\0"), "3");
    assert_eq!(code(b"\x01\0\0\0\0"), "12");
    // A message that is too large is denied, not answered with an error.
    assert_eq!(code(b"\0\xff\xff\xff\xff"), "0");
    assert_eq!(raw(&client, &[("content-type", "application/json")], b"{}").0, 415);
    assert_eq!(client.call("/nobody/knows", &[], Some(b"\0\0\0\0\0")).1, "12");
}

#[test]
fn garbage_closes_the_connection() {
    let server = Server::with_rules(RULES);
    for garbage in [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".as_slice(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        &[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3],
        &[0; 4096],
    ] {
        let mut stream = TcpStream::connect(server.listener_address("grpc")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The server closes the connection, perhaps before it has read all bytes. Its response does not matter.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        if let Err(error) = stream.read_to_end(&mut Vec::new()) {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "open after {garbage:?}");
        }
    }
    assert_eq!(Client::of(&server).codes(rate_limit_request("shop", &[&[("user", "ann")]])), [OK, OK]);
}

#[test]
fn deadline_expires_while_redis_is_slow() {
    let redis = RedisServer::start(Flavour::Redis7);
    let rules =
        RULES.replace("ad-hoc", &format!("store: {}\nguard: {{ deadline: 20s }}\nad-hoc", redis.url()));
    let server = Server::with_rules(&rules);
    // The client of tonic would end the call at its own deadline.
    let client = http2_client::Client::of(server.listener_address("grpc"));
    let within = |timeout| {
        raw(
            &client,
            &[("grpc-timeout", timeout)],
            &message(&rate_limit_request("shop", &[&[("user", "ann")]])),
        )
        .1
    };
    assert_eq!([within("20S"), within("0n"), within("soon")], ["0", "4", "3"]);
    redis.signal("-STOP");
    let late = within("200m");
    redis.signal("-CONT");
    assert_eq!(late, "4");
}

#[test]
fn deadline_expires_while_the_message_arrives() {
    let server = Server::with_rules(RULES);
    let client = http2_client::Client::of(server.listener_address("grpc"));
    let path = format!("/{SERVICE}/ShouldRateLimit");
    assert_eq!(client.call(&path, &[("grpc-timeout", "100m")], None).1, "4");
}

/// Server in this process, with limits and tokens that the command line cannot set.
struct Here {
    address: String,
    stop: oneshot::Sender<()>,
    stopped: std::thread::JoinHandle<()>,
}

fn here(access: Auth, limits: Limits) -> Here {
    let (address_sender, address) = std::sync::mpsc::channel();
    let (stop, stopping) = oneshot::channel();
    let stopped = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.unwrap().block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            address_sender.send(listener.local_addr().unwrap().to_string()).unwrap();
            let mut app = AppState::new(
                AnyStore::Memory(MemoryStore::new()),
                Rules::from_yaml("rules: []").unwrap(),
                "a test",
            );
            (app.settings.access, app.settings.limits) = (access, limits);
            let listeners = Listeners { grpc: Some(listener), ..Listeners::default() };
            serve::run(listeners, Arc::new(app), async { stopping.await.unwrap_or_default() }).await;
        });
    });
    Here { address: address.recv().unwrap(), stop, stopped }
}

#[test]
fn calls_need_the_configured_token() {
    let server = here(Auth::new(vec![Token::new(b"hush")], vec![]), Limits::default());
    let client = Client::at(&server.address);
    let with = |header: Option<&str>| {
        let mut request = Request::new(rate_limit_request("shop", &[&[("user", "ann")]]));
        if let Some(header) = header {
            request.metadata_mut().insert("authorization", header.parse().unwrap());
        }
        client.call(request).map_err(|status| status.code())
    };
    assert!(with(Some("Bearer hush")).is_ok());
    for wrong in [None, Some("Bearer hus"), Some("Basic hush"), Some("hush")] {
        assert_eq!(with(wrong), Err(tonic::Code::Unauthenticated));
    }
    assert_eq!(client.health("").unwrap(), 1);
    let raw = http2_client::Client::of(&server.address);
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    assert_eq!(raw.call(reflection, &[], Some(b"")).1, "16");
    assert_ne!(raw.call(reflection, &[("authorization", "bearer hush")], Some(b"")).1, "16");
}

#[test]
fn health_follows_the_store() {
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    assert_eq!(client.health("").unwrap(), 1);
    assert_eq!(client.health(SERVICE).unwrap(), 1);
    assert_eq!(client.health("nobody").unwrap_err().code(), tonic::Code::NotFound);
    // The policy is `local`, so everything can be decided without Redis.
    let port = lasting_port();
    let with_policy = |policy: &str| {
        let guard = format!("guard: {{ on-error: {policy} }}");
        Server::with_rules(&format!("store: redis://127.0.0.1:{port}\n{guard}\nrules: []"))
    };
    assert_eq!(Client::of(&with_policy("local")).health("").unwrap(), 1);
    // With `closed`, it cannot before Redis has answered.
    let server = with_policy("closed");
    let client = Client::of(&server);
    assert_eq!(client.health("").unwrap(), 2);
    let health = HealthClient::new(client.channel.clone());
    let watch = |service: &str| {
        let (mut health, service) = (health.clone(), service.to_owned());
        async move { health.watch(HealthCheckRequest { service }).await.unwrap().into_inner() }
    };
    let redis = client.wait(async {
        let mut watched = watch(SERVICE).await;
        assert_eq!(watched.message().await.unwrap().unwrap().status, 2);
        let redis = RedisServer::at(Flavour::Redis7, port);
        assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
        let mut unknown = watch("nobody").await;
        assert_eq!(unknown.message().await.unwrap().unwrap().status, 3);
        redis
    });
    drop((redis, server));
}

/// Nothing is published while there is no watch, so the last published status is old when the next watch begins.
#[test]
fn later_watch_does_not_get_the_old_status() {
    const TOKEN: &str = "admin-token-0123456789";
    let rules = |policy: &str| format!("rules: [{{ name: one, limit: 5, window: 1m, on-error: {policy} }}]");
    let config = format!("store: redis://127.0.0.1:{}\n{}", lasting_port(), rules("closed"));
    let mut server = Server::with_env(&[("SLIDEGATE_ADMIN_TOKEN", TOKEN)], &config, &[]);
    let put = |policy: &str| {
        let token = format!("Bearer {TOKEN}");
        server.send("PUT", "/v1/rules", &[("authorization", &token)], &rules(policy)).status
    };
    let client = Client::of(&server);
    let mut health = HealthClient::new(client.channel.clone());
    let mut watch = || {
        let request = HealthCheckRequest { service: String::new() };
        client.wait(health.watch(request)).unwrap().into_inner()
    };
    let mut first = watch();
    let status = |watched: &mut tonic::Streaming<_>| {
        let message: Option<HealthCheckResponse> = client.wait(watched.message()).unwrap();
        message.map(|message| message.status)
    };
    assert_eq!(status(&mut first), Some(2));
    assert_eq!(put("local"), 200);
    assert_eq!(status(&mut first), Some(1), "published");
    drop(first);
    assert_eq!(put("closed"), 200);
    let mut second = watch();
    assert_eq!(status(&mut second), Some(2));
    server.terminate();
    assert_eq!(status(&mut second), None, "nothing changes until the server stops");
    assert!(server.wait().success());
}

/// Watches need no token and may last for ever, so their number is bounded.
#[test]
fn health_watches_are_bounded() {
    let limits = Limits { grpc_streams: 10, ..Limits::default() };
    let server = here(Auth::new(vec![Token::new(b"hush")], vec![]), limits);
    let watch = |client: &Client| {
        let mut health = HealthClient::new(client.channel.clone());
        let request = HealthCheckRequest { service: String::new() };
        client.wait(async {
            let mut watched = health.watch(request).await?.into_inner();
            assert_eq!(watched.message().await?.unwrap().status, 1);
            Ok::<_, Status>(watched)
        })
    };
    let exhausted = |client: &Client| {
        let status = watch(client).map(drop).unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        status.message().to_owned()
    };
    let (one, other) = (Client::at(&server.address), Client::at(&server.address));
    let mut watched: Vec<_> = (0..8).map(|_| watch(&one).unwrap()).collect();
    assert!(exhausted(&one).contains("grpc-streams-per-connection"), "one connection may have eight watches");
    watched.extend([watch(&other).unwrap(), watch(&other).unwrap()]);
    assert!(
        exhausted(&other).ends_with("listen.limits.grpc-streams"),
        "all connections together may have ten watches"
    );
    // A health check and a decision do not count as streams.
    assert_eq!(one.health("").unwrap(), 1);
    // A watch that ends makes room, both on its connection and in total.
    drop(watched.remove(0));
    eventually("the watch has ended", || watch(&other).is_ok());
}

/// Calls whose messages have not arrived hold memory. They share one budget with unfinished requests of the other
/// protocols.
#[test]
fn unfinished_calls_share_a_memory_budget() {
    // Each unfinished call takes 8 KiB, except the first eight of a connection.
    let limits = Limits { unfinished_bytes: 40 << 10, ..Limits::default() };
    let server = here(Auth::default(), limits);
    let client = http2_client::Client::of(&server.address);
    let path = format!("/{SERVICE}/ShouldRateLimit");
    let whole = message(&rate_limit_request("shop", &[&[("user", "ann")]]));
    let waiting: Vec<_> = (0..8 + 5).map(|_| client.begin(&path)).collect();
    for (arrived, _) in &waiting {
        arrived.recv().unwrap();
    }
    // The server may still be reading the calls that wait.
    eventually("the budget is used up (RESOURCE_EXHAUSTED)", || {
        client.call("/grpc.health.v1.Health/Check", &[], None).1 == "8"
    });
    // After an error Envoy would let the request pass, so the server answers OVER_LIMIT.
    assert_eq!(client.call(&path, &[], None).1, "0");
    // Other connections are answered, even if their messages arrive a moment after their calls.
    let other = http2_client::Client::of(&server.address);
    let (arrived, answer) = other.begin(&path);
    arrived.recv().unwrap();
    assert_eq!(answer(whole.clone()).1, "0");
    // The unfinished calls are answered too when their messages arrive.
    for (_, answer) in waiting {
        assert_eq!(answer(whole.clone()).1, "0");
    }
}

#[test]
fn reflection_lists_the_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let server = Server::with_rules(RULES);
    let client = Client::of(&server);
    let reflect = |message: MessageRequest| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let mut client_v1 = ServerReflectionClient::new(client.channel.clone());
        client.wait(async {
            let requests = tonic::codegen::tokio_stream::once(request);
            let mut answers = client_v1.server_reflection_info(requests).await.unwrap().into_inner();
            answers.message().await.unwrap().unwrap().message_response.unwrap()
        })
    };
    let MessageResponse::ListServicesResponse(list) = reflect(MessageRequest::ListServices(String::new()))
    else {
        panic!("no list");
    };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"]);
    // A client needs the file of the service and the files that it imports.
    let mut wanted = vec![MessageRequest::FileContainingSymbol(SERVICE.to_owned())];
    let mut files = Vec::new();
    while let Some(message) = wanted.pop() {
        let MessageResponse::FileDescriptorResponse(found) = reflect(message) else { panic!("no file") };
        let file: File = prost::Message::decode(found.file_descriptor_proto[0].as_slice()).unwrap();
        let new = file.dependency.iter().filter(|name| !files.contains(*name));
        wanted.extend(new.map(|name| MessageRequest::FileByFilename(name.clone())));
        files.push(file.name);
    }
    assert!(files.contains(&"envoy/extensions/common/ratelimit/v3/ratelimit.proto".to_owned()));
    let raw = http2_client::Client::of(server.listener_address("grpc"));
    let alpha = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
    assert_ne!(raw.call(alpha, &[], Some(b"")).1, "12");
}

/// The fields of a file descriptor that the test needs.
#[derive(Clone, PartialEq, prost::Message)]
struct File {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "3")]
    dependency: Vec<String>,
}

#[test]
fn silent_connections_are_closed() {
    let limits = Limits {
        head: Duration::from_millis(100),
        request: Duration::from_millis(200),
        first_byte: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = here(Auth::default(), limits);
    let closed = |first: &[u8]| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(first).unwrap();
        // Reads to the end: the server closes the connection before the timeout.
        stream.read_to_end(&mut Vec::new()).is_ok()
    };
    // A client that answers pings may be idle for any time: its connection is still open when the others are closed.
    // tonic's client would connect again.
    let idle = http2_client::Client::of(&server.address);
    assert!(closed(b""));
    assert!(closed(b"PRI * HTTP/2.0\r\n\r\nSM"));
    // An HTTP/2 client that answers no ping.
    assert!(closed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"));
    assert_eq!(raw(&idle, &[], &message(&rate_limit_request("shop", &[&[("user", "ann")]]))).1, "0");
}

#[test]
fn shutdown_answers_calls_in_flight() {
    let server = here(Auth::default(), Limits::default());
    let client = Client::at(&server.address);
    let raw = http2_client::Client::of(&server.address);
    let mut health = HealthClient::new(client.channel.clone());
    let request = HealthCheckRequest { service: String::new() };
    let mut watched = client.wait(health.watch(request)).unwrap().into_inner();
    assert_eq!(client.wait(watched.message()).unwrap().unwrap().status, 1);
    let path = format!("/{SERVICE}/ShouldRateLimit");
    let (arrived, answered) = raw.begin(&path);
    arrived.recv().unwrap();
    server.stop.send(()).unwrap();
    // A health watch gets the change of status, and does not delay the shutdown.
    client.wait(async {
        assert_eq!(watched.message().await.unwrap().unwrap().status, 2);
        assert!(watched.message().await.unwrap().is_none());
    });
    assert_eq!(answered(message(&rate_limit_request("shop", &[&[("user", "ann")]]))).1, "0");
    drop((raw, client));
    eventually("the server stops", || server.stopped.is_finished());
    server.stopped.join().unwrap();
}
