//! A limit for each user inside one program, without rules and futures.
//!
//! `cargo run -p slidegate --example keyed_limiter`

use slidegate::{KeyedLimiter, Quota};

fn main() -> Result<(), slidegate::Error> {
    let limiter: KeyedLimiter<String> = KeyedLimiter::new(Quota::per_minute(3)?);
    for request in 1..=4 {
        match limiter.check("alice") {
            Ok(allowed) => println!("request {request}: allowed, {} left", allowed.remaining()),
            Err(denied) => {
                println!("request {request}: denied, retry in {} s", denied.retry_after().ceil_secs())
            }
        }
    }
    if let Ok(reserved) = limiter.check_n("bob", 3) {
        // … the work took one permit, not three
        limiter.settle("bob", &reserved, 1);
    }
    println!("bob has {} permits left", limiter.peek("bob", 1).map_or(0, |peek| peek.remaining()));
    limiter.retain_recent();
    println!("{} keys in use", limiter.len());
    Ok(())
}
