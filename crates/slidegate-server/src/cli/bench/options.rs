//! Command-line options of the benchmark, raw and checked.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use slidegate::{
    Micros,
    bounds::{MAX_LIMIT, MAX_WINDOW, MIN_WINDOW},
};

use super::keys::Keys;
use crate::config::StoreKind;

const DEFAULT_URL: &str = "http://127.0.0.1:8080";
const DEFAULT_KEYS: u64 = 1_000;
const DEFAULT_DURATION: Micros = Micros::from_secs(10);
const DEFAULT_WARM_UP: Micros = Micros::from_secs(1);
/// Longest duration that any option accepts.
const MAX_TIME: Micros = Micros::from_secs(24 * 3600);

/// Arguments of `slidegate bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --rate the load is a closed loop: each caller sends its next request after the answer to its last request.
This finds the highest throughput. While the server stalls, it receives fewer requests, so few latencies show the stall.
With --rate the load is an open loop: requests are sent on a schedule, and do not wait for the answers to earlier requests.
The latency is measured from the scheduled time, so every request that was due during a stall shows the stall.

The requests count for the resources bench-0, bench-1, and so on, until their window has passed.

Examples:
  slidegate bench                                          64 callers and a thousand keys, as fast as possible
  slidegate bench --rate 5000 --distribution zipf          an open loop of 5,000 requests per second with some hot keys
  slidegate bench --store memory --callers 2 --keys 1      the library in this process, without a network
  slidegate bench --store redis://127.0.0.1:6379 --json    the throughput of Redis, as JSON")]
pub(crate) struct BenchArgs {
    /// URL of the server that receives the requests [env: SLIDEGATE_URL] [default: http://127.0.0.1:8080]
    #[arg(long, conflicts_with_all = ["store", "config"])]
    url: Option<String>,
    /// Call no Slidegate server. Decide in this process and count in `memory` or in Redis, such as
    /// redis://127.0.0.1:6379
    #[arg(long)]
    store: Option<StoreKind>,
    /// Call no Slidegate server. Decide in this process with the store and the ad-hoc bounds of this configuration
    /// file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    template: RequestTemplate,
    /// Number of different resources [default: 1000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: Option<u64>,
    /// Distribution of the requests over the resources
    #[arg(long, value_enum, default_value_t = Spread::Uniform)]
    distribution: Spread,
    /// Skew of zipf. The k-th key gets the number of requests of the first key divided by k ^ SKEW [default: 1]
    #[arg(long)]
    skew: Option<f64>,
    /// Seed of the keys. The same seed gives the same keys in the same order
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of concurrent callers, each with its own connection. With --rate, upper bound on the requests that wait
    /// for an answer
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    callers: u64,
    /// Start this many requests per second, without waiting for the answers to earlier requests (open loop)
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: Option<u64>,
    /// Duration of the measurement. With --requests, the measurement ends when the duration has passed or all
    /// requests are sent [default: 10s, or until --requests are sent]
    #[arg(long)]
    duration: Option<Micros>,
    /// Number of requests to send
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    requests: Option<u64>,
    /// Duration of the requests before the measurement [default: 1s, or 0s with --requests]
    #[arg(long)]
    warm_up: Option<Micros>,
    /// Time limit for an answer. A later answer counts as an error
    #[arg(long, default_value = "10s")]
    timeout: Micros,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

/// Distribution of the requests over keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Spread {
    /// One key
    One,
    /// All keys equally often
    Uniform,
    /// A few hot keys and a long tail, typical for users
    Zipf,
}

/// Checked options of a run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) target: TargetArgs,
    pub(super) template: RequestTemplate,
    pub(super) keys: Keys,
    pub(super) callers: usize,
    pub(super) rate: Option<u64>,
    pub(super) duration: Option<Micros>,
    pub(super) requests: Option<u64>,
    pub(super) warm_up: Micros,
}

/// Target of the requests.
#[derive(Debug)]
pub(super) enum TargetArgs {
    Server { url: String, timeout: Micros },
    Store { store: Option<StoreKind>, config: Option<PathBuf> },
}

/// Fields that all requests have in common.
#[derive(Clone, Debug, Args)]
pub(super) struct RequestTemplate {
    /// Prefix of the resource names: NAME-0, NAME-1, and so on. The counts of a new name start from zero
    #[arg(long, value_name = "NAME", default_value = "bench")]
    pub(super) resource: String,
    /// Limit of each resource
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=MAX_LIMIT))]
    pub(super) limit: u64,
    /// Window of each resource
    #[arg(long, default_value = "60s")]
    pub(super) window: Micros,
    /// Permits of each request. 0 is a peek
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=MAX_LIMIT))]
    pub(super) permits: u64,
}

impl BenchArgs {
    pub(super) fn check(self) -> Result<Plan, String> {
        let keys = self.keys()?;
        within("--window", self.template.window, MIN_WINDOW, MAX_WINDOW)?;
        within("--timeout", self.timeout, Micros::from_millis(1), MAX_TIME)?;
        let duration = self.duration.or(self.requests.is_none().then_some(DEFAULT_DURATION));
        if let Some(duration) = duration {
            within("--duration", duration, Micros::from_millis(1), MAX_TIME)?;
        }
        let no_warm_up = if self.requests.is_some() { Micros::ZERO } else { DEFAULT_WARM_UP };
        let warm_up = self.warm_up.unwrap_or(no_warm_up);
        within("--warm-up", warm_up, Micros::ZERO, MAX_TIME)?;
        let target = if self.store.is_some() || self.config.is_some() {
            TargetArgs::Store { store: self.store, config: self.config }
        } else {
            // Clap would treat the variable as a conflict with --store, so it is read here.
            let url = self.url.or_else(|| std::env::var("SLIDEGATE_URL").ok());
            TargetArgs::Server { url: url.unwrap_or_else(|| DEFAULT_URL.to_owned()), timeout: self.timeout }
        };
        Ok(Plan {
            target,
            template: self.template,
            keys,
            callers: usize::try_from(self.callers).unwrap_or(usize::MAX),
            rate: self.rate,
            duration,
            requests: self.requests,
            warm_up,
        })
    }

    fn keys(&self) -> Result<Keys, String> {
        if self.skew.is_some() && self.distribution != Spread::Zipf {
            return Err("--skew needs --distribution zipf".to_owned());
        }
        let keys = self.keys.unwrap_or(DEFAULT_KEYS);
        match self.distribution {
            Spread::One if self.keys.is_some_and(|keys| keys > 1) => {
                Err(format!("--distribution one has one key, not {keys}"))
            }
            Spread::One => Ok(Keys::One),
            Spread::Uniform => Ok(Keys::Uniform { keys, seed: self.seed }),
            Spread::Zipf if keys < 2 => {
                Err("zipf needs at least 2 keys; one key is --distribution one".to_owned())
            }
            Spread::Zipf => {
                let skew = self.skew.unwrap_or(1.0);
                // Above 10, all but one request in a thousand have the first key.
                if !(0.0..=10.0).contains(&skew) {
                    return Err(format!("--skew must be between 0 and 10, not {skew}"));
                }
                Keys::zipf(keys, skew, self.seed)
            }
        }
    }
}

fn within(name: &str, value: Micros, least: Micros, most: Micros) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{name} must be between {least} and {most}, not {value}"))
}
