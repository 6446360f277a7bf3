//! `GET /v1/rules`: the rules in force, as a file has them.

use axum::Json;
use axum::extract::State;
use slidegate::{AdHocFile, RuleFile};

use super::Shared;
use crate::config::ConfigFile;

pub(super) async fn rules(State(limiter): State<Shared>) -> Json<ConfigFile> {
    let rules = limiter.rules();
    Json(ConfigFile {
        listen: None,
        store: None,
        redis: None,
        guard: None,
        ad_hoc: Some(AdHocFile::from(rules.ad_hoc())),
        rules: rules.iter().map(RuleFile::from).collect(),
    })
}
