//! A login guard by address and by user. Denied attempts count too, so retrying faster does not help. An address over its
//! limit does not affect the count of the user.
//!
//! `cargo run -p slidegate --example login_guard`

use slidegate::{Error, Limiter, ManualClock, MemoryStore, Micros, Request, Rules};

const RULES: &str = "
rules:
  - { name: login-per-ip, match: { api: /login }, key: [ip], limit: 3, window: 5s, count: attempts, code: 10007 }
  - { name: login-per-user, match: { api: /login }, key: [user], limit: 5, window: 60s, count: attempts, code: 10008 }
";

#[tokio::main]
async fn main() -> Result<(), Error> {
    // A manual clock, to show a minute at once.
    let clock = ManualClock::at(Micros::from_secs(1_000_000));
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone(), 1_000), Rules::from_yaml(RULES)?);
    let tries = [
        (0, "6.6.6.6"),
        (1, "6.6.6.6"),
        (1, "6.6.6.6"),
        (1, "6.6.6.6"),
        (2, "7.7.7.7"),
        (1, "7.7.7.7"),
        (1, "7.7.7.7"),
    ];
    let mut second = 0;
    for (wait, ip) in tries {
        clock.advance(Micros::from_secs(wait));
        second += wait;
        let decision =
            limiter.acquire(Request::new([("api", "/login"), ("ip", ip), ("user", "alice")])).await?;
        match decision.denied_by() {
            None => println!("{second:>2} s  {ip}  may try"),
            Some(rule) => {
                let (code, wait) = (decision.code(), decision.retry_after());
                println!("{second:>2} s  {ip}  denied by {rule} ({code}), again in {wait}");
            }
        }
    }
    Ok(())
}
