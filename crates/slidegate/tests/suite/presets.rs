//! Tests the files in `examples/rules`: each limits as its comments say, over a short time.

use slidegate::{Decision, Limiter, ManualClock, MemoryStore, Micros, Request, Rules};

struct Preset {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>>,
}

impl Preset {
    fn new(file: &str) -> Self {
        // Start of a day.
        let clock = ManualClock::at(Micros::from_secs(20_000 * 24 * 3600));
        let store = MemoryStore::with_clock(clock.clone(), 100_000);
        Preset { clock, limiter: Limiter::new(store, Rules::from_yaml(file).unwrap()) }
    }

    async fn acquire<const N: usize>(&self, attributes: [(&str, &str); N]) -> Decision {
        self.limiter.acquire(Request::new(attributes)).await.unwrap()
    }

    /// Sends requests and returns the number of allowed ones.
    async fn allowed<const N: usize>(&self, times: usize, attributes: [(&str, &str); N]) -> usize {
        let mut allowed = 0;
        for _ in 0..times {
            allowed += usize::from(self.acquire(attributes).await.allowed());
        }
        allowed
    }

    fn pass(&self, millis: u64) {
        self.clock.advance(Micros::from_millis(millis));
    }
}

#[tokio::test]
async fn flash_sale() {
    let sale = Preset::new(include_str!("../../../../examples/rules/flash-sale.yaml"));
    // Each second 2,000 buyers try once: 20, 50, 80, then 100 are allowed.
    let mut seconds = Vec::new();
    let mut buyer = 0;
    for _ in 0..5 {
        let mut sold = 0;
        for _ in 0..200 {
            for _ in 0..10 {
                buyer += 1;
                let user = buyer.to_string();
                sold += usize::from(
                    sale.acquire([("api", "/buy"), ("item", "tv"), ("user", &user)]).await.allowed(),
                );
            }
            sale.pass(5);
        }
        seconds.push(sold);
    }
    assert_eq!(seconds, [20, 50, 80, 100, 100]);

    // A buyer who clicks without pause stays denied. Each item has its own limit.
    let eager = [("api", "/buy"), ("item", "phone"), ("user", "eager")];
    let mut allowed = 0;
    for _ in 0..100 {
        allowed += usize::from(sale.acquire(eager).await.allowed());
        sale.pass(100);
    }
    assert_eq!(allowed, 3);
    assert_eq!(sale.acquire(eager).await.code(), 42901);
    sale.pass(5_000);
    assert!(sale.acquire(eager).await.allowed());

    // Each user may have one payment at a time, and all users fifty. A finished payment frees a permit.
    let pay = async |user: usize| sale.acquire([("api", "/pay"), ("user", &user.to_string())]).await;
    let first = pay(0).await;
    assert_eq!(pay(0).await.code(), 42904);
    for user in 1..50 {
        assert!(pay(user).await.allowed());
    }
    assert_eq!(pay(50).await.code(), 42903);
    sale.limiter.release(&first.reservation().unwrap()).await.unwrap();
    assert!(pay(50).await.allowed());
    // Permits of clients that died are free when their lease ends.
    sale.pass(30_000);
    for user in 100..150 {
        assert!(pay(user).await.allowed());
    }
}

#[tokio::test]
async fn api_quota() {
    let api = Preset::new(include_str!("../../../../examples/rules/api-quota.yaml"));
    let client = |name| [("client", name)];
    // A client gets a burst, then the rate. After a pause it gets the burst again.
    assert_eq!(api.allowed(100, client("acme")).await, 30);
    api.pass(1_000);
    assert_eq!(api.allowed(100, client("acme")).await, 10);
    api.pass(60_000);
    assert_eq!(api.allowed(100, client("acme")).await, 30);
    assert_eq!(api.allowed(1_000, client("pro")).await, 500);
    assert_eq!(api.allowed(1_000, client("trial")).await, 5);
    // Each address has a limit too, for all its clients together.
    let from = |ip, client| [("ip", ip), ("client", client)];
    assert_eq!(api.allowed(100, from("192.0.2.1", "pro")).await, 0, "its own bucket is empty");
    assert_eq!(api.allowed(100, [("ip", "192.0.2.1")]).await, 40);
    assert_eq!(api.allowed(2_000, [("ip", "10.0.0.1")]).await, 1_000);
    // A trial client gets a hundred requests a day, and again the next day.
    let mut trial = 5;
    for _ in 0..200 {
        api.pass(5_000);
        trial += api.allowed(10, client("trial")).await;
    }
    assert_eq!(trial, 100);
    let denied = api.acquire(client("trial")).await;
    assert_eq!(denied.denied_by(), Some("quota-per-day"));
    api.clock.advance(denied.retry_after());
    assert_eq!(api.allowed(10, client("trial")).await, 5);
}

#[tokio::test]
async fn behaviour_guard() {
    let behaviour = Preset::new(include_str!("../../../../examples/rules/behaviour-guard.yaml"));
    // One address tries a password a second for many users: three tries are allowed, and then none until it stops.
    let mut allowed = 0;
    for n in 0..60 {
        let user = n.to_string();
        let login = [("api", "/login"), ("ip", "192.0.2.1"), ("user", user.as_str())];
        allowed += usize::from(behaviour.acquire(login).await.allowed());
        behaviour.pass(1_000);
    }
    assert_eq!(allowed, 3);
    // Many addresses try passwords of one user.
    let mut codes = Vec::new();
    for n in 0..7 {
        let ip = format!("192.0.2.{}", 100 + n);
        codes.push(behaviour.acquire([("api", "/login"), ("ip", &ip), ("user", "alice")]).await.code());
    }
    assert_eq!(codes, [0, 0, 0, 0, 0, 10008, 10008]);
    // A user may read six hundred items in any ten minutes.
    let read = |user| [("api", "/items/1"), ("user", user)];
    assert_eq!(behaviour.allowed(1_000, read("scraper")).await, 600);
    assert_eq!(behaviour.acquire(read("scraper")).await.code(), 10009);
    assert_eq!(behaviour.allowed(1, read("reader")).await, 1);
    behaviour.pass(631_000);
    assert_eq!(behaviour.allowed(1_000, read("scraper")).await, 600);
    // This rule is a shadow, so it denies nothing.
    let post = [("api", "/comments"), ("user", "bob")];
    assert_eq!(behaviour.allowed(50, post).await, 50);
    assert!(behaviour.acquire(post).await.limits().next().unwrap().outcome().denies());
}
