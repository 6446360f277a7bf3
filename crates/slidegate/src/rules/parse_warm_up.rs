//! Parsing of the field `warm-up`.

use super::rule::Rule;
use crate::common::yaml::{Fields, Reader};
use crate::{RampShape, WarmUp};

/// Returns false if the field is invalid. The combination with the quota is checked only if the quota is valid.
pub(super) fn read_warm_up(
    fields: &Fields<'_>,
    reader: &mut Reader,
    rule: &mut Rule,
    valid_quota: bool,
) -> bool {
    let Some(node) = fields.get("warm-up") else { return true };
    let Some(terms) = reader.fields(node, "warm-up", &["from", "over", "idle", "shape"]) else {
        return false;
    };
    let from = terms.required(reader, "from", "warm-up").and_then(|node| {
        let share = reader.percent(node, "warm-up.from")?;
        if !share.is_multiple_of(100) {
            reader.problem(node, "warm-up.from must be a whole number of percent");
            return None;
        }
        Some(share / 100)
    });
    let over =
        terms.required(reader, "over", "warm-up").and_then(|node| reader.duration(node, "warm-up.over"));
    let idle = terms.get("idle").map(|node| reader.duration(node, "warm-up.idle"));
    let shapes = [("linear", RampShape::Linear), ("steps", RampShape::Steps)];
    let shape = terms
        .get("shape")
        .map_or(Some(RampShape::Linear), |node| reader.word(node, "warm-up.shape", &shapes));
    let (Some(from), Some(over), Some(shape)) = (from, over, shape) else { return false };
    let Some(mut warm_up) = reader.accept(node, WarmUp::new(from, over.into())) else { return false };
    if shape == RampShape::Steps {
        warm_up = warm_up.in_steps();
    }
    if let Some(idle) = idle {
        let Some(idle) = idle else { return false };
        match reader.accept(node, warm_up.idle(idle.into())) {
            Some(idled) => warm_up = idled,
            None => return false,
        }
    }
    if !valid_quota {
        return true;
    }
    match reader.accept(node, rule.clone().warm_up(warm_up)) {
        Some(warmed) => *rule = warmed,
        None => return false,
    }
    true
}
