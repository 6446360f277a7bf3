//! Wire format of the scripts: encodes requests as arguments, and decodes replies to verdicts.
//!
//! [`record`] declares the records that scripts receive and return. [`lua`] puts the same declarations into the Lua
//! parts.

mod admit;
pub(super) mod lua;
pub(super) mod record;
mod restore;
mod settle;
mod verdict;

pub(super) use self::admit::{Plan, first_batch, run_plan};
pub(super) use self::restore::{decode_restored, restore_plan};
pub(super) use self::settle::{decode_settled, settlement_plan};
pub(super) use self::verdict::decode_run;
