//! A flash sale: all buyers arrive at once, and the shop accepts exactly 100 orders per second.
//!
//! `cargo run -p slidegate --example flash_sale`

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Error, Limiter, Quota, Request, Rule, Rules};

#[tokio::main]
async fn main() -> Result<(), Error> {
    // Two rules, all or nothing: the shop as a whole, and one order per buyer.
    let rules = Rules::new([
        Rule::new("orders", Quota::per_second(100)?)?,
        Rule::new("one-each", Quota::new(1, Duration::from_secs(600))?)?.per(["buyer"])?,
    ])?;
    let limiter = Arc::new(Limiter::new(slidegate::MemoryStore::new(), rules));

    // Five hundred buyers press the button, each twice.
    let buyers = (0..500).map(|n| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            let buyer = format!("buyer{n}");
            let request = Request::new([("buyer", buyer.as_str())]);
            let first = limiter.acquire(&request).await?;
            let second = limiter.acquire(&request).await?;
            Ok::<_, Error>([first, second])
        })
    });
    let (mut sold, mut sold_out, mut twice) = (0, 0, 0);
    for buyer in buyers.collect::<Vec<_>>() {
        let decisions = buyer.await.map_err(|error| Error::unavailable(error.to_string()))??;
        for decision in decisions {
            match decision.denied_by() {
                None => sold += 1,
                Some("orders") => sold_out += 1,
                Some(_) => twice += 1,
            }
        }
    }
    println!(
        "sold {sold}, denied {sold_out} because the shop was full, {twice} because they had one already"
    );
    Ok(())
}
