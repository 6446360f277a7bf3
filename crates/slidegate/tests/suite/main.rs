//! The library from outside, one module per promise.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod adaptive; // limits that follow the load: they settle, and stay where they were told to
mod audit; // keys that were spoilt by hand: found, told, repaired
mod audit_healthy; // keys that were not: nothing is said of them
mod brute; // the definition of every algorithm, with no thought of speed
mod choice; // groups, exceptions, blocks and replacements: which of the rules that apply are looked at
mod clean; // what is of no use goes, and no decision is another for it
mod concurrency; // threads on one hot key and on shared keys: nothing over, nothing half charged
mod conformance; // one suite for every store: memory, Redis zset, packed, transactions
mod costs; // calls, answers without one, memory: counted
mod definition; // random operations agree with the definition, and retry_after is exact from both sides
mod deny_cache; // denials that the store is not asked for again
mod deployment; // several nodes on the same servers, their callers, and what these were told
mod examples; // every example runs to its end
mod explain; // why a rule looks at a request, or does not
mod fault_bounds; // the table of docs/operations.md, asserted over what callers were told
mod flood; // more keys than a memory store holds: never over a limit, whatever the policy says to do
mod guard_answers; // what a guard answers without the store, and what becomes of that when it is back
mod guard_bounds; // rows of the fault table that concern one key: each bound reached, none passed
mod guard_failover; // a primary dies with its last writes: the nodes remember them
mod guard_faults; // a network that fails, scripts that vanish, a clock that is set: bounded, quick, exact
mod guard_kills; // a server is killed under load: who decides meanwhile, how soon, and how soon it is back
mod guard_write_back; // each way to count: what a server lost is written back to it, once
mod holders; // holders that die or are killed at random: never too many, and what the dead held is back in time
mod holds; // permits that are held: given back once, extended, and back by themselves
mod hostile; // a client that does its worst: the others do not notice
mod keys; // no two requests share a key by accident, and no key is longer than it may be
mod lease; // permits taken in advance: never over, whatever becomes of who took them
mod limiter; // the straight path: acquire, peek, batch, settle, wait
mod memory; // keys come and go: sweeping, the bound, eight bytes an event, no allocation
mod memory_stats; // statistics of the memory store while decisions run
mod oracle; // replays what a store decided, and compares
mod outages; // Redis goes away and comes back: what all nodes admit stays within the limits
mod presets; // the files in examples/rules do what they say
mod processes; // several processes on one Redis: nothing over, nothing lost
mod redis_faults; // bad replies and bad servers: each a typed error that says what to do
mod redis_keys; // what is left in Redis: expiry, listing, size
mod redis_tls; // TLS to Redis
mod reservations; // signed text: nothing else is settled, and no settlement locks a limit or forgets an attempt
mod rule_files; // every mistake in a file, with its line and its exact message
mod script_bounds; // a script call reads and removes a bounded number of entries
mod settlements; // settlements in Redis: bounded calls, only what was given out, one key for all nodes
mod shadows; // a rule that is tried out beside another counts what it would have admitted in its place
mod timelines; // the source documents' timelines, to the permit
mod together; // several requests as one: all or nothing, one charge a key
mod topologies; // Redis in many servers: slots that move, nodes that die, asks over several places
mod tower; // the tower layer: by itself, and in real servers of axum and tonic
mod warm_up; // limits that climb after a cold start: the curve, to the permit, on every store and node
mod watchdog; // how long answers took, less what the machine took from all
mod wrappers; // what makes a store faster decides as the store does
