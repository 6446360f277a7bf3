//! Field `warm-up` of a rule.

use crate::common::section::WholePercent;
use crate::dynamic::warm_up::{MAX_IDLE, MAX_OVER};
use crate::{Error, Micros, RampShape, WarmUp};

const MILLISECOND: Micros = Micros::from_millis(1);

crate::section! {
    /// Gradual rise of a limit after a cold start.
    pub struct WarmUpFile("WarmUp", dotted: true) {
        /// Limit at the start of the rise, as a share of the full limit, such as `20%`.
        from: u32 as WholePercent {
            required().between(1, 99).like(r"^[1-9][0-9]?(\.0{1,2})? *%$").example("20%")
        },
        /// Duration of the rise, until the full limit is reached.
        over: Micros { required().lasting(MILLISECOND, MAX_OVER).example("30s") },
        /// Time without any admission after which the limit is cold again. It must be at least the window. Default: a
        /// minute, or the window if the window is longer.
        idle: Option<Micros> { lasting(MILLISECOND, MAX_IDLE).example("5m") },
        /// Shape of the rise.
        shape: RampShape,
    }
}

impl WarmUpFile {
    pub(super) fn terms(&self) -> Result<WarmUp, Error> {
        let mut terms = WarmUp::new(self.from, self.over.into())?;
        if self.shape == RampShape::Steps {
            terms = terms.in_steps();
        }
        self.idle.map_or(Ok(terms), |idle| terms.idle(idle.into()))
    }
}

impl From<WarmUp> for WarmUpFile {
    fn from(terms: WarmUp) -> Self {
        let (from, over, shape) = (terms.from(), terms.over(), terms.shape());
        WarmUpFile { from, over, idle: Some(terms.idle_for()), shape }
    }
}
