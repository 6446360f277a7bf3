//! Entry points for `fuzz/`: protocols without a network. Not part of the product.

use std::sync::{Arc, LazyLock};

use slidegate::{MemoryStore, Rules, SystemClock};
use tokio::runtime::Runtime;

use crate::app::auth::{Auth, Token};
use crate::app::rule_manager::RulesBody;
use crate::app::state::AppState;
use crate::common::protocol::Protocol;
use crate::protocol::http::Role;
use crate::protocol::listener::ConnectionHandler;
use crate::protocol::{grpc, http, memory_stream, resp};
use crate::store::AnyStore;

/// Token of the closed server.
pub const TOKEN: &str = "open sesame";

/// Rules of every kind.
const RULES: &str = "
rules:
  - { name: ip, match: { api: [/login, /search*] }, key: [ip], limit: 3, window: 5s, count: attempts }
  - { name: bucket, key: [user], limit: 5, window: 60s, algorithm: token-bucket, burst: 9 }
  - { name: slices, key: [user, tenant], tag: tenant, limit: 5, window: 60s, algorithm: time-slice, mode: shadow }
  - { name: fixed, match: { domain: d }, limit: 4, window: 1h, algorithm: fixed-window, code: 7 }
  - { name: never, match: { plan: none }, blocked: true }
  - { name: always, match: { plan: all }, group: g, unlimited: true, replaces: [ip] }
";

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime"));

static KNOWN_RULES: LazyLock<Rules> = LazyLock::new(|| Rules::from_yaml(RULES).expect("rules"));

/// Creates an empty application state. If `closed`, it requires [`TOKEN`].
fn app(closed: bool) -> Arc<AppState> {
    let store = MemoryStore::with_clock(SystemClock::new(), 128);
    let mut app = AppState::new(AnyStore::Memory(store), KNOWN_RULES.clone(), "fuzzing");
    if closed {
        app.settings.access = Auth::new(vec![Token::new(TOKEN.as_bytes())], Vec::new());
    }
    Arc::new(app)
}

/// Returns the output of the HTTP protocol for input that arrives in these pieces.
pub fn http(pieces: &[&[u8]], closed: bool) -> Vec<u8> {
    exchange(http::ConnectionHandler::new(app(closed), Role::Api { allows_changes: true }), pieces)
}

/// Returns the output of the RESP protocol for input that arrives in these pieces.
pub fn resp(pieces: &[&[u8]], closed: bool) -> Vec<u8> {
    exchange(resp::ConnectionHandler::new(app(closed)), pieces)
}

/// Returns the number of replies that the RESP protocol owes an authorized client.
pub fn resp_due(bytes: &[u8]) -> usize {
    resp::fuzzing::expected_replies(bytes)
}

/// Returns the response of the gRPC protocol to `ShouldRateLimit` with a body in these pieces: frames, or a status with
/// its text.
pub fn should_rate_limit(pieces: &[&[u8]]) -> Result<Vec<u8>, (i32, String)> {
    let app = app(false);
    RUNTIME
        .block_on(grpc::fuzzing::should_rate_limit(app.instrumented(Protocol::Grpc), pieces))
        .map_err(|status| (status.code().into(), status.message().to_owned()))
}

/// Returns the rules in the format of `GET /v1/rules`.
pub fn rules_json(rules: &Rules) -> String {
    serde_json::to_string(&RulesBody::from(rules)).expect("our own types can be written")
}

fn exchange<H: ConnectionHandler>(handler: H, pieces: &[&[u8]]) -> Vec<u8> {
    RUNTIME.block_on(memory_stream::exchange(handler, pieces))
}
