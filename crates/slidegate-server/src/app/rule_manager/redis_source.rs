//! Rules that all nodes share in Redis: `PUT /v1/rules` replaces them, and every node follows.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Error, Fault, RedisStore, Rules, SharedText};

use super::{RulesBody, Sighup};
use crate::app::state::AppState;
use crate::common::console::warn;
use crate::config::Config;

/// Name of the shared text in Redis.
const NAME: &str = "rules";

/// Interval at which a node polls for newer rules.
const ASK: Duration = Duration::from_millis(500);

/// Number of polls after which the node checks that the rules in force are still in Redis.
const CHECK: u32 = 20;

/// Name of this source in messages.
pub(crate) const SOURCE: &str = "redis";

/// Stores `rules` in Redis for all nodes. Returns their version.
pub(crate) async fn publish(store: &RedisStore, rules: &Rules) -> Result<u64, Error> {
    let mut body = RulesBody::from(rules);
    // Nodes of older versions reject fields that they do not know.
    body.unmatched = body.unmatched.filter(|_| rules.has_unmatched());
    // Serializing our own types does not fail.
    let text = serde_json::to_string(&body).unwrap_or_default();
    store.share_text(NAME, &text).await
}

/// Puts the rules in Redis in force, now and whenever they change. Rules that cannot be read change nothing.
pub(crate) async fn follow(store: RedisStore, mut hangup: Sighup, gate: Arc<AppState>) {
    let (mut known, mut told, mut looks) = (0, false, 0_u32);
    let (mut impossible, mut check) = (None, true);
    loop {
        if check || looks.is_multiple_of(CHECK) {
            check = !warn_of_impossible(&store, &mut impossible).await;
        }
        let mut found = store.shared_text(NAME, known).await;
        looks = looks.wrapping_add(1);
        if matches!(found, Ok(None)) && known > 0 && looks.is_multiple_of(CHECK) {
            found = still_there(&store, known, &gate).await;
        }
        match found {
            Ok(Some(SharedText { version, text })) => {
                known = version;
                match Config::parse_rules(&text, &gate.settings.redis) {
                    Ok(rules) => drop(gate.change_rules(rules, SOURCE, Some(version))),
                    Err(error) => gate.keep_rules(SOURCE, error.to_string()),
                }
            }
            Ok(None) if known == 0 && !told => {
                warn("there are no rules in Redis yet: until `PUT /v1/rules`, nothing is decided");
                told = true;
            }
            Ok(None) => {}
            // The store reports that Redis is unavailable. Commands that Redis rejects are reported here.
            Err(error) => {
                let denied = [Fault::NotAllowed, Fault::WrongType, Fault::Protocol];
                if error.fault().is_some_and(|fault| denied.contains(&fault)) {
                    gate.keep_rules(SOURCE, error.to_string());
                }
            }
        }
        tokio::select! {
            () = hangup.asked() => {}
            () = tokio::time::sleep(ASK) => {}
        }
    }
}

/// Warns once about an entry that another program has added and that is skipped. Returns true if Redis answered.
async fn warn_of_impossible(store: &RedisStore, known: &mut Option<String>) -> bool {
    // The same error is reported when the rules are read.
    let Ok(found) = store.impossible_entry(NAME).await else { return false };
    if let Some(id) = found.as_ref().filter(|_| found != *known) {
        warn(&format!(
            "the newest rules in Redis have the id {id}, which no clock makes: another program wrote them, and they are \
             skipped; the next `PUT /v1/rules` starts the stream anew"
        ));
    }
    *known = found;
    true
}

/// Checks that the rules in force are still in Redis. If Redis has lost them, they are stored again. If Redis has other
/// rules instead, those are put in force, whatever their version.
async fn still_there(store: &RedisStore, known: u64, gate: &AppState) -> Result<Option<SharedText>, Error> {
    if store.has_shared_text(NAME, known).await? {
        return Ok(None);
    }
    let current = gate.rules.current();
    let found = store.shared_text(NAME, 0).await?;
    match &found {
        Some(SharedText { version, text }) => {
            if let Ok(rules) = Config::parse_rules(text, &gate.settings.redis) {
                warn("Redis has lost the rules in force, and has others");
                gate.rules.revert(*version);
                gate.change_rules(rules, SOURCE, Some(*version));
            }
        }
        None => {
            warn("Redis has lost the rules: they are put back");
            publish(store, &current.rules).await?;
        }
    }
    Ok(found)
}
