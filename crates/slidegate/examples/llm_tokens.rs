//! Tokens of a language model: the cost of an answer is unknown before it is written. So reserve an estimate, and settle the
//! actual cost. The excess is available to the next request at once.
//!
//! `cargo run -p slidegate --example llm_tokens`

use slidegate::{Error, Limiter, Quota, Request, RequestId};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let limiter = Limiter::per_key(Quota::per_minute(10_000)?)?;
    // (estimate, actual cost)
    for (n, (estimate, real)) in
        [(4_000, 1_200), (4_000, 3_900), (4_000, 4_400), (4_000, 800)].into_iter().enumerate()
    {
        // With an id, a retry after a lost reply is not charged twice.
        let id = RequestId::new(&format!("prompt-{n}"))?;
        let decision = limiter.acquire(Request::from("alice").permits(estimate).id(id)).await?;
        let Some(reservation) = decision.reservation() else {
            println!("prompt {n}: denied, again in {}", decision.retry_after());
            continue;
        };
        limiter.settle(&reservation, real).await?;
        let now = limiter.peek("alice").await?;
        let used = now.limits().map(|limit| limit.used()).next().unwrap_or_default();
        println!("prompt {n}: reserved {estimate}, took {real}; {used} of 10000 used");
    }
    Ok(())
}
