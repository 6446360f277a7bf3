//! Rules that all nodes share in Redis: `PUT /v1/rules` replaces them, and every node follows.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{
    Error, Fault, Rules,
    redis::{RedisStore, SharedText},
};

use super::{RulesBody, Sighup};
use crate::app::state::AppState;
use crate::common::console::warn;
use crate::common::service_manager;
use crate::config::Config;

/// Name of the shared text in Redis.
const SHARED_NAME: &str = "rules";

/// Interval at which a node polls for newer rules.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Number of polls after which the node checks that the rules in force are still in Redis.
const CHECK_AFTER_POLLS: u32 = 20;

/// Name of this source in messages.
pub(crate) const SOURCE: &str = "redis";

/// Stores `rules` in Redis for all nodes. Returns their version.
pub(crate) async fn publish(store: &RedisStore, rules: &Rules) -> Result<u64, Error> {
    let mut body = RulesBody::from(rules);
    // Nodes of older versions reject fields that they do not know.
    body.unmatched = body.unmatched.filter(|_| rules.has_unmatched());
    // Serializing our own types does not fail.
    let text = serde_json::to_string(&body).unwrap_or_default();
    store.share_text(SHARED_NAME, &text).await
}

/// Puts the rules in Redis in force, now and whenever they change. Rules that cannot be read change nothing.
pub(crate) async fn follow(store: RedisStore, mut sighup: Sighup, app: Arc<AppState>) {
    let (mut known, mut warned, mut polls) = (0, false, 0_u32);
    let (mut foreign_entry, mut check_foreign_entry) = (None, true);
    let mut requested = false;
    loop {
        if check_foreign_entry || polls.is_multiple_of(CHECK_AFTER_POLLS) {
            check_foreign_entry = !warn_of_foreign_entry(&store, &mut foreign_entry).await;
        }
        let mut found = store.shared_text(SHARED_NAME, known).await;
        polls = polls.wrapping_add(1);
        if matches!(found, Ok(None)) && known > 0 && polls.is_multiple_of(CHECK_AFTER_POLLS) {
            found = restore_if_lost(&store, known, &app).await;
        }
        match found {
            Ok(Some(SharedText { version, text })) => {
                known = version;
                match Config::parse_rules(&text, &app.settings.redis) {
                    Ok(rules) => drop(app.change_rules(rules, SOURCE, Some(version))),
                    Err(error) => app.reject_rules(SOURCE, error.to_string()),
                }
            }
            Ok(None) if known == 0 && !warned => {
                warn("Redis has no rules yet: requests fail until `PUT /v1/rules` sets them");
                warned = true;
            }
            Ok(None) => {}
            // The store reports that Redis is unavailable. Commands that Redis rejects are reported here.
            Err(error) => {
                let rejections = [Fault::NotAllowed, Fault::WrongType, Fault::Protocol];
                if error.fault().is_some_and(|fault| rejections.contains(&fault)) {
                    app.reject_rules(SOURCE, error.to_string());
                }
            }
        }
        if requested {
            service_manager::ready();
        }
        requested = tokio::select! {
            () = sighup.received() => true,
            () = tokio::time::sleep(POLL_INTERVAL) => false,
        };
        if requested {
            service_manager::reloading();
        }
    }
}

/// Warns once about an entry that another program has added and that is skipped. Returns true if Redis answered.
async fn warn_of_foreign_entry(store: &RedisStore, known: &mut Option<String>) -> bool {
    // The same error is reported when the rules are read.
    let Ok(found) = store.impossible_entry(SHARED_NAME).await else { return false };
    if let Some(id) = found.as_ref().filter(|_| found != *known) {
        warn(&format!(
            "the newest rules in Redis have the id {id}, which no clock produces: another program wrote them, so they \
             are skipped; the next `PUT /v1/rules` starts a new stream"
        ));
    }
    *known = found;
    true
}

/// Checks that the rules in force are still in Redis. If Redis has lost them, they are stored again. If Redis has other
/// rules instead, those are put in force, even if their version is older.
async fn restore_if_lost(
    store: &RedisStore,
    known: u64,
    app: &AppState,
) -> Result<Option<SharedText>, Error> {
    if store.has_shared_text(SHARED_NAME, known).await? {
        return Ok(None);
    }
    let current = app.rules.current();
    let found = store.shared_text(SHARED_NAME, 0).await?;
    match &found {
        Some(SharedText { version, text }) => {
            if let Ok(rules) = Config::parse_rules(text, &app.settings.redis) {
                warn("Redis has lost the rules in force and has other rules");
                app.rules.revert(*version);
                app.change_rules(rules, SOURCE, Some(*version));
            }
        }
        None => {
            warn("Redis has lost the rules: restoring them");
            publish(store, &current.rules).await?;
        }
    }
    Ok(found)
}
