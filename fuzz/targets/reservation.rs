//! Reservations from strangers: printed and read again the same, and never in a slot that the
//! sender chose.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate::{MAX_RESERVATION, Reservation};
use slidegate_fuzz::{bounded, told};

fuzz_target!(|text: &str| {
    let parsed = bounded(text.len(), 1 << 16, 64, || text.parse::<Reservation>());
    let reservation = match parsed {
        Ok(reservation) => reservation,
        Err(error) => return told(&error.to_string()),
    };
    let printed = reservation.to_string();
    assert!(printed.len() <= text.len() && text.len() <= MAX_RESERVATION);
    told(&printed);
    for key in slidegate::fuzzing::keys(&reservation) {
        let (hashed, said) = slidegate::fuzzing::hashed(&key);
        assert_eq!(hashed, said);
    }
    assert_eq!(printed.parse(), Ok(reservation));
});
