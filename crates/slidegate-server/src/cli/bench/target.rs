//! Target of a benchmark: a server, or a store in this process.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use slidegate::{AdHoc, Bounds, Limiter, MAX_LIMIT, MAX_WINDOW, MIN_WINDOW, Micros, Request, Rules};

use super::counts::Answer;
use super::options::{Aim, Question};
use super::server::{Connection, Server};
use crate::config::{self, Config};
use crate::store::{AnyStore, Readiness};

/// Target that is ready to receive requests.
pub(super) enum Target {
    Server(Arc<Server>),
    Store(Arc<Limiter<AnyStore>>),
}

impl Target {
    pub(super) async fn open(aim: &Aim, question: &Question) -> Result<Self, String> {
        match aim {
            Aim::Server { url, timeout } => {
                Ok(Target::Server(Arc::new(Server::find(url, *timeout, question).await?)))
            }
            Aim::Store { store, config } => {
                let config = match config {
                    Some(path) => config::load(path)?,
                    None => Config {
                        rules: any_limit()?,
                        ..Config::parse("rules: []").map_err(|e| e.to_string())?
                    },
                };
                let kind = store.clone().or(config.store.clone()).unwrap_or_default();
                let store = AnyStore::open(kind, &config)?;
                // Failover would decide without Redis, and the results would not be those of Redis.
                if let Readiness::NotReady(error) = store.ready().await {
                    return Err(error.to_string());
                }
                tokio::spawn(store.clone().introduce());
                Ok(Target::Store(Arc::new(Limiter::new(store, config.rules))))
            }
        }
    }

    /// Returns the location of the target, for messages.
    pub(super) fn place(&self) -> String {
        match self {
            Target::Server(server) => server.url.clone(),
            Target::Store(limiter) => format!("{}, in this process", limiter.store().place()),
        }
    }

    /// Creates a caller.
    pub(super) async fn caller(&self, question: &Question) -> Result<Caller, String> {
        Ok(match self {
            Target::Server(server) => Caller::Server(Connection::open(Arc::clone(server)).await?),
            Target::Store(limiter) => {
                let (limiter, question) = (Arc::clone(limiter), question.clone());
                Caller::Store { limiter, question, name: String::new() }
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
    Store { limiter: Arc<Limiter<AnyStore>>, question: Question, name: String },
}

impl Caller {
    /// Requests permits for a key. A denial is a decision, not an error.
    pub(super) async fn ask(&mut self, key: u64) -> Result<Answer, String> {
        match self {
            Caller::Server(connection) => connection.ask(key).await,
            Caller::Store { limiter, question, name } => {
                decided(limiter.acquire(request(question, name, key)).await)
            }
        }
    }

    /// Same as [`Caller::acquire`], but charges nothing.
    pub(super) async fn peek(&mut self, key: u64) -> Result<Answer, String> {
        match self {
            Caller::Server(connection) => connection.peek(key).await,
            Caller::Store { limiter, question, name } => {
                decided(limiter.peek(request(question, name, key)).await)
            }
        }
    }
}

fn request<'a>(question: &Question, name: &'a mut String, key: u64) -> Request<'a> {
    let Question { resource, limit, window, permits } = question;
    name.clear();
    // Writing to a string does not fail.
    let _ = write!(name, "{resource}-{key}");
    Request::resource(name).limit(*limit).window((*window).into()).permits(*permits)
}

fn decided(decision: Result<slidegate::Decision, slidegate::Error>) -> Result<Answer, String> {
    let decision = decision.map_err(|error| error.to_string())?;
    Ok(Answer { allowed: decision.allowed(), source: Cow::Borrowed(decision.source().as_str()) })
}
