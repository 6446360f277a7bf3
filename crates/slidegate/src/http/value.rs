//! Values of attributes that a stranger chose.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::MAX_VALUE;

/// What is too long to be a value is counted under its digest: nobody leaves a limit by saying more.
pub fn short(value: Cow<'_, str>) -> Cow<'_, str> {
    if value.len() <= MAX_VALUE {
        return value;
    }
    let digest = Sha256::digest(value.as_bytes());
    digest.iter().fold("sha256-".to_owned(), |text, byte| text + &format!("{byte:02x}")).into()
}
