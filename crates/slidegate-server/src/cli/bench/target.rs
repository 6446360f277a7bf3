//! Target of a benchmark: a server, or a store in this process.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use slidegate::{
    AdHoc, Bounds, Limiter, Micros, Request, Rules,
    bounds::{MAX_LIMIT, MAX_WINDOW, MIN_WINDOW},
};

use super::counts::Outcome;
use super::options::{RequestTemplate, TargetArgs};
use super::server::{Connection, Server};
use crate::config::{self, Config, Environment, Inputs};
use crate::store::{AnyStore, Health};

/// Target that is ready to receive requests.
pub(super) enum Target {
    Server(Arc<Server>),
    Store(Arc<Limiter<AnyStore>>),
}

impl Target {
    pub(super) async fn open(args: &TargetArgs, template: &RequestTemplate) -> Result<Self, String> {
        match args {
            TargetArgs::Server { url, timeout } => {
                Ok(Target::Server(Arc::new(Server::find(url, *timeout, template).await?)))
            }
            TargetArgs::Store { store, config } => {
                let config = match config {
                    Some(path) => config::load(path, &Inputs::new(Environment::of_process()))?,
                    None => Config {
                        rules: any_limit()?,
                        ..Config::parse("rules: []").map_err(|e| e.to_string())?
                    },
                };
                let kind = store.clone().or(config.settings.store.clone()).unwrap_or_default();
                let store = AnyStore::open(kind, &config.settings)?;
                // Failover would decide without Redis, and the results would not be those of Redis.
                if let Health::NeverAnswered(error) = store.health().await {
                    return Err(error.to_string());
                }
                tokio::spawn(store.clone().start_and_watch());
                Ok(Target::Store(Arc::new(Limiter::new(store, config.rules))))
            }
        }
    }

    /// Returns the location of the target, for messages.
    pub(super) fn location(&self) -> String {
        match self {
            Target::Server(server) => server.url.clone(),
            Target::Store(limiter) => format!("{}, in this process", limiter.store().location()),
        }
    }

    /// Creates a caller.
    pub(super) async fn caller(&self, template: &RequestTemplate) -> Result<Caller, String> {
        Ok(match self {
            Target::Server(server) => Caller::Server(Connection::open(Arc::clone(server)).await?),
            Target::Store(limiter) => {
                let (limiter, template) = (Arc::clone(limiter), template.clone());
                Caller::Store { limiter, template, name: String::new() }
            }
        })
    }

    /// Closes the store.
    pub(super) async fn close(&self) {
        if let Target::Store(limiter) = self {
            limiter.store().leave().await;
        }
    }
}

/// Returns rules with the widest ad-hoc bounds, because without a file there is nothing to protect.
fn any_limit() -> Result<Rules, String> {
    let limit = Bounds { default: 1, min: 1, max: MAX_LIMIT };
    let window = Bounds { default: Micros::from_secs(60), min: MIN_WINDOW, max: MAX_WINDOW };
    let rules = AdHoc::new(limit, window).and_then(|ad_hoc| Ok(Rules::new([])?.with_ad_hoc(ad_hoc)));
    rules.map_err(|error| error.to_string())
}

/// Client that sends one request at a time.
pub(super) enum Caller {
    Server(Connection),
    Store { limiter: Arc<Limiter<AnyStore>>, template: RequestTemplate, name: String },
}

impl Caller {
    /// Requests permits for a key. A denial is a decision, not an error.
    pub(super) async fn acquire(&mut self, key: u64) -> Result<Outcome, String> {
        match self {
            Caller::Server(connection) => connection.acquire(key).await,
            Caller::Store { limiter, template, name } => {
                outcome(limiter.acquire(request(template, name, key)).await)
            }
        }
    }

    /// Same as [`Caller::acquire`], but charges nothing.
    pub(super) async fn peek(&mut self, key: u64) -> Result<Outcome, String> {
        match self {
            Caller::Server(connection) => connection.peek(key).await,
            Caller::Store { limiter, template, name } => {
                outcome(limiter.peek(request(template, name, key)).await)
            }
        }
    }
}

fn request<'a>(template: &RequestTemplate, name: &'a mut String, key: u64) -> Request<'a> {
    let RequestTemplate { resource, limit, window, permits } = template;
    name.clear();
    // Writing to a string does not fail.
    let _ = write!(name, "{resource}-{key}");
    Request::resource(name).limit(*limit).window((*window).into()).permits(*permits)
}

fn outcome(decision: Result<slidegate::Decision, slidegate::Error>) -> Result<Outcome, String> {
    let decision = decision.map_err(|error| error.to_string())?;
    Ok(Outcome { allowed: decision.allowed(), source: Cow::Borrowed(decision.source().as_str()) })
}
