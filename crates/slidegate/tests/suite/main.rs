//! Tests of the library through its public API, one module per feature.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod adaptive; // limits that follow the load
mod algorithms; // each algorithm against the reference model
mod atomic_batch; // several requests decided as one
mod audit; // damaged keys are found, reported and repaired
mod audit_healthy; // the audit reports nothing about healthy keys
mod call_stats; // calls to Redis, answers without a call, memory usage
mod concurrency; // threads on one hot key and on shared keys
mod conformance; // one suite for every store
mod deny_cache; // the local cache of denials
mod deployment; // helper: several nodes on the same servers
mod examples; // every example program succeeds
mod explain; // explanations of rule matching
mod failover_bounds; // fault table: bounds that concern one key
mod failover_decisions; // decisions without the store, and their correction later
mod failover_faults; // bad networks, flushed scripts, clocks that are set
mod failover_kills; // a server is killed under load
mod failover_promotion; // a replica without the last writes takes over
mod failover_simulation; // three nodes on a simulated server, with random faults
mod failover_write_back; // lost state is written back once
mod fault_bounds; // helper: the fault table as assertions
mod gc; // removal of useless keys and entries in Redis
mod held_permits; // permits that are held, extended and released
mod holder_crashes; // holders that die at random
mod hostile_clients; // one client does its worst, other clients are served
mod key_encoding; // the encoding of keys is injective and bounded
mod key_floods; // more keys than a memory store holds
mod keyed_limiter; // one quota for each key, without rules: agrees with the reference model
mod lease; // permits that a node takes in advance
mod limiter; // acquire, peek, batch, settle, wait
mod memory_store; // sweeping, eviction, memory per event
mod memory_store_stats; // statistics of the memory store during decisions
mod multi_process; // several processes on one Redis
mod oracle; // helper: replays decisions with the pure algorithm
mod outages; // Redis goes away and comes back
mod presets; // the files in examples/rules
mod redis_errors; // bad replies and bad servers
mod redis_keys; // expiry, listing and size of keys in Redis
mod redis_tls; // TLS to Redis
mod reference_model; // helper: a plain model of every algorithm
mod rule_files; // every mistake in a rules file has its line and message
mod rule_selection; // groups, exceptions, blocks and replacements
mod script_bounds; // a script call reads and removes a bounded number of entries
mod settlements; // settlements in Redis
mod shadow_rules; // rules that are tried out beside another rule
mod signed_reservations; // signed reservations and the bounds of settlements
mod simulated_store; // helper: a remote store in virtual time, with injected faults
mod store_wrappers; // coalescing, caching and failover around a store
mod timelines; // the timelines of the source documents
mod topologies; // cluster, sentinels and independent servers
mod tower; // the tower layer in axum and tonic
mod warm_up; // limits that climb after a cold start
mod watchdog; // helper: response times without the pauses of the machine
