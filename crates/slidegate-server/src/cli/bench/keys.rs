//! Choice of the key of each request. For a given seed the n-th request always has the same key, whichever caller sends
//! it. So runs are repeatable, and no state per key is needed.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// Distribution of requests over keys.
#[derive(Clone, Debug)]
pub(super) enum Keys {
    /// All requests have the same key.
    One,
    /// All of `keys` keys are equally likely.
    Uniform { keys: u64, seed: u64 },
    /// The probability of key `k`, from 0, is proportional to `1 / (k + 1) ^ skew`.
    Zipf { zipf: Zipf<f64>, seed: u64 },
}

impl Keys {
    pub(super) fn zipf(keys: u64, skew: f64, seed: u64) -> Result<Self, String> {
        let zipf =
            Zipf::new(keys as f64, skew).map_err(|error| format!("{keys} keys, skew {skew}: {error}"))?;
        Ok(Keys::Zipf { zipf, seed })
    }

    /// Returns the number of the key of the n-th request.
    pub(super) fn of(&self, n: u64) -> u64 {
        // Consecutive seeds give unrelated numbers, but seed 1 must not be seed 0 shifted by one.
        let random = |seed: &u64| Xoshiro256PlusPlus::seed_from_u64(seed.rotate_left(32) ^ n);
        match self {
            Keys::One => 0,
            Keys::Uniform { keys, seed } => random(seed).random_range(0..*keys),
            // The samples are whole numbers from 1.
            Keys::Zipf { zipf, seed } => zipf.sample(&mut random(seed)) as u64 - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: u64 = 100_000;

    fn counts(keys: &Keys, n: usize) -> Vec<u64> {
        let mut counts = vec![0; n];
        for request in 0..REQUESTS {
            counts[keys.of(request) as usize] += 1;
        }
        counts
    }

    /// About one count in four hundred deviates by more than three standard deviations. None of these counts deviates
    /// by more than five.
    fn near(count: u64, share: f64) -> bool {
        let expected = REQUESTS as f64 * share;
        (count as f64 - expected).abs() < 5.0 * expected.sqrt()
    }

    #[test]
    fn uniform_keys_are_equally_likely() {
        let counts = counts(&Keys::Uniform { keys: 100, seed: 7 }, 100);
        assert!(counts.iter().all(|count| near(*count, 0.01)), "{counts:?}");
    }

    #[test]
    fn zipf_matches_its_skew() {
        for skew in [0.5, 1.0, 2.0] {
            let counts = counts(&Keys::zipf(50, skew, 7).unwrap(), 50);
            let weight = |key: usize| ((key + 1) as f64).powf(-skew);
            let all: f64 = (0..50).map(weight).sum();
            for (key, count) in counts.iter().enumerate() {
                assert!(near(*count, weight(key) / all), "skew {skew}, key {key}: {counts:?}");
            }
        }
    }

    #[test]
    fn the_last_of_many_keys_is_within_bounds() {
        let most = 100_000_000;
        for keys in [Keys::Uniform { keys: most, seed: 1 }, Keys::zipf(most, 0.01, 1).unwrap()] {
            let highest = (0..REQUESTS).map(|request| keys.of(request)).max().unwrap();
            assert!((most * 9 / 10..most).contains(&highest), "{highest}");
        }
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let first = |seed| {
            let keys = Keys::Uniform { keys: 1_000_000, seed };
            (0..100).map(|request| keys.of(request)).collect::<Vec<_>>()
        };
        assert_eq!(first(1), first(1));
        let (one, two) = (first(1), first(2));
        assert!(one.iter().all(|key| !two.contains(key)), "{one:?} {two:?}");
    }
}
