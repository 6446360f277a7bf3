//! Keys that sign reservations, and the format of a signed reservation.
//!
//! A signed reservation is the text of the reservation, a dot, and 32 hexadecimal digits: SipHash-2-4 with 128 bits over that
//! text. SipHash is a keyed hash for short messages, and costs about as much as writing one of the numbers in the text.
//! docs/explanation/benchmarks.md has the cost of a reservation in a reply.

use std::fmt;
use std::sync::{Arc, LazyLock};

use sha2::{Digest, Sha256};
use siphasher::sip128::SipHasher24;
use subtle::{Choice, ConstantTimeEq};

use crate::Error;

/// Shortest secret of a [`ReservationKey`], in bytes.
pub const MIN_RESERVATION_SECRET: usize = 16;

/// Longest secret of a [`ReservationKey`], in bytes.
const MAX_SECRET: usize = 4096;

/// Largest number of keys in [`ReservationKeys`]: verification tries all of them.
pub const MAX_RESERVATION_KEYS: usize = 16;

/// Length of a signature in bytes: a dot and 32 hexadecimal digits.
const SIGNATURE: usize = 33;

/// Separates this key from other keys derived from the same secret.
const PURPOSE: &[u8] = b"slidegate reservation key 1:";

/// Key that signs reservations. Processes with the same secret accept each other's reservations.
#[derive(Clone)]
pub struct ReservationKey {
    secret: Arc<[u8]>,
    hasher: SipHasher24,
}

impl ReservationKey {
    /// Derives a key from a secret of at least [`MIN_RESERVATION_SECRET`] bytes.
    pub fn new(secret: &[u8]) -> Result<Self, Error> {
        if !(MIN_RESERVATION_SECRET..=MAX_SECRET).contains(&secret.len()) {
            // The message must not contain the secret.
            return Err(Error::invalid(format!(
                "a reservation key needs {MIN_RESERVATION_SECRET} to {MAX_SECRET} bytes, got {}: try `openssl rand -hex 32`",
                secret.len()
            )));
        }
        Ok(ReservationKey::of(secret.into()))
    }

    /// Creates a random key that no other process has.
    ///
    /// # Panics
    ///
    /// Panics if the operating system cannot provide random numbers. A new `HashMap` panics then, too.
    #[expect(clippy::expect_used, reason = "a process without random numbers cannot sign anything")]
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("random numbers of the operating system");
        let mut secret = String::with_capacity(2 * bytes.len());
        bytes.iter().for_each(|byte| secret.extend([byte >> 4, byte & 0xf].map(hex_digit).map(char::from)));
        ReservationKey::of(secret.into_bytes().into())
    }

    fn of(secret: Arc<[u8]>) -> Self {
        let digest = Sha256::new().chain_update(PURPOSE).chain_update(&secret).finalize();
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        ReservationKey { hasher: SipHasher24::new_with_key(&key), secret }
    }

    /// Returns the secret, to share it with other processes.
    #[cfg(feature = "redis")]
    pub(crate) fn secret(&self) -> &[u8] {
        &self.secret
    }

    fn signature(&self, text: &str) -> [u8; SIGNATURE] {
        let (high, low) = self.hasher.hash(text.as_bytes()).as_u64();
        let number = u128::from(high) << 64 | u128::from(low);
        let mut signature = [b'.'; SIGNATURE];
        for (digit, byte) in signature[1..].chunks_exact_mut(2).zip(number.to_be_bytes()) {
            digit.copy_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 0xf)]);
        }
        signature
    }
}

/// Compares secrets in constant time.
impl PartialEq for ReservationKey {
    fn eq(&self, other: &Self) -> bool {
        self.secret.ct_eq(&other.secret).into()
    }
}

impl Eq for ReservationKey {}

/// Omits the secret, so that it does not reach a log.
impl fmt::Debug for ReservationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReservationKey")
    }
}

/// Keys of a [`Limiter`](crate::Limiter). The first key signs and all keys verify, so that a key can be replaced while
/// reservations signed with the old key are still in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationKeys {
    /// Never empty.
    keys: Vec<ReservationKey>,
}

impl ReservationKeys {
    /// Creates a set of 1 to [`MAX_RESERVATION_KEYS`] keys. The first one signs; all of them verify.
    pub fn new(keys: impl IntoIterator<Item = ReservationKey>) -> Result<Self, Error> {
        let keys: Vec<ReservationKey> = keys.into_iter().collect();
        if (1..=MAX_RESERVATION_KEYS).contains(&keys.len()) {
            return Ok(ReservationKeys { keys });
        }
        Err(Error::invalid(format!(
            "the number of reservation keys must be 1 to {MAX_RESERVATION_KEYS}, got {}",
            keys.len()
        )))
    }

    /// Returns a set that signs with `key` and still accepts signatures of the previous keys. The oldest key is dropped if
    /// there are more than [`MAX_RESERVATION_KEYS`].
    #[must_use]
    pub fn signing_with(&self, key: ReservationKey) -> Self {
        let others = self.keys.iter().filter(|other| **other != key).cloned();
        let keys = std::iter::once(key.clone()).chain(others).take(MAX_RESERVATION_KEYS).collect();
        ReservationKeys { keys }
    }

    /// Default keys of the limiters in this process: random, and lost when the process ends.
    pub(crate) fn of_process() -> Arc<Self> {
        static KEYS: LazyLock<Arc<ReservationKeys>> =
            LazyLock::new(|| Arc::new(ReservationKeys { keys: vec![ReservationKey::random()] }));
        Arc::clone(&KEYS)
    }

    /// Appends the signature to `text`.
    pub(crate) fn sign(&self, text: &mut String) {
        let signature = self.keys.first().map(|key| key.signature(text));
        text.push_str(signature.as_ref().and_then(|digits| str::from_utf8(digits).ok()).unwrap_or_default());
    }

    /// Returns the text before the signature, if one of the keys made the signature.
    pub(crate) fn verify<'t>(&self, signed: &'t str) -> Option<&'t str> {
        let (text, signature) = signed.split_at_checked(signed.len().checked_sub(SIGNATURE)?)?;
        let is_made_by = |key: &ReservationKey| key.signature(text).as_slice().ct_eq(signature.as_bytes());
        let made = self.keys.iter().fold(Choice::from(0), |made, key| made | is_made_by(key));
        bool::from(made).then_some(text)
    }
}

impl From<ReservationKey> for ReservationKeys {
    fn from(key: ReservationKey) -> Self {
        ReservationKeys { keys: vec![key] }
    }
}

fn hex_digit(number: u8) -> u8 {
    b"0123456789abcdef"[usize::from(number & 0xf)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &str) -> ReservationKey {
        ReservationKey::new(secret.as_bytes()).unwrap()
    }

    fn signed(keys: &ReservationKeys, text: &str) -> String {
        let mut text = text.to_owned();
        keys.sign(&mut text);
        text
    }

    /// Later versions must accept signatures of this version.
    #[test]
    fn signature_stays_the_same_between_versions() {
        let keys = ReservationKeys::from(key("0123456789abcdef"));
        assert_eq!(signed(&keys, "1.0.1.1.k"), "1.0.1.1.k.3c5763862424dc8d57c9a12ef0714653");
    }

    #[test]
    fn accepts_only_its_own_signatures() {
        let keys = ReservationKeys::from(key("0123456789abcdef"));
        let text = signed(&keys, "1794774215407676.0.3.6.käse");
        assert_eq!(keys.verify(&text), Some("1794774215407676.0.3.6.käse"));
        for place in 0..text.len() {
            let mut altered = text.clone().into_bytes();
            altered[place] ^= 1;
            if let Ok(altered) = String::from_utf8(altered) {
                assert_eq!(keys.verify(&altered), None, "{altered}");
            }
        }
        for place in (1..text.len()).filter(|place| text.is_char_boundary(*place)) {
            assert_eq!(keys.verify(&text[place..]), None);
            assert_eq!(keys.verify(&text[..place]), None);
        }
        for altered in
            ["", ".", &text.to_uppercase(), &format!("{text}0"), &format!("0{text}"), &text.repeat(2)]
        {
            assert_eq!(keys.verify(altered), None, "{altered}");
        }
    }

    #[test]
    fn first_key_signs_and_all_verify() {
        let [old, new, foreign] =
            ["old secret of many bytes", "new secret of many bytes", "other secret of many"].map(key);
        let before = ReservationKeys::from(old.clone());
        let rotated = ReservationKeys::new([new.clone(), old.clone()]).unwrap();
        assert_eq!(rotated, before.signing_with(new.clone()));
        assert_eq!(rotated.verify(&signed(&before, "text")), Some("text"));
        assert_eq!(before.verify(&signed(&rotated, "text")), None);
        assert_eq!(ReservationKeys::from(new).verify(&signed(&rotated, "text")), Some("text"));
        assert_eq!(rotated.verify(&signed(&ReservationKeys::from(foreign), "text")), None);
        // An existing key moves to the front.
        assert_eq!(rotated.signing_with(old.clone()).keys.len(), 2);
        let many = (0..100).fold(rotated, |keys, n| keys.signing_with(key(&format!("secret number {n:03}"))));
        assert_eq!(many.keys.len(), MAX_RESERVATION_KEYS);
        assert_eq!(many.keys[0], key("secret number 099"));
    }

    #[test]
    fn rejects_secrets_of_wrong_length() {
        let error = ReservationKey::new(b"short").unwrap_err().to_string();
        assert_eq!(error, "a reservation key needs 16 to 4096 bytes, got 5: try `openssl rand -hex 32`");
        assert!(ReservationKey::new(&[0; 5000]).is_err());
        assert_eq!(
            ReservationKeys::new([]).unwrap_err().to_string(),
            "the number of reservation keys must be 1 to 16, got 0"
        );
        assert_ne!(ReservationKey::random(), ReservationKey::random());
        assert_eq!(format!("{:?}", ReservationKey::random()), "ReservationKey");
    }
}
