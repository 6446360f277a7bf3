//! Keys of counters, with an injective text encoding.
//!
//! A key reads `login-per-ip:ip=1.2.3.4`. The encoding is injective: the rule, the attribute names and every value can be
//! recovered from the text. So (`a:b`, `c`) and (`a`, `b:c`) are different keys, and no value can imitate the key of another
//! rule. Braces are escaped too: inside `sg:{…}` they would let a client choose the Redis slot. A long value is replaced by
//! its digest, so the length of a key is bounded. A digest starts with `#`; a leading `#` of a value is escaped.
//!
//! A key with a tag reads `{tenant=acme}per-user:user=bob`. The text in the braces determines the Redis slot, so all keys with
//! the same tag are stored together. No other part of a key contains braces.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::LazyLock;

use compact_str::CompactString;
use sha2::{Digest, Sha256};

/// Longest value, in bytes, that is written in plain text. Longer values are replaced by their digest.
pub const MAX_PLAIN_VALUE: usize = 80;

/// Name of a counter: a rule, and the values of its key attributes.
///
/// ```
/// use slidegate::Key;
/// let key = Key::new("login", [("ip", "1.2.3.4"), ("user", "a:b")]);
/// assert_eq!(key.as_str(), "login:ip=1.2.3.4:user=a%3Ab");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Hash of the text, computed once for all tables that the key is looked up in. The seed is random per process, so
    /// that no client can choose names that collide in one bucket.
    hash: u64,
    text: KeyText,
}

/// Text of a key. Short texts are stored inline, without an allocation.
pub(crate) type KeyText = CompactString;

static HASHER: LazyLock<foldhash::quality::RandomState> = LazyLock::new(Default::default);

impl Key {
    /// Creates the key of `rule` for these attribute values.
    pub fn new<'a>(rule: &str, values: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Key::build(CompactString::default(), rule, values)
    }

    /// Creates a key with a tag: an attribute and its value. All keys with the same tag are stored together.
    ///
    /// ```
    /// # use slidegate::Key;
    /// let key = Key::tagged(("tenant", "acme"), "per-user", [("user", "bob")]);
    /// assert_eq!(key.as_str(), "{tenant=acme}per-user:user=bob");
    /// ```
    pub fn tagged<'a>(
        (name, value): (&str, &str),
        rule: &str,
        values: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let mut text = CompactString::const_new("{");
        write_attribute(&mut text, name, value);
        text.push('}');
        Key::build(text, rule, values)
    }

    fn build<'a>(
        mut text: CompactString,
        rule: &str,
        values: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        escape(&mut text, rule);
        for (name, value) in values {
            text.push(':');
            write_attribute(&mut text, name, value);
        }
        Key::from_text(text)
    }

    /// Creates a key from printed text, such as a path segment of a URL. Use it only for lookups: the text is not validated.
    pub fn printed(text: &str) -> Self {
        Key::from_text(text.into())
    }

    /// Returns the text that is stored and printed.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text in the braces, if the key has a tag.
    pub fn tag(&self) -> Option<&str> {
        let (tag, _) = self.text.strip_prefix('{')?.split_once('}')?;
        (!tag.is_empty()).then_some(tag)
    }

    /// Returns the name of the rule.
    ///
    /// ```
    /// # use slidegate::Key;
    /// assert_eq!(Key::tagged(("tenant", "acme"), "per-user", [("user", "bob")]).rule(), "per-user");
    /// ```
    pub fn rule(&self) -> &str {
        let after = self.tag().map_or(0, |tag| tag.len() + 2);
        self.text[after..].split(':').next().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Hash of the rule and a number, with the random seed of the hashes of keys.
    pub(crate) fn hash_of_rule(&self, number: u64) -> u64 {
        HASHER.hash_one((self.rule(), number))
    }

    #[inline]
    pub(crate) fn text(&self) -> &KeyText {
        &self.text
    }

    pub(crate) fn hash_of(text: &KeyText) -> u64 {
        HASHER.hash_one(text.as_str())
    }

    fn from_text(text: KeyText) -> Self {
        Key { hash: Key::hash_of(&text), text }
    }

    pub(crate) fn heap_bytes(text: &KeyText) -> usize {
        if text.is_heap_allocated() { text.capacity() } else { 0 }
    }
}

/// Template for the keys of one rule: the constant parts, escaped once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyTemplate {
    /// Index of each value among the attributes of the rule, and the text before the value.
    values: Vec<(usize, KeyText)>,
    end: KeyText,
}

impl KeyTemplate {
    /// Creates the template for `rule` and these attributes. The attribute at index `tag` becomes the tag. The keys equal those
    /// of [`Key::new`] and [`Key::tagged`].
    pub(crate) fn new(rule: &str, names: &[String], tag: Option<usize>) -> Self {
        let (mut values, mut text) = (Vec::new(), KeyText::default());
        if let Some((index, name)) = tag.and_then(|tag| Some((tag, names.get(tag)?))) {
            text.push('{');
            write_name(&mut text, name);
            values.push((index, std::mem::take(&mut text)));
            text.push('}');
        }
        escape(&mut text, rule);
        for (index, name) in names.iter().enumerate().filter(|(index, _)| Some(*index) != tag) {
            text.push(':');
            write_name(&mut text, name);
            values.push((index, std::mem::take(&mut text)));
        }
        KeyTemplate { values, end: text }
    }

    /// Returns the key for these values, or `None` if a value is missing.
    #[inline]
    pub(crate) fn key<'v>(
        &self,
        digests: &Digests<'v>,
        value: impl Fn(usize) -> Option<&'v str>,
    ) -> Option<Key> {
        let Some(((index, before), others)) = self.values.split_first() else {
            return Some(Key::from_text(self.end.clone()));
        };
        let mut text = before.clone();
        digests.write_value(&mut text, value(*index)?);
        for (index, before) in others {
            text.push_str(before);
            digests.write_value(&mut text, value(*index)?);
        }
        text.push_str(&self.end);
        Some(Key::from_text(text))
    }
}

/// Digests of the long values of one request: each value is hashed once, even if several rules use it in their keys.
#[derive(Default)]
pub(crate) struct Digests<'v>(RefCell<Vec<(&'v str, Digest128)>>);

type Digest128 = [u8; 16];

impl<'v> Digests<'v> {
    #[inline]
    fn write_value(&self, text: &mut CompactString, value: &'v str) {
        if value.len() > MAX_PLAIN_VALUE {
            write_digest(text, self.digest(value));
        } else {
            escape(text, value);
        }
    }

    #[cold]
    fn digest(&self, value: &'v str) -> Digest128 {
        let mut known = self.0.borrow_mut();
        if let Some((_, digest)) = known.iter().find(|(known, _)| std::ptr::eq(*known, value)) {
            return *digest;
        }
        let digest = digest(value);
        known.push((value, digest));
        digest
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn write_attribute(text: &mut CompactString, name: &str, value: &str) {
    write_name(text, name);
    Digests::default().write_value(text, value);
}

fn write_name(text: &mut CompactString, name: &str) {
    escape(text, name);
    text.push('=');
}

/// Bytes that are never escaped, at any position.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        plain[byte as usize] = !matches!(byte, b'{' | b'}' | b':' | b'=' | b'%' | b'#');
        byte += 1;
    }
    plain
};

/// Percent-escapes characters with a meaning in a key, and characters that could disturb a terminal or a log line.
fn escape(text: &mut CompactString, value: &str) {
    // Fast path: most values contain nothing to escape.
    if value.bytes().all(|byte| PLAIN[usize::from(byte)]) {
        return text.push_str(value);
    }
    let mut plain = 0;
    for (i, c) in value.char_indices() {
        let special =
            matches!(c, '{' | '}' | ':' | '=' | '%' | ' ') || c.is_control() || (c == '#' && i == 0);
        if special {
            text.push_str(&value[plain..i]);
            plain = i + c.len_utf8();
            for &byte in &value.as_bytes()[i..plain] {
                push_hex(text, byte, "%");
            }
        }
    }
    text.push_str(&value[plain..]);
}

fn digest(value: &str) -> Digest128 {
    let mut digest = Digest128::default();
    digest.copy_from_slice(&Sha256::digest(value.as_bytes())[..16]);
    digest
}

fn write_digest(text: &mut CompactString, digest: Digest128) {
    text.push('#');
    for byte in digest {
        push_hex(text, byte, "");
    }
}

fn push_hex(text: &mut CompactString, byte: u8, before: &str) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{before}{byte:02X}");
}
