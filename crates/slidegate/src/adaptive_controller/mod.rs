//! Controller of adaptive limits: one step per second for every adaptive rule.
#[cfg(feature = "redis")]
pub(crate) mod cluster_sync;

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(feature = "redis")]
use self::cluster_sync::{Factors, Fleet, Heard};
#[cfg(feature = "redis")]
use crate::RedisStore;
use crate::dynamic::adaptive::load::{NodeLoad, together};
use crate::dynamic::adaptive::{Adaptive, AdaptivePolicy, AdaptiveState, HostLoad};
use crate::{Clock, Error, Limiter, Micros, Rules, Store, SystemClock};

/// Interval between the steps of [`AdaptiveController::run`].
const EVERY: Micros = Micros::from_secs(1);

/// Adjusts the limits of the adaptive rules of a [`Limiter`]. Without a controller no limit adapts.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use slidegate::{AdaptiveController, HostLoad, Limiter, MemoryStore, Rules};
///
/// let rules = Rules::from_yaml("rules: [{ name: orders, limit: 200, window: 1s, adaptive: {} }]")?;
/// let limiter = Limiter::new(MemoryStore::new(), rules);
/// let mut adapter = AdaptiveController::alone();
/// // Once a second, or let `run` do it; the feature `host` has one that looks:
/// adapter.step(&limiter, HostLoad { cpu: Some(3_000), memory: Some(7_000) }).await?;
/// assert_eq!(limiter.rules().iter().next().unwrap().factor(), Some(10_129)); // on its way to 120 %
/// # Ok::<(), slidegate::Error>(()) }).unwrap();
/// ```
pub struct AdaptiveController {
    #[cfg(feature = "redis")]
    fleet: Option<Arc<Fleet>>,
    pilots: HashMap<String, (Adaptive, AdaptivePolicy)>,
    clock: Arc<dyn Clock>,
    /// Instant of the last step.
    last: Option<Micros>,
}

impl AdaptiveController {
    /// Creates a controller that uses only the load of this process.
    pub fn alone() -> Self {
        AdaptiveController {
            #[cfg(feature = "redis")]
            fleet: None,
            pilots: HashMap::new(),
            clock: Arc::new(SystemClock::new()),
            last: None,
        }
    }

    /// Creates a controller that uses the load of all processes with a controller on this Redis. All of them apply the same
    /// factors, about a second later than a process on its own. While Redis is unavailable, each process continues on its own.
    #[cfg(feature = "redis")]
    pub fn shared(store: RedisStore) -> Self {
        AdaptiveController { fleet: Some(Arc::new(Fleet::new(store))), ..Self::alone() }
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Takes one step per second, as long as the future is polled. `look` returns the load of the host: `Host::load`, or
    /// `HostLoad::default` for none.
    pub async fn run<S: Store>(mut self, limiter: Arc<Limiter<S>>, mut look: impl FnMut() -> HostLoad) {
        loop {
            self.clock.sleep(EVERY).await;
            // Errors are ignored here. A caller that needs them calls `step` itself.
            let _ = self.step(&limiter, look()).await;
        }
    }

    /// Takes one step: reads the reports since the last step, and applies the factors. An error means that the store could not
    /// deliver the messages of the other processes; the step then used only the load of this process.
    pub async fn step<S: Store>(&mut self, limiter: &Limiter<S>, host: HostLoad) -> Result<(), Error> {
        let now = self.clock.now();
        let elapsed = self.last.replace(now).map_or(EVERY, |last| now.since(last));
        let rules = limiter.rules();
        self.keep(&rules);
        if self.pilots.is_empty() {
            return Ok(());
        }
        let reports = adapting(&rules).map(|(name, adapting)| (name.to_owned(), adapting.gauge.take()));
        let own = NodeLoad { host, reports: reports.filter(|(_, reports)| reports.count > 0).collect() };
        #[cfg(feature = "redis")]
        if let Some(fleet) = self.fleet.clone() {
            return match fleet.exchange(&own).await {
                Ok(heard) => self.step_together(&rules, &fleet, heard, elapsed).await,
                Err(error) => {
                    self.step_alone(&rules, own, elapsed);
                    Err(error)
                }
            };
        }
        self.step_alone(&rules, own, elapsed);
        Ok(())
    }

    /// Keeps one policy per adaptive rule. If the settings of a rule have changed, its policy restarts at the present factor.
    fn keep(&mut self, rules: &Rules) {
        let mut before = std::mem::take(&mut self.pilots);
        for (name, AdaptiveState { terms, gauge }) in adapting(rules) {
            let known = before.remove(name).filter(|(known, _)| known == terms);
            let pilot = known.map_or_else(|| AdaptivePolicy::new(gauge.factor()), |(_, pilot)| pilot);
            self.pilots.insert(name.to_owned(), (terms.clone(), pilot));
        }
    }

    fn step_alone(&mut self, rules: &Rules, own: NodeLoad, elapsed: Micros) {
        let loads = [own];
        for (name, AdaptiveState { terms, gauge }) in adapting(rules) {
            let Some((_, pilot)) = self.pilots.get_mut(name) else { continue };
            let factor = pilot.step(terms, elapsed, &together(&loads, name));
            pilot.follow(factor);
            gauge.set_factor(factor);
        }
    }

    /// Applies the factors that were published before, like all other processes. Then the leader publishes the next factors.
    #[cfg(feature = "redis")]
    async fn step_together(
        &mut self,
        rules: &Rules,
        fleet: &Fleet,
        heard: Heard,
        elapsed: Micros,
    ) -> Result<(), Error> {
        let Heard { loads, factors, first } = heard;
        let factors = factors.unwrap_or_default();
        let mut next = Factors::new();
        for (name, AdaptiveState { terms, gauge }) in adapting(rules) {
            let Some((_, pilot)) = self.pilots.get_mut(name) else { continue };
            let (min, max) = terms.bounds();
            let factor = factors.get(name).map_or_else(|| gauge.factor(), |factor| (*factor).clamp(min, max));
            pilot.follow(factor);
            gauge.set_factor(factor);
            next.insert(name.to_owned(), pilot.step(terms, elapsed, &together(&loads, name)));
        }
        // If publishing fails, all processes keep their factors for another second.
        if first { fleet.say(&next).await } else { Ok(()) }
    }
}

fn adapting(rules: &Rules) -> impl Iterator<Item = (&str, &AdaptiveState)> {
    rules.iter().filter_map(|rule| Some((rule.name(), rule.adapting()?)))
}
