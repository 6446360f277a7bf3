//! Reservations: names of admissions, so that they can be settled later, also by another process.
pub(crate) mod key;

use std::collections::HashSet;

use crate::quota::MAX_LIMIT;
use crate::rules::MAX_RULES;
use crate::settlement::NEVER_SETTLED;
use crate::{Correction, Entry, Key, Micros, Settlement};

/// Longest signed reservation, in bytes.
pub const MAX_RESERVATION: usize = 64 << 10;

/// Charges of one request, with their keys: enough to refund or correct them.
///
/// It leaves the process as signed text: [`Limiter::sign`](crate::Limiter::sign) writes it, and
/// [`Limiter::verify`](crate::Limiter::verify) reads it and rejects any other text. The text is the concatenation of
/// `at.seq.cost.length.key` for each charged key, with an `h` in front of a held permit of a `concurrency` limit, then a
/// dot and the signature. Anyone who has the text can settle it, so give it to the caller, not to an end user.
///
/// ```
/// # use slidegate::{Limiter, Settled};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let limiter = Limiter::per_minute(1_000)?;
/// let decision = limiter.acquire(slidegate::Request::from("alice").permits(800)).await?;
/// let text = limiter.sign_decision(&decision).expect("it was allowed");
/// // … it took only 350:
/// assert_eq!(limiter.settle(&limiter.verify(&text)?, 350).await?, Settled::Done);
/// assert_eq!(limiter.peek("alice").await?.limits().next().unwrap().used(), 350);
/// // Nothing that the limiter has not signed is accepted:
/// assert!(limiter.verify(&text.replace(".800.", ".999.")).is_err());
/// # Ok::<(), slidegate::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    charges: Vec<Charge>,
}

/// Charge to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) key: Key,
    pub(crate) entry: Entry,
    /// True if the permits are held until they are released.
    pub(crate) held: bool,
}

impl Charge {
    fn settlement(&self, correction: Correction) -> Settlement {
        Settlement { key: self.key.clone(), entry: self.entry, correction }
    }
}

impl Reservation {
    pub(crate) fn new(charges: Vec<Charge>) -> Option<Self> {
        (!charges.is_empty()).then_some(Reservation { charges })
    }

    /// Returns true if some permits are held and should be released: see [`Limiter::release`](crate::Limiter::release).
    pub fn holds(&self) -> bool {
        self.charges.iter().any(|charge| charge.held)
    }

    /// Returns the keys that were charged, in the order of the checks.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.charges.iter().map(|charge| &charge.key)
    }

    pub(crate) fn settlements(&self, permits: u64) -> Vec<Settlement> {
        self.charges.iter().map(|charge| charge.settlement(Correction::Cost(permits))).collect()
    }

    /// Splits the reservation into the held charges and the rest.
    #[cfg(feature = "tower")]
    pub(crate) fn split_held(self) -> (Option<Self>, Option<Self>) {
        let (held, counted) = self.charges.into_iter().partition(|charge| charge.held);
        (Reservation::new(held), Reservation::new(counted))
    }

    /// Applies the same correction to all held charges.
    pub(crate) fn held_corrections(&self, correction: Correction) -> Vec<Settlement> {
        self.charges.iter().filter(|charge| charge.held).map(|charge| charge.settlement(correction)).collect()
    }
}

/// Prefix of a held charge in the text.
const HELD_PREFIX: char = 'h';

/// Borrowed charge to one key.
pub(crate) struct ChargeRef<'d> {
    pub(crate) key: &'d Key,
    pub(crate) entry: Entry,
    pub(crate) held: bool,
}

impl ChargeRef<'_> {
    pub(crate) fn to_charge(&self) -> Charge {
        Charge { key: self.key.clone(), entry: self.entry, held: self.held }
    }

    /// Appends the charge to `text`.
    pub(crate) fn write(&self, text: &mut String) {
        let ChargeRef { key, entry: Entry { at, seq, cost }, held } = self;
        if *held {
            text.push(HELD_PREFIX);
        }
        let key = key.as_str();
        let mut digits = itoa::Buffer::new();
        for number in [at.get(), *seq, *cost, key.len() as u64] {
            text.push_str(digits.format(number));
            text.push('.');
        }
        text.push_str(key);
    }
}

impl Reservation {
    /// Appends the text of the reservation, without a signature.
    pub(crate) fn write(&self, text: &mut String) {
        for Charge { key, entry, held } in &self.charges {
            ChargeRef { key, entry: *entry, held: *held }.write(text);
        }
    }
}

/// Parses a text without its signature; returns `None` if the text is not a reservation.
///
/// A reservation has at most as many charges as a request may have checks. Each charge has at least one permit and a
/// different key. Signed text must satisfy this, too.
pub(crate) fn read(mut text: &str) -> Option<Reservation> {
    let mut charges = Vec::new();
    while !text.is_empty() {
        let held = text.starts_with(HELD_PREFIX);
        text = text.strip_prefix(HELD_PREFIX).unwrap_or(text);
        let mut numbers = [0u64; 4];
        for number in &mut numbers {
            let (digits, rest) = text.split_once('.')?;
            // Leading zeros are rejected, so that each number has exactly one spelling.
            let leads = digits.len() > 1 && digits.starts_with('0');
            if digits.is_empty() || leads || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            *number = digits.parse().ok()?;
            text = rest;
        }
        let [at, seq, cost, length] = numbers;
        let (key, rest) = text.split_at_checked(usize::try_from(length).ok()?)?;
        if key.is_empty()
            || key.contains(char::is_control)
            || !(1..=MAX_LIMIT).contains(&cost)
            || seq == NEVER_SETTLED
        {
            return None;
        }
        let key = Key::printed(key);
        if charges.len() == MAX_RULES || !has_braces_of_a_key(&key) {
            return None;
        }
        charges.push(Charge { key, entry: Entry { at: Micros::new(at), seq, cost }, held });
        text = rest;
    }
    let mut keys = HashSet::with_capacity(charges.len());
    if !charges.iter().all(|charge| keys.insert(&charge.key)) {
        return None;
    }
    Reservation::new(charges)
}

/// Checks that a key has no braces other than the pair around its tag at the start. With other braces, the sender could
/// choose the Redis slot in which the reservation is settled.
fn has_braces_of_a_key(key: &Key) -> bool {
    let (tag, braces) = (key.tag(), key.as_str().matches(['{', '}']).count());
    braces == if tag.is_some() { 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_through_text() {
        for text in ["1.2.3.1.k", "h1.2.3.1.k", "1.2.3.1.kh1.9.3.2.k21.0.1.6.k\u{e4}se3", "5.0.1.8.{a=b}cde"]
        {
            let mut written = String::new();
            read(text).unwrap().write(&mut written);
            assert_eq!(written, text);
        }
    }

    #[test]
    fn rejects_text_that_is_no_reservation() {
        let too_many = (0..=MAX_RULES).map(|n| format!("1.2.3.5.{n:05}")).collect::<String>();
        assert!(read(&too_many).is_none() && read(&too_many[13..]).is_some());
        for text in [
            "",
            "h",
            "1.2.3.4.",
            "1.2.3.1.kx",
            // Numbers: without digits, with a sign, with a leading zero, too large, and a cost of zero.
            ".2.3.1.k",
            "+1.2.3.1.k",
            "01.2.3.1.k",
            "1.2.3.01.k",
            "1.18446744073709551615.3.1.k",
            "1.18446744073709551616.3.1.k",
            "1.2.1000000000001.1.k",
            "1.2.0.1.k",
            // The same key twice.
            "1.2.3.1.k1.3.3.1.k",
            "1.2.3.1.k4.5.6.1.xh9.9.9.1.k",
            // Braces that would choose a slot.
            "1.2.3.8.{a=b}{c}",
            "1.2.3.8.x{a=b}yz",
            "1.2.3.8.{}abcdef",
            "1.2.3.8.{a=bcdef",
            "1.2.3.8.{a}b}cde",
            "1.2.3.2.k\n",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
