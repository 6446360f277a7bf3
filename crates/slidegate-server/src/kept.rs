//! What is costly to find out, and told again for a while.

use parking_lot::Mutex;
use slidegate::Micros;

/// The last answer, and when that was.
pub(crate) struct Kept<T> {
    found: Mutex<Option<(Micros, T)>>,
    good_for: Micros,
}

impl<T: Clone> Kept<T> {
    pub(crate) fn new(good_for: Micros) -> Self {
        Kept { found: Mutex::new(None), good_for }
    }

    /// What was found lately, or is found now. Who comes meanwhile waits for the same answer.
    pub(crate) fn get(&self, now: Micros, find: impl FnOnce() -> T) -> T {
        let mut found = self.found.lock();
        match &*found {
            Some((since, known)) if now.since(*since) < self.good_for => known.clone(),
            _ => found.insert((now, find())).1.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_once_in_a_while() {
        let kept = Kept::new(Micros::from_secs(5));
        let at = |seconds, find| kept.get(Micros::from_secs(seconds), || find);
        assert_eq!(
            (at(100, 'a'), at(104, 'b'), at(105, 'c'), at(109, 'd'), at(110, 'e')),
            ('a', 'a', 'c', 'c', 'e')
        );
    }
}
