//! The server from outside, one module per promise.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]
// A decision by Redis is a future of many layers.
#![recursion_limit = "256"]

mod access; // who may ask and who may change
mod adaptive; // limits that follow what is reported, the same on every node
mod authorize; // whom a proxy asks about, and whose word is taken
mod bad_input; // whatever a stranger sends is denied with a clear word, and changes nothing
mod bench; // the load generator: counts that add up, latencies that hide nothing
mod blocking_files; // decisions go on while a file is read that does not answer
mod clients; // what docs/clients.md shows runs, in every language
mod commands; // serve, validate, schema, acquire: what they print and how they exit
mod crowd; // thousands who want nothing, and a stop in the middle of the rush
mod dashboard; // the dashboard, in a real browser
mod decisions; // bodies, statuses and headers of decisions
mod dependencies; // nothing we depend on needs a newer Rust than we say
mod envoy; // a real Envoy in front: exactly the limit, its headers, its failure modes
mod envoy_config; // envoyproxy/ratelimit's files limit here what they limit there
mod explain; // why a request would be allowed or denied, rule by rule
mod flow; // permits that are held, and limits that climb
mod greed; // clients that take connections and memory, and send nothing whole
mod grpc; // Envoy's rate-limit service: statuses, caps, deadlines, health, reflection
mod lane; // the short way of usual requests answers as hyper does
mod live; // what a dashboard is told: seconds, hot keys, a key's window
mod memory_store; // bounds of the memory store: in the file, and as a client sees them
mod metrics; // what Prometheus is told, bounded and documented
mod monitor; // counts that are wrong are found and put right, and Redis's memory is looked after
mod openapi; // every answer is as /openapi.json describes it
mod patience; // slow clients are given up, and stopping loses no answer
mod prometheus; // a real Prometheus scrapes, and its alerts fire and clear
mod proxies; // nginx, Traefik and Caddy ask before they pass a request on
mod readme; // the README's lines answer as printed
mod record; // what was asked and decided, written down for a simulation
mod redis; // counting in Redis, from the door
mod reload; // rules that change while they are used
mod replay; // what a server decided, a simulation of its recording decides too
mod reservations; // only what a server with the same key has signed is settled
mod resp; // the Redis protocol: commands, numbers, clients, and whatever strangers send
mod server; // a real server on a free port, killed on drop
mod shadow; // what a rule that only watches would change, counted exactly
mod shared_rules; // every node follows one set of rules
mod simulate; // what rules would do: the documents' figures, every trace, every question
mod tls; // every door can be encrypted, and certificates change while it runs
mod tracing; // logs: text, JSON, a line a decision, spans for a collector; no token, and no key unless asked for
mod unmatched; // requests that no rule matches, and denials without a store
mod webdriver; // a browser, driven over the WebDriver protocol
