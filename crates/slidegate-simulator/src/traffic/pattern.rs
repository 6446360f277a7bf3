//! Generates synthetic traffic, in the order of time. The same seed gives the same traffic.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp, Zipf};
use slidegate::{Micros, Request};

use super::ReadSummary;
use super::event::Event;
use super::synthetic_clients::SyntheticClients;
use crate::progress::Progress;

/// Start of every pattern: 2000-01-01, a boundary of windows of seconds, minutes, hours and days.
pub(crate) const BEGIN: Micros = Micros::from_secs(946_684_800);

/// Shape of a synthetic pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// Requests at equal intervals; the clients take turns
    Steady,
    /// Random, independent requests at the average rate
    Poisson,
    /// As many requests as the limit shortly before a fixed window ends, and again shortly after
    BoundaryBurst,
    /// Little traffic, then the full rate at once, which then decreases
    FlashSale,
    /// A rate that rises from zero to the given rate
    Ramp,
    /// One client sends about half of all requests
    Hammering,
    /// Random requests; a few clients send many requests, many clients send few
    Zipf,
    /// Requests at exactly the times of --at
    Timeline,
}

/// Checked options of a pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) shape: Shape,
    /// Requests per second, on average or at the peak.
    pub(crate) rate: u64,
    pub(crate) duration: Micros,
    pub(crate) clients: u64,
    pub(crate) seed: u64,
    /// Requests of a timeline or a boundary burst; empty for other shapes.
    pub(crate) instants: Instants,
    pub(crate) synthetic_clients: SyntheticClients,
}

/// Times after the start, in order, each with its number of requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Instants(pub(crate) Vec<(Micros, u64)>);

/// Maximum number of requests of a timeline at one instant.
const MAX_AT_ONCE: u64 = 10_000_000;

impl FromStr for Instants {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("\"{text}\" is not TIME=COUNT,TIME=COUNT,… such as 0.99s=100,1.01s=100");
        let mut instants = Vec::new();
        for part in text.split(',') {
            let (time, count) = part.trim().split_once('=').unwrap_or((part.trim(), "1"));
            let at = read_seconds(time).or_else(|| time.parse().ok()).ok_or_else(invalid)?;
            let count = count.parse().ok().filter(|n| (1..=MAX_AT_ONCE).contains(n)).ok_or_else(invalid)?;
            instants.push((at, count));
        }
        instants.sort_by_key(|(at, _)| *at);
        Ok(Instants(instants))
    }
}

/// Parses seconds with a fraction, such as `0.99s`. [`Micros`] does not parse fractions.
fn read_seconds(text: &str) -> Option<Micros> {
    let (whole, fraction) = text.strip_suffix('s')?.split_once('.')?;
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.is_empty() || fraction.len() > 6 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = format!("{fraction:0<6}").parse().ok()?;
    Some(Micros::new(whole.checked_mul(1_000_000)?.checked_add(part)?))
}

/// Time of a request after the start, in microseconds, and the number of its client.
type Arrival = (u64, u64);

impl Pattern {
    /// Returns the approximate number of requests.
    pub(crate) fn length(&self) -> u64 {
        let all = u128::from(self.rate) * u128::from(self.duration.get()) / 1_000_000;
        let all = u64::try_from(all).unwrap_or(u64::MAX);
        match self.shape {
            Shape::Steady | Shape::Poisson | Shape::Hammering | Shape::Zipf => all,
            Shape::Ramp => all / 2,
            // The base rate is 0.1. The sale adds 0.9 × exp(-8 t), which is 0.9 / 8 ≈ 0.11 in all. Together about 1/5.
            Shape::FlashSale => all / 5,
            Shape::BoundaryBurst | Shape::Timeline => self.instants.0.iter().map(|(_, n)| n).sum(),
        }
    }

    pub(super) fn for_each(
        &self,
        progress: &mut Progress,
        mut visit: impl FnMut(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<ReadSummary, String> {
        let mut summary = ReadSummary {
            notes: self.synthetic_clients.note().into_iter().collect(),
            ..ReadSummary::default()
        };
        let mut values = Vec::new();
        for (n, (after, client)) in (0..).zip(self.arrivals()?) {
            if !progress.advance(n) {
                summary.interrupted = true;
                break;
            }
            let at = Micros::new(BEGIN.get() + after);
            let request = Request::new(self.synthetic_clients.attributes_of(client, &mut values));
            // All requests of a pattern are alike: an error of one is an error of all.
            visit(Event::new(at, &request))?;
        }
        Ok(summary)
    }

    fn arrivals(&self) -> Result<Box<dyn Iterator<Item = Arrival> + '_>, String> {
        let (rate, clients, end) = (self.rate, self.clients, self.duration.get());
        let random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let any_client = move |random: &mut Xoshiro256PlusPlus| random.random_range(0..clients);
        let elapsed_share = move |at: f64| at / end as f64;
        Ok(match self.shape {
            Shape::Timeline | Shape::BoundaryBurst => {
                let each =
                    move |&(at, count): &(Micros, u64)| (0..count).map(move |n| (at.get(), n % clients));
                Box::new(self.instants.0.iter().flat_map(each))
            }
            Shape::Steady => {
                let at = move |n: u64| u64::try_from(u128::from(n) * 1_000_000 / u128::from(rate)).ok();
                Box::new(
                    (0..)
                        .map_while(move |n| Some((at(n)?, n % clients)))
                        .take_while(move |(at, _)| *at < end),
                )
            }
            Shape::Poisson => self.independent_arrivals(random, |_| 1.0, any_client)?,
            Shape::Ramp => self.independent_arrivals(random, elapsed_share, any_client)?,
            Shape::FlashSale => {
                let relative_rate = move |at: f64| match elapsed_share(at) - 0.25 {
                    before if before < 0.0 => 0.1,
                    since => 0.1 + 0.9 * (-since * 8.0).exp(),
                };
                self.independent_arrivals(random, relative_rate, any_client)?
            }
            Shape::Hammering => self.independent_arrivals(
                random,
                |_| 1.0,
                move |random| {
                    if random.random_bool(0.5) { 0 } else { random.random_range(0..clients) }
                },
            )?,
            Shape::Zipf => {
                let zipf = Zipf::new(clients as f64, 1.0)
                    .map_err(|error| format!("--clients {clients}: {error}"))?;
                // The distribution returns whole numbers from 1.
                self.independent_arrivals(random, |_| 1.0, move |random| zipf.sample(random) as u64 - 1)?
            }
        })
    }

    /// Returns independent random arrivals. `relative_rate` returns the share of the full rate at a time.
    fn independent_arrivals<'a>(
        &self,
        mut random: Xoshiro256PlusPlus,
        relative_rate: impl Fn(f64) -> f64 + 'a,
        client: impl Fn(&mut Xoshiro256PlusPlus) -> u64 + 'a,
    ) -> Result<Box<dyn Iterator<Item = Arrival> + 'a>, String> {
        let gap =
            Exp::new(self.rate as f64 / 1e6).map_err(|error| format!("--rate {}: {error}", self.rate))?;
        let end = self.duration.get();
        let mut at = 0.0;
        Ok(Box::new(std::iter::from_fn(move || {
            loop {
                at += gap.sample(&mut random);
                if at >= end as f64 {
                    return None;
                }
                // Arrivals at the full rate are thinned out to the rate at this time.
                let sample: f64 = random.random();
                if sample < relative_rate(at) {
                    return Some((at as u64, client(&mut random)));
                }
            }
        })))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            self.shape.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        match self.shape {
            Shape::Timeline | Shape::BoundaryBurst => {
                let parts = self.instants.0.iter().map(|(at, n)| format!("{n} at {at}"));
                write!(f, "{name}: {}", parts.take(8).collect::<Vec<_>>().join(", "))?;
                if self.instants.0.len() > 8 { write!(f, ", …") } else { Ok(()) }
            }
            _ => write!(
                f,
                "{name}: {} per second, {}, {} clients, seed {}",
                self.rate, self.duration, self.clients, self.seed
            ),
        }
    }
}
