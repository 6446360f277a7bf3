//! Names of converted rules, derived from their paths.
//!
//! A name depends only on the path, because counts belong to it: adding or removing other descriptors must not change
//! it. Characters that a name cannot contain are replaced, long names are cut, and then a digest of the path is added.

use sha2::{Digest, Sha256};

/// Length of the longest name of a rule or a group.
const MAX_LABEL: usize = 64;

/// Returns the name of a path in a domain, such as `mongo_cps/database_users`.
pub(super) fn label<'p>(domain: &'p str, path: impl IntoIterator<Item = &'p str>) -> String {
    let mut digest = Sha256::new();
    let (mut name, mut unchanged) = (String::new(), true);
    for part in std::iter::once(domain).chain(path) {
        // The lengths separate the parts.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
        if !name.is_empty() {
            name.push('/');
        }
        for c in part.chars() {
            let supported = c.is_ascii_alphanumeric() || "._-".contains(c);
            unchanged &= supported;
            name.push(if supported { c } else { '-' });
        }
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        name.insert(0, 'x');
        unchanged = false;
    }
    if !unchanged || name.len() > MAX_LABEL {
        name.truncate(MAX_LABEL - 9);
        name.push('-');
        for byte in &digest.finalize()[..4] {
            name.push_str(&format!("{byte:02x}"));
        }
    }
    name
}
