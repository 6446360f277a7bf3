//! Tests holders that die at random: four processes that are killed, and threads that end at any step. Never more than
//! the limit hold permits inside their leases, and permits of dead holders are free again within a lease.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use slidegate::{
    Algorithm, Key, MemoryStore, Quota, Settled, Store,
    redis::{RedisOptions, RedisStore},
    store::{Check, Checks, Correction, Entry, Outcome, Settlement},
};
use slidegate_testkit::{Flavour, RedisServer, until};

use crate::conformance::Rng;

const LIMIT: u64 = 5;
const LEASE: u64 = 300_000;
/// Number of processes or threads at once, and of holders in each.
const LIFETIMES: u64 = 4;
const TASKS: u64 = 6;

fn checks() -> Checks {
    let quota = Quota::new(LIMIT, Duration::from_micros(LEASE)).unwrap();
    let quota = quota.with_algorithm(Algorithm::Concurrency).unwrap();
    Checks::one(Check::new(Key::new("held", []), quota, 1)).unwrap()
}

/// Returns the time and the usage of the store.
async fn look<S: Store>(store: &S) -> (u64, u64) {
    let verdicts = store.admit(&[checks().peek()]).await.unwrap().remove(0);
    (verdicts.at.get(), verdicts.verdicts[0].used)
}

/// Returns the time of an operation, and true if it succeeded.
async fn correct<S: Store>(store: &S, entry: Entry, correction: Correction) -> (u64, bool) {
    let settlement = Settlement { key: Key::new("held", []), entry, correction };
    let receipt = store.settle(&[settlement]).await.unwrap();
    (receipt.at.get(), receipt.settled[0] == Settled::Done)
}

/// Acquires, extends and releases permits, or forgets to release them, in an endless loop. Prints each event at once as
/// `what name instant`: after the event, or before it if the process may die during it.
async fn hold<S: Store>(store: &S, task: &str, seed: u64, say: impl Fn(String)) {
    let mut rng = Rng::new(seed);
    for turn in 0.. {
        let verdicts = store.admit(&[checks()]).await.unwrap().remove(0);
        let entry = verdicts.verdicts[0].entry;
        if verdicts.verdicts[0].outcome != Outcome::Charged {
            say(format!("denied {task} {}", verdicts.at.get()));
            tokio::time::sleep(Duration::from_millis(2 + rng.below(10))).await;
            continue;
        }
        let name = format!("{task}.{turn}");
        say(format!("held {name} {}", verdicts.at.get()));
        let mut held = true;
        for _ in 0..rng.below(8) {
            tokio::time::sleep(Duration::from_millis(rng.below(120))).await;
            let (at, extended) = correct(store, entry, Correction::Extend).await;
            held = extended;
            if !held {
                break;
            }
            say(format!("extended {name} {at}"));
        }
        if !held || rng.below(5) == 0 {
            say(format!("left {name} 0"));
            continue;
        }
        say(format!("releasing {name} 0"));
        let (at, released) = correct(store, entry, Correction::Cost(0)).await;
        say(if released { format!("released {name} {at}") } else { format!("left {name} 0") });
    }
}

#[derive(Default)]
struct Hold {
    from: u64,
    /// Time of the last extension.
    last: u64,
    releasing: bool,
    released: Option<u64>,
    left: bool,
}

impl Hold {
    /// Returns the time until which the permit was surely held. It may have been released at any moment after that.
    fn surely_until(&self) -> u64 {
        match self.released {
            Some(at) => at,
            None if self.releasing => self.last,
            None => self.last + LEASE,
        }
    }

    fn is_over(&self) -> bool {
        self.left || self.released.is_some()
    }
}

/// Times of a process or thread: its start, and an instant at which it was certainly dead.
struct Lifetime {
    started: u64,
    died: u64,
}

/// Events that the holders reported, and their times.
struct Story {
    holds: HashMap<String, Hold>,
    /// Last time at which each task had no permit.
    idle: HashMap<String, u64>,
    lifetimes: Vec<Lifetime>,
    looks: Vec<(u64, u64)>,
}

impl Story {
    fn new(lines: impl Iterator<Item = String>, lifetimes: Vec<Lifetime>, looks: Vec<(u64, u64)>) -> Self {
        let mut story = Story { holds: HashMap::new(), idle: HashMap::new(), lifetimes, looks };
        for line in lines {
            if let [what, name, at] = line.split(' ').collect::<Vec<_>>()[..]
                && let Ok(at) = at.parse()
            {
                story.hear(what, name, at);
            }
        }
        story
    }

    fn hear(&mut self, what: &str, name: &str, at: u64) {
        if what == "denied" {
            self.idle.insert(name.to_owned(), at);
            return;
        }
        let hold = self.holds.entry(name.to_owned()).or_default();
        match what {
            "held" => (hold.from, hold.last) = (at, at),
            "extended" => hold.last = at,
            "releasing" => hold.releasing = true,
            "released" => hold.released = Some(at),
            _ => hold.left = true,
        }
        if hold.is_over() {
            let task = name.rsplit_once('.').unwrap().0;
            self.idle.insert(task.to_owned(), hold.released.unwrap_or(hold.last));
        }
    }

    /// Returns the most permits that were surely held at once.
    fn most(&self) -> i64 {
        let ends = |hold: &Hold| [(hold.from, 1), (hold.surely_until(), -1)];
        let mut changes: Vec<(u64, i64)> = self.holds.values().flat_map(ends).collect();
        // A permit that ends at an instant is free at that instant.
        changes.sort_unstable();
        let sums = changes.iter().scan(0, |now, (_, change)| {
            *now += change;
            Some(*now)
        });
        sums.max().unwrap_or_default()
    }

    /// Periods in which a permit may have been held. After a crash a permit is held for one lease more. A holder that
    /// waited for a permit may have got one that it did not report.
    fn maybe(&self) -> Vec<(u64, u64)> {
        let died =
            |name: &str| self.lifetimes[name.split('.').next().unwrap().parse::<usize>().unwrap()].died;
        let mut spans = Vec::new();
        let mut cut_off = std::collections::HashSet::new();
        for (name, hold) in &self.holds {
            let until = match (hold.released, hold.left) {
                (Some(at), _) => at,
                (None, true) => hold.last + LEASE,
                (None, false) => {
                    cut_off.insert(name.rsplit_once('.').unwrap().0.to_owned());
                    died(name) + LEASE
                }
            };
            spans.push((hold.from, until));
        }
        for (n, lifetime) in self.lifetimes.iter().enumerate() {
            for task in (0..TASKS).map(|task| format!("{n}.{task}")).filter(|task| !cut_off.contains(task)) {
                spans
                    .push((self.idle.get(&task).copied().unwrap_or(lifetime.started), lifetime.died + LEASE));
            }
        }
        spans
    }

    /// Compares the usage of the store with the permits that may have been held.
    fn check(&self, what: &str) {
        let spans = self.maybe();
        let died_lately =
            |at: u64| self.lifetimes.iter().any(|lifetime| lifetime.died <= at && at < lifetime.died + LEASE);
        let mut calm = 0;
        for &(at, used) in &self.looks {
            let most = spans.iter().filter(|(from, until)| (*from..=*until).contains(&at)).count() as u64;
            assert!(used <= most.min(LIMIT), "{used} counted at {at}, when at most {most} can be held");
            calm += u64::from(!died_lately(at));
        }
        let extended = self.holds.values().filter(|hold| hold.last > hold.from).count();
        let most = self.most();
        eprintln!(
            "{what}: {} holds ({extended} of them extended), {} holders killed at random: at most {most} of {LIMIT} at once; \
             {} observations, {calm} of them without a crash for a lease: none counted permits of dead holders",
            self.holds.len(),
            self.lifetimes.len(),
            self.looks.len()
        );
        assert_eq!(most, LIMIT as i64, "the limit is reached and never exceeded");
        assert!(self.holds.len() > 40 && extended > 20 && calm > 50);
    }
}

/// Observes usage until it is stopped.
async fn watch<S: Store>(store: &S, stop: &AtomicBool) -> Vec<(u64, u64)> {
    let mut looks = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        looks.push(look(store).await);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    looks
}

/// One lease after the last death, by the clock of the store, all permits are free again.
async fn all_back<S: Store>(store: &S, dead: u64) {
    until("a lease has passed", async || look(store).await.0 >= dead + LEASE).await;
    let check = Check { cost: LIMIT, ..checks().as_slice()[0].clone() };
    let verdicts = store.admit(&[Checks::one(check).unwrap()]).await.unwrap().remove(0);
    assert_eq!(verdicts.verdicts[0].outcome, Outcome::Charged, "{verdicts:?}");
}

/// Duration of the run, from `HOLDERS_SECONDS`.
fn seconds() -> u64 {
    std::env::var("HOLDERS_SECONDS").map_or(6, |text| text.parse().unwrap())
}

/// Starts and ends processes or threads at random with `start` and `end`, while a thread observes usage.
fn live<S: Store + Sync, L>(
    store: &S,
    start: impl Fn(usize) -> L,
    end: impl Fn(L),
) -> (Vec<Lifetime>, Vec<(u64, u64)>) {
    let stop = AtomicBool::new(false);
    // All threads share one runtime, so that a connection outlives the thread that opened it.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut rng = Rng::new(11);
    let now = || runtime.block_on(look(store)).0;
    // Reads the time twice: the first answer may overtake a call that the dead process had sent, the second cannot.
    let after_death = || now().max(now());
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| runtime.block_on(watch(store, &stop)));
        let mut lifetimes = Vec::new();
        let begin = |lifetimes: &mut Vec<Lifetime>| {
            let n = lifetimes.len();
            lifetimes.push(Lifetime { started: now(), died: u64::MAX });
            (n, start(n))
        };
        let mut living: Vec<_> = (0..LIFETIMES).map(|_| begin(&mut lifetimes)).collect();
        let begun = now();
        while now() < begun + seconds() * 1_000_000 {
            std::thread::sleep(Duration::from_millis(60 + rng.below(700)));
            let (n, victim) = living.swap_remove(rng.below(LIFETIMES) as usize);
            end(victim);
            lifetimes[n].died = after_death();
            living.push(begin(&mut lifetimes));
        }
        for (n, last) in living {
            end(last);
            lifetimes[n].died = after_death();
        }
        let dead = after_death();
        stop.store(true, Ordering::Relaxed);
        let looks = watcher.join().unwrap();
        runtime.block_on(all_back(store, dead));
        (lifetimes, looks)
    })
}

fn patient(url: &str) -> RedisStore {
    let patience = Duration::from_secs(20);
    let options = RedisOptions { response_timeout: patience, max_wait: patience, ..RedisOptions::new(url) };
    RedisStore::with_options(&options).unwrap()
}

/// Not a test by itself: the code of each process, until it is killed.
#[tokio::test]
#[ignore = "started by the test below"]
async fn holder_process() {
    let Ok(task) = std::env::var("SLIDEGATE_HOLDER") else { return };
    let (url, lifetime) = task.split_once(' ').unwrap();
    let store = patient(url);
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        out.write_all(format!("\n{line}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    };
    let seed: u64 = lifetime.parse().unwrap();
    let tasks = (0..TASKS).map(|n| {
        let (store, task) = (store.clone(), format!("{lifetime}.{n}"));
        tokio::spawn(async move { hold(&store, &task, seed * 100 + n + 1, say).await })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Starts a process whose holders report their steps to `lines`.
fn start_process(url: &str, lifetime: usize, lines: &mpsc::Sender<String>) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder_crashes::holder_process", "--ignored", "--nocapture"])
        .env("SLIDEGATE_HOLDER", format!("{url} {lifetime}"))
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

#[test]
fn killed_processes_free_their_permits_within_a_lease() {
    let server = RedisServer::start(Flavour::Redis7);
    let (sender, lines) = mpsc::channel();
    let start = |lifetime| start_process(&server.url(), lifetime, &sender);
    let kill = |mut child: Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let (lifetimes, looks) = live(&patient(&server.url()), start, kill);
    drop(sender);
    Story::new(lines.into_iter(), lifetimes, looks).check("four processes on Redis");
}

/// In memory a holder dies with its thread, at any step, and releases nothing.
#[test]
fn dead_threads_free_their_permits_within_a_lease() {
    let store = MemoryStore::new();
    let (sender, lines) = mpsc::channel();
    let start = |lifetime: usize| {
        let (store, sender) = (store.clone(), sender.clone());
        let (dies, dead) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let mut holders = tokio::task::JoinSet::new();
                for n in 0..TASKS {
                    let (store, sender, task) = (store.clone(), sender.clone(), format!("{lifetime}.{n}"));
                    holders.spawn(async move {
                        let say = |line| sender.send(line).unwrap();
                        hold(&store, &task, lifetime as u64 * 100 + n + 1, say).await;
                    });
                }
                let _ = dead.await;
            });
        });
        (dies, thread)
    };
    let end = |(dies, thread): (tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)| {
        dies.send(()).unwrap();
        thread.join().unwrap();
    };
    let (lifetimes, looks) = live(&store, start, end);
    drop(sender);
    Story::new(lines.into_iter(), lifetimes, looks).check("four threads in memory");
}
