//! Rules that all nodes share: in Redis, replaced by one `PUT`, followed by every node.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Error, Fault, RedisStore, Rules, SharedText};

use super::{RulesBody, Sighup};
use crate::app::state::AppState;
use crate::common::console::warn;
use crate::config::Config;

/// Under what name.
const NAME: &str = "rules";

/// How often a node asks whether there are newer ones.
const ASK: Duration = Duration::from_millis(500);

/// Every so many looks it is asked whether those in force are still there.
const CHECK: u32 = 20;

/// Where they come from, for people.
pub(crate) const SOURCE: &str = "redis";

/// Puts `rules` where every node finds them; says their version.
pub(crate) async fn publish(store: &RedisStore, rules: &Rules) -> Result<u64, Error> {
    let mut body = RulesBody::from(rules);
    // Nodes of older versions reject fields that they do not know.
    body.unmatched = body.unmatched.filter(|_| rules.has_unmatched());
    // Our own types can be written.
    let text = serde_json::to_string(&body).unwrap_or_default();
    store.share_text(NAME, &text).await
}

/// Puts in force what is found there, now and whenever it changes. What cannot be read changes nothing.
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
            // That Redis does not answer is told by the store; what it does not let us do is told here.
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

/// Warns, once, of an entry that another program has added and that is skipped. Whether Redis answered.
async fn warn_of_impossible(store: &RedisStore, known: &mut Option<String>) -> bool {
    // An error shows when the rules are read.
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

/// A Redis that has lost the rules has them back; one that has others now is right, whatever it numbers them.
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
