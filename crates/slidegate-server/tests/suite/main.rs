//! Tests of the server through its protocols and its command line, one module per feature.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]
// The future of a decision by Redis has many layers of types.
#![recursion_limit = "256"]

mod adaptive; // limits that follow reports, the same on every node
mod auth; // tokens for decisions and for changes
mod bench; // `slidegate bench`
mod blocking_files; // decisions continue while a file does not answer
mod capture; // recordings of requests and decisions
mod capture_replay; // a simulation repeats the decisions of a recording
mod cli; // serve, validate, schema, acquire: output and exit codes
mod client_examples; // the examples of docs/how-to/clients.md, in every language
mod connection_floods; // thousands of idle connections, shutdown under load
mod dashboard; // the dashboard in a real browser
mod deploy; // the files of deploy/
mod environment; // settings by variables, references in files, `config`, `health`, `man`
mod envoy; // a real Envoy in front of the server
mod envoy_config; // files of envoyproxy/ratelimit
mod explain; // `slidegate explain` and `/v1/explain`
mod fast_path; // the fast path and hyper answer alike
mod fleet; // nodes that share a Redis add up their statistics
mod forward_auth; // `/v1/authorize` for proxies
mod grpc; // Envoy's rate-limit service over gRPC
mod holds_and_warm_up; // held permits and warm-up over the API
mod http_decisions; // bodies, statuses and headers of decisions
mod invalid_input; // untrusted input is rejected and changes nothing
mod key_list; // `GET /v1/keys`, page by page
mod live_stats; // live statistics, hot keys, the dashboard page
mod memory_store; // settings and bounds of the memory store
mod metrics; // metrics for Prometheus
mod monitor; // audits and garbage collection by the server
mod msrv; // no dependency needs a newer Rust
mod openapi; // every response is as /openapi.json describes
mod prometheus; // a real Prometheus with the alerts
mod proxies; // nginx, Traefik and Caddy with forward authentication
mod redis_store; // counting in Redis, from the API
mod reference; // pages of docs/reference and the fuzz dictionaries, from the declarations
mod resource_limits; // connections and memory of greedy clients
mod resp; // the Redis protocol
mod rule_reload; // rules that change while they are used
mod server; // helper: the real binary on a free port
mod shadow_rules; // shadow rules are counted exactly
mod shared_rules; // `rules: redis`, one set of rules for every node
mod shutdown; // drain, time limits, second signal, notifications to systemd
mod signed_reservations; // only signed reservations are settled
mod simulate; // `slidegate simulate`
mod snippets; // the commands and files of README.md and docs/
mod timeouts; // slow clients time out, shutdown loses no response
mod tls; // TLS for every protocol
mod tracing; // logs and spans
mod unmatched_policy; // requests that no rule matches
mod webdriver; // helper: a browser over the WebDriver protocol
mod wire_names; // one word per idea in everything that users see
