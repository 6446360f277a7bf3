//! Naming an admission, so that it can be settled later, perhaps by another process.

use std::fmt;
use std::str::FromStr;

use crate::quota::MAX_LIMIT;
use crate::rules::MAX_RULES;
use crate::{Correction, Entry, Error, Key, Micros, Settlement};

/// The longest reservation, in bytes.
pub const MAX_RESERVATION: usize = 64 << 10;

/// What was charged for one request, and where: enough to refund or correct it.
///
/// As text it is `at.seq.cost.length.key` for each key that was charged, one after the other, with an `h` before
/// what is held of a `concurrency` limit. Whoever has it can settle it, so it goes to the one who asked, not to an end
/// user.
///
/// ```
/// # use slidegate::{Limiter, Reservation, Settled};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let limiter = Limiter::per_minute(1_000)?;
/// let decision = limiter.acquire(slidegate::Request::from("alice").permits(800)).await?;
/// let text = decision.reservation().expect("it was allowed").to_string();
/// // … it took only 350:
/// assert_eq!(limiter.settle(&text.parse()?, 350).await?, Settled::Done);
/// assert_eq!(limiter.peek("alice").await?.limits().next().unwrap().used(), 350);
/// # Ok::<(), slidegate::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    charges: Vec<Charge>,
}

/// What was charged to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) key: Key,
    pub(crate) entry: Entry,
    /// Whether it is held until it is given back.
    pub(crate) held: bool,
}

impl Charge {
    fn corrected(&self, correction: Correction) -> Settlement {
        Settlement { key: self.key.clone(), entry: self.entry, correction }
    }
}

impl Reservation {
    pub(crate) fn new(charges: Vec<Charge>) -> Option<Self> {
        (!charges.is_empty()).then_some(Reservation { charges })
    }

    /// Whether anything of it is held, and should be given back: see [`Limiter::release`](crate::Limiter::release).
    pub fn holds(&self) -> bool {
        self.charges.iter().any(|charge| charge.held)
    }

    pub(crate) fn settlements(&self, permits: u64) -> Vec<Settlement> {
        self.charges.iter().map(|charge| charge.corrected(Correction::Cost(permits))).collect()
    }

    /// What of it is held, and the rest.
    #[cfg(feature = "tower")]
    pub(crate) fn apart(self) -> (Option<Self>, Option<Self>) {
        let (held, counted) = self.charges.into_iter().partition(|charge| charge.held);
        (Reservation::new(held), Reservation::new(counted))
    }

    /// The same correction of what is held.
    pub(crate) fn of_held(&self, correction: Correction) -> Vec<Settlement> {
        self.charges.iter().filter(|charge| charge.held).map(|charge| charge.corrected(correction)).collect()
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Charge { key, entry: Entry { at, seq, cost }, held } in &self.charges {
            let key = key.as_str();
            let mark = if *held { HELD } else { "" };
            write!(f, "{mark}{}.{seq}.{cost}.{}.", at.get(), key.len())?;
            f.write_str(key)?;
        }
        Ok(())
    }
}

impl FromStr for Reservation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let charges = if text.len() > MAX_RESERVATION { None } else { read(text) };
        charges.and_then(Reservation::new).ok_or_else(|| {
            Error::invalid("reservation is not one that was given out: send it back as it was received")
        })
    }
}

/// Before what is held.
const HELD: &str = "h";

fn read(mut text: &str) -> Option<Vec<Charge>> {
    let mut charges = Vec::new();
    while !text.is_empty() {
        let held = text.starts_with(HELD);
        text = text.strip_prefix(HELD).unwrap_or(text);
        let mut numbers = [0u64; 4];
        for number in &mut numbers {
            let (digits, rest) = text.split_once('.')?;
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            *number = digits.parse().ok()?;
            text = rest;
        }
        let [at, seq, cost, length] = numbers;
        let (key, rest) = text.split_at_checked(usize::try_from(length).ok()?)?;
        if key.is_empty() || key.contains(char::is_control) || cost > MAX_LIMIT || seq == u64::MAX {
            return None;
        }
        let key = Key::printed(key);
        if charges.len() == MAX_RULES || !has_braces_of_a_key(&key) {
            return None;
        }
        charges.push(Charge { key, entry: Entry { at: Micros::new(at), seq, cost }, held });
        text = rest;
    }
    Some(charges)
}

/// Braces would let whoever sends a reservation choose where it is settled: a tag has one pair, in front.
fn has_braces_of_a_key(key: &Key) -> bool {
    let (tag, braces) = (key.tag(), key.as_str().matches(['{', '}']).count());
    braces == if tag.is_some() { 2 } else { 0 }
}
