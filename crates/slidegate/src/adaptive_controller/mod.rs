//! Controller of adaptive limits: one step per second for every adaptive rule.
#[cfg(feature = "redis")]
pub(crate) mod cluster_sync;

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(feature = "redis")]
use self::cluster_sync::{ClusterMember, ClusterState, Factors};
#[cfg(feature = "redis")]
use crate::RedisStore;
use crate::dynamic::adaptive::load::{NodeLoad, combine};
use crate::dynamic::adaptive::{Adaptive, AdaptivePolicy, AdaptiveState, HostLoad};
use crate::{Clock, Error, Limiter, Micros, Rules, Store, SystemClock};

/// Interval between the steps of [`AdaptiveController::run`].
const STEP_INTERVAL: Micros = Micros::from_secs(1);

/// Adjusts the limits of the adaptive rules of a [`Limiter`]. Without a controller no limit adapts.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use slidegate::{adaptive::HostLoad, AdaptiveController, Limiter, MemoryStore, Rules};
///
/// let rules = Rules::from_yaml("rules: [{ name: orders, limit: 200, window: 1s, adaptive: {} }]")?;
/// let limiter = Limiter::new(MemoryStore::new(), rules);
/// let mut controller = AdaptiveController::alone();
/// // Once a second, or let `run` do it. The feature `host` provides a `Host` that measures the load:
/// controller.step(&limiter, HostLoad { cpu: Some(3_000), memory: Some(7_000) }).await?;
/// assert_eq!(limiter.rules().iter().next().unwrap().factor(), Some(10_129)); // on its way to 120 %
/// # Ok::<(), slidegate::Error>(()) }).unwrap();
/// ```
pub struct AdaptiveController {
    #[cfg(feature = "redis")]
    cluster: Option<Arc<ClusterMember>>,
    policies: HashMap<String, (Adaptive, AdaptivePolicy)>,
    clock: Arc<dyn Clock>,
    /// Instant of the last step.
    last: Option<Micros>,
}

impl AdaptiveController {
    /// Creates a controller that uses only the load of this process.
    pub fn alone() -> Self {
        AdaptiveController {
            #[cfg(feature = "redis")]
            cluster: None,
            policies: HashMap::new(),
            clock: Arc::new(SystemClock::new()),
            last: None,
        }
    }

    /// Creates a controller that uses the load of all processes with a controller on this Redis. All of them apply the same
    /// factors, about a second later than a process on its own. While Redis is unavailable, each process continues on its own.
    #[cfg(feature = "redis")]
    pub fn shared(store: RedisStore) -> Self {
        AdaptiveController { cluster: Some(Arc::new(ClusterMember::new(store))), ..Self::alone() }
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Takes one step per second, as long as the future is polled. `look` returns the load of the host: `Host::load`, or
    /// `HostLoad::default` for none.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    /// # runtime.block_on(async {
    /// use std::sync::Arc;
    /// use slidegate::{AdaptiveController, Limiter, adaptive::Host};
    ///
    /// let limiter = Arc::new(Limiter::per_second(100)?);
    /// let mut host = Host::new();
    /// tokio::spawn(AdaptiveController::alone().run(limiter, move || host.load()));
    /// # Ok::<(), slidegate::Error>(()) }).unwrap();
    /// ```
    pub async fn run<S: Store>(mut self, limiter: Arc<Limiter<S>>, mut look: impl FnMut() -> HostLoad) {
        loop {
            self.clock.sleep(STEP_INTERVAL).await;
            // Errors are ignored here. A caller that needs them calls `step` itself.
            let _ = self.step(&limiter, look()).await;
        }
    }

    /// Takes one step: reads the reports since the last step, and applies the factors. An error means that the store could not
    /// deliver the messages of the other processes; the step then used only the load of this process.
    pub async fn step<S: Store>(&mut self, limiter: &Limiter<S>, host: HostLoad) -> Result<(), Error> {
        let now = self.clock.now();
        let elapsed = self.last.replace(now).map_or(STEP_INTERVAL, |last| now.since(last));
        let rules = limiter.rules();
        self.update_policies(&rules);
        if self.policies.is_empty() {
            return Ok(());
        }
        let reports = adapting(&rules).map(|(name, adapting)| (name.to_owned(), adapting.cell.take()));
        let own = NodeLoad { host, reports: reports.filter(|(_, reports)| reports.count > 0).collect() };
        #[cfg(feature = "redis")]
        if let Some(cluster) = self.cluster.clone() {
            return match cluster.exchange(&own).await {
                Ok(state) => self.step_in_cluster(&rules, &cluster, state, elapsed).await,
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
    fn update_policies(&mut self, rules: &Rules) {
        let mut before = std::mem::take(&mut self.policies);
        for (name, AdaptiveState { terms, cell }) in adapting(rules) {
            let known = before.remove(name).filter(|(known, _)| known == terms);
            let policy = known.map_or_else(|| AdaptivePolicy::new(cell.factor()), |(_, policy)| policy);
            self.policies.insert(name.to_owned(), (terms.clone(), policy));
        }
    }

    fn step_alone(&mut self, rules: &Rules, own: NodeLoad, elapsed: Micros) {
        let loads = [own];
        for (name, AdaptiveState { terms, cell }) in adapting(rules) {
            let Some((_, policy)) = self.policies.get_mut(name) else { continue };
            let factor = policy.step(terms, elapsed, &combine(&loads, name));
            policy.follow(factor);
            cell.set_factor(factor);
        }
    }

    /// Applies the latest published factors, as all other processes do. If this process is the leader, it then
    /// publishes the next factors.
    #[cfg(feature = "redis")]
    async fn step_in_cluster(
        &mut self,
        rules: &Rules,
        cluster: &ClusterMember,
        state: ClusterState,
        elapsed: Micros,
    ) -> Result<(), Error> {
        let ClusterState { loads, factors, is_leader } = state;
        let factors = factors.unwrap_or_default();
        let mut next = Factors::new();
        for (name, AdaptiveState { terms, cell }) in adapting(rules) {
            let Some((_, policy)) = self.policies.get_mut(name) else { continue };
            let (min, max) = terms.bounds();
            let factor = factors.get(name).map_or_else(|| cell.factor(), |factor| (*factor).clamp(min, max));
            policy.follow(factor);
            cell.set_factor(factor);
            next.insert(name.to_owned(), policy.step(terms, elapsed, &combine(&loads, name)));
        }
        // If publishing fails, all processes keep their factors for another second.
        if is_leader { cluster.publish_factors(&next).await } else { Ok(()) }
    }
}

fn adapting(rules: &Rules) -> impl Iterator<Item = (&str, &AdaptiveState)> {
    rules.iter().filter_map(|rule| Some((rule.name(), rule.adapting.as_ref()?)))
}
