//! Permits that are held: never more than the limit, given back, extended, and back by themselves when whoever held
//! them has died.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use slidegate::{
    Algorithm, Ask, Check, Correction, Decision, Entry, Key, Limiter, ManualClock, MemoryStore, Micros,
    Outcome, Quota, RedisOptions, RedisStore, Request, Reservation, Rules, Settled, Settlement, Store,
};

use crate::conformance::Dice;
use crate::processes::TURN;
use crate::redis_server::{Flavour, Server};

const RULES: &str = "
rules:
  - { name: calls,   key: [user], limit: 10, window: 1m }
  - { name: at-once, key: [user], limit: 2, window: 30s, algorithm: concurrency }
";

fn limiter(clock: &ManualClock) -> Limiter<MemoryStore<ManualClock>> {
    Limiter::new(MemoryStore::with_clock(clock.clone(), 100), Rules::from_yaml(RULES).unwrap())
}

fn alice() -> Request<'static> {
    Request::new([("user", "alice")])
}

fn used(decision: &Decision) -> Vec<u64> {
    decision.limits().map(|limit| limit.used()).collect()
}

#[tokio::test]
async fn two_at_once_and_the_third_when_one_is_done() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter = limiter(&clock);
    let first = limiter.acquire(alice()).await.unwrap();
    let second = limiter.acquire(alice()).await.unwrap();
    assert!(first.holds() && second.holds());
    let third = limiter.acquire(alice()).await.unwrap();
    assert_eq!((third.allowed(), third.denied_by(), third.holds()), (false, Some("at-once"), false));
    // Unless one is given back, a place is free when the first has been held for its time.
    assert_eq!(third.retry_after(), Micros::from_secs(30));

    let first = first.reservation().unwrap();
    assert_eq!(limiter.release(&first).await.unwrap(), Settled::Done);
    assert_eq!(limiter.release(&first).await.unwrap(), Settled::Already);
    let third = limiter.acquire(alice()).await.unwrap();
    assert!(third.allowed());
    assert_eq!(used(&third), [3, 2], "what was called stays called");

    // A refund gives back both.
    assert_eq!(limiter.settle(&third.reservation().unwrap(), 0).await.unwrap(), Settled::Done);
    assert_eq!(used(&limiter.peek(alice()).await.unwrap()), [2, 1]);
}

#[tokio::test]
async fn who_says_that_he_is_alive_keeps_his_place_and_who_does_not_loses_it() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter = limiter(&clock);
    let alive = limiter.acquire(alice()).await.unwrap().reservation().unwrap();
    let dead = limiter.acquire(alice()).await.unwrap().reservation().unwrap();
    for _ in 0..10 {
        clock.advance(Micros::from_secs(20));
        assert_eq!(limiter.extend(&alive).await.unwrap(), Settled::Done);
    }
    assert_eq!(used(&limiter.peek(alice()).await.unwrap())[1], 1, "the dead one's is back");
    assert_eq!(limiter.extend(&dead).await.unwrap(), Settled::Gone);
    assert_eq!(limiter.release(&dead).await.unwrap(), Settled::Gone);
    // By the name that it was given at first.
    assert_eq!(limiter.release(&alive).await.unwrap(), Settled::Done);
    assert_eq!(limiter.extend(&alive).await.unwrap(), Settled::Already);
    assert_eq!(used(&limiter.peek(alice()).await.unwrap())[1], 0);
}

#[tokio::test]
async fn a_reservation_says_as_text_what_is_held() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter = limiter(&clock);
    let text = limiter.acquire(alice()).await.unwrap().reservation().unwrap().to_string();
    let read: Reservation = text.parse().unwrap();
    assert!(read.holds());
    assert_eq!(read.to_string(), text);
    assert_eq!(limiter.extend(&read).await.unwrap(), Settled::Done);
    assert_eq!(limiter.release(&read).await.unwrap(), Settled::Done);
    // Where nothing is held there is nothing to give back.
    let plain = Limiter::per_minute(5).unwrap();
    let plain_text = plain.acquire("alice").await.unwrap().reservation().unwrap();
    assert!(!plain_text.holds());
    assert_eq!(plain.release(&plain_text).await.unwrap(), Settled::Gone);
    assert_eq!(plain.extend(&plain_text).await.unwrap(), Settled::Gone);
}

/// Memory does not grow with how often something is extended.
#[tokio::test]
async fn an_extension_leaves_nothing_behind() {
    let clock = ManualClock::at(Micros::from_secs(1_000));
    let limiter = limiter(&clock);
    let held = limiter.acquire(alice()).await.unwrap().reservation().unwrap();
    let extend = async |times: usize| {
        for _ in 0..times {
            clock.advance(Micros::from_millis(1));
            assert_eq!(limiter.extend(&held).await.unwrap(), Settled::Done);
        }
        limiter.store().stats().bytes
    };
    let (few, many) = (extend(100).await, extend(20_000).await);
    assert!(many <= few + 4_096, "{few} bytes after a hundred, {many} after twenty thousand");
}

const HOLDERS: u64 = 5;
const LEASE: u64 = 300_000;
const PROCESSES: u64 = 4;
const TASKS: u64 = 6;

fn quota() -> Quota {
    let quota = Quota::new(HOLDERS, Duration::from_micros(LEASE)).unwrap();
    quota.with_algorithm(Algorithm::Concurrency).unwrap()
}

fn key() -> Key {
    Key::new("held", [])
}

async fn acquire(store: &RedisStore) -> Option<(Micros, Entry)> {
    let ask = Ask::one(Check::new(key(), quota(), 1)).unwrap();
    let reading = store.admit(&[ask]).await.unwrap().remove(0);
    let verdict = reading.verdicts[0];
    (verdict.outcome == Outcome::Charged).then_some((reading.at, verdict.entry))
}

async fn correct(store: &RedisStore, entry: Entry, correction: Correction) -> (Micros, Settled) {
    let receipt = store.settle(&[Settlement { key: key(), entry, correction }]).await.unwrap();
    (receipt.at, receipt.settled[0])
}

fn patient(url: &str) -> RedisStore {
    let patience = Duration::from_secs(20);
    let options = RedisOptions { response_timeout: patience, max_wait: patience, ..RedisOptions::new(url) };
    RedisStore::with_options(&options).unwrap()
}

fn say(line: String) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Not a test by itself: holders, until they are killed. Each line is said at once: `name instant`, after it happened,
/// or before if it may be the last that is heard.
#[tokio::test]
#[ignore = "started by the test below"]
async fn holder() {
    let Ok(task) = std::env::var("SLIDEGATE_HOLDER") else { return };
    let (url, process) = task.split_once(' ').unwrap();
    let store = patient(url);
    store.ping().await.unwrap();
    let tasks = (0..TASKS).map(|n| {
        let (store, name) = (store.clone(), format!("{process}.{n}"));
        let seed = process.parse::<u64>().unwrap() * 100 + n + 1;
        tokio::spawn(async move {
            let mut dice = Dice::new(seed);
            for turn in 0.. {
                let Some((at, entry)) = acquire(&store).await else {
                    tokio::time::sleep(Duration::from_millis(2 + dice.below(10))).await;
                    continue;
                };
                let hold = format!("{name}.{turn}");
                say(format!("held {hold} {}", at.get()));
                let mut lost = false;
                for _ in 0..dice.below(8) {
                    tokio::time::sleep(Duration::from_millis(dice.below(120))).await;
                    let (at, settled) = correct(&store, entry, Correction::Extend).await;
                    lost = settled != Settled::Done;
                    if lost {
                        break;
                    }
                    say(format!("extended {hold} {}", at.get()));
                }
                if lost || dice.below(5) == 0 {
                    // Forgets to give it back.
                    say(format!("left {hold} 0"));
                    continue;
                }
                say(format!("releasing {hold} 0"));
                let (at, settled) = correct(&store, entry, Correction::Cost(0)).await;
                if settled == Settled::Done {
                    say(format!("released {hold} {}", at.get()));
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// From when to when a permit was surely held.
#[derive(Default)]
struct Hold {
    from: u64,
    last: u64,
    releasing: bool,
    released: Option<u64>,
}

impl Hold {
    fn hear(&mut self, what: &str, at: u64) {
        match what {
            "held" => (self.from, self.last) = (at, at),
            "extended" => self.last = at,
            "releasing" => self.releasing = true,
            "released" => self.released = Some(at),
            _ => {}
        }
    }

    fn until(&self) -> u64 {
        match self.released {
            Some(at) => at,
            // It may have been given back at any moment.
            None if self.releasing => self.last,
            None => self.last + LEASE,
        }
    }
}

/// Starts a process that says on `lines` what its holders do.
fn start(url: &str, process: u64, lines: &mpsc::Sender<String>) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds::holder", "--ignored", "--nocapture"])
        .env("SLIDEGATE_HOLDER", format!("{url} {process}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (out, lines) = (child.stdout.take().unwrap(), lines.clone());
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
    child
}

/// Four processes whose holders extend, give back, forget to, and are killed at random. `SLIDEGATE_SOAK` is for how
/// many seconds.
#[test]
fn holders_that_are_killed() {
    let _turn = TURN.blocking_lock();
    let seconds: u64 = std::env::var("SLIDEGATE_SOAK").map_or(8, |text| text.parse().unwrap());
    let server = Server::start(Flavour::Redis7);
    let (sender, lines) = mpsc::channel();
    let mut dice = Dice::new(11);
    let mut children: Vec<Child> = Vec::new();
    let mut names = 0..;
    let mut next = || start(&server.url(), names.next().unwrap(), &sender);
    children.extend((0..PROCESSES).map(|_| next()));
    let mut kills = 0;
    for _ in 0..seconds * 4 {
        std::thread::sleep(Duration::from_millis(250));
        let victim = dice.below(PROCESSES) as usize;
        children[victim].kill().unwrap();
        children[victim].wait().unwrap();
        children[victim] = next();
        kills += 1;
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Nobody is left: every permit is back when its time has run out, and no later.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (back, dead) = runtime.block_on(async {
        let store = patient(&server.url());
        let ask = Ask::one(Check::new(key(), quota(), 1)).unwrap().peek();
        let dead = store.admit(&[ask]).await.unwrap()[0].at;
        let mut granted = 0;
        loop {
            match acquire(&store).await {
                Some((at, _)) => {
                    granted += 1;
                    if granted == HOLDERS {
                        break (at.since(dead), dead);
                    }
                }
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    });
    drop(sender);
    let mut holds = std::collections::HashMap::<String, Hold>::new();
    for line in lines {
        if let [what, name, at] = line.split(' ').collect::<Vec<_>>()[..]
            && let Ok(at) = at.parse()
        {
            holds.entry(name.to_owned()).or_default().hear(what, at);
        }
    }
    let mut changes: Vec<(u64, i64)> = holds
        .values()
        .filter(|hold| hold.from > 0)
        .flat_map(|hold| [(hold.from, 1), (hold.until().min(dead.get()), -1)])
        .collect();
    // What ends at an instant makes room at it.
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    let extended = holds.values().filter(|hold| hold.last > hold.from).count();
    eprintln!(
        "{} holds in {seconds} s ({extended} of them extended) while {kills} processes were killed: at most {most} of \
         {HOLDERS} at once; the last permits were back {back} after their holders died, held for {}",
        holds.len(),
        Micros::new(LEASE)
    );
    assert!(most <= HOLDERS as i64, "{most} held at once");
    assert_eq!(most, HOLDERS as i64, "the limit is also reached");
    // The peek came after the last of them died; what was extended just before is held for its time from then.
    assert!(back <= Micros::new(LEASE), "back only after {back}");
    assert!(holds.len() > 100 && extended > 20);
}
