//! Reservations from untrusted input: unsigned text is rejected. Text without a signature is the same after parsing and
//! printing, and never chooses a slot. Signed text verifies, and altered text does not.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use slidegate::fuzzing::{hashed, keys, printed, unsigned};
use slidegate::{bounds::MAX_RESERVATION, Limiter, ReservationKey};
use slidegate_fuzz::{assert_plain_line, bounded};

static LIMITER: LazyLock<Limiter> = LazyLock::new(|| Limiter::per_second(1).expect("a limiter"));
static OTHER: LazyLock<Limiter> = LazyLock::new(|| {
    Limiter::per_second(1).expect("a limiter").with_reservation_keys(ReservationKey::random())
});

fuzz_target!(|text: &str| {
    match bounded(text.len(), 1 << 16, 64, || LIMITER.verify(text)) {
        Ok(reservation) => panic!("no key has signed {reservation:?}"),
        Err(error) => assert_plain_line(&error.to_string()),
    }
    let Some(reservation) = bounded(text.len(), 1 << 16, 64, || unsigned(text)) else { return };
    assert_eq!(printed(&reservation), text, "one text for one reservation");
    assert_plain_line(text);
    for key in keys(&reservation) {
        let (hashed, expected) = hashed(&key);
        assert_eq!(hashed, expected);
    }
    let signed = LIMITER.sign(&reservation);
    let verified = LIMITER.verify(&signed);
    if signed.len() > MAX_RESERVATION {
        assert!(verified.is_err());
        return;
    }
    assert_eq!(verified, Ok(reservation));
    assert!(OTHER.verify(&signed).is_err());
    // Alters every byte of the signature, and some bytes of the text.
    let step = (text.len() / 16).max(1);
    for place in (0..text.len()).step_by(step).chain(text.len()..signed.len()) {
        let mut altered = signed.clone().into_bytes();
        altered[place] ^= 1 << (place % 5);
        if let Ok(altered) = String::from_utf8(altered) {
            assert!(LIMITER.verify(&altered).is_err(), "{altered}");
        }
    }
});
