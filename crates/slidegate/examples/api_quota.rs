//! An API quota: a hundred requests per minute for each key, more for paying customers, with rate-limit headers.
//!
//! `cargo run -p slidegate --example api_quota`

use slidegate::{Error, Limiter, MemoryStore, Request, Rules};

const RULES: &str = "
rules:
  - name: api-quota
    match: { api: '/v1/*' }
    key: [api-key]
    limit: 100
    window: 1m
    overrides:
      - { key: { api-key: gold }, limit: 1000 }
";

#[tokio::main]
async fn main() -> Result<(), Error> {
    let limiter = Limiter::new(MemoryStore::new(), Rules::from_yaml(RULES)?);
    for key in ["free", "gold"] {
        let mut allowed = 0;
        let denied = loop {
            let request = Request::new([("api", "/v1/search"), ("api-key", key)]);
            let decision = limiter.acquire(request).await?;
            if !decision.allowed() {
                break decision;
            }
            allowed += 1;
        };
        println!("{key}: {allowed} requests, then wait {} s", denied.retry_after().ceil_secs());
    }
    Ok(())
}
