//! Sampling of clients for a recording, and redaction of attributes.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use sha2::{Digest, Sha256};
use slidegate::Request;

/// Share of all clients, in hundredths of a percent.
pub(crate) const WHOLE: u32 = 10_000;

/// Selection of a share of the clients. A selected client is recorded with all its requests.
pub(crate) struct Sample {
    /// Share in hundredths of a percent.
    share: u32,
    /// Attributes that identify a client; all attributes of a request if empty.
    by: Vec<String>,
    /// Attributes that are recorded only as a digest.
    digest: Vec<String>,
    /// Hasher that selects clients, different for every recording.
    chance: RandomState,
    /// Key of the digests. It is never stored, so that a guessed value cannot be verified.
    secret: [u8; 32],
}

impl Sample {
    pub(crate) fn new(share: u32, by: Vec<String>, digest: Vec<String>) -> Self {
        let random = RandomState::new();
        let mut secret = [0; 32];
        for (place, part) in secret.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&random.hash_one(place).to_le_bytes());
        }
        Sample { share, by, digest, chance: RandomState::new(), secret }
    }

    /// Returns true if a request is recorded. The result is the same for all requests of one client.
    pub(super) fn takes(&self, request: &Request<'_>) -> bool {
        self.share >= WHOLE || self.place(request) % u64::from(WHOLE) < u64::from(self.share)
    }

    fn place(&self, request: &Request<'_>) -> u64 {
        let Some(attributes) = request.attributes() else {
            return self.chance.hash_one(request.own_limit().map(|(resource, _)| resource));
        };
        let client = |(name, _): &&(&str, &str)| self.by.iter().any(|by| by == name);
        let mut pairs: Vec<_> = attributes.iter().filter(client).collect();
        if pairs.is_empty() {
            pairs = attributes.iter().collect();
        }
        pairs.sort_unstable();
        self.chance.hash_one(pairs)
    }

    /// Returns a value as it is recorded: unchanged, or as a digest.
    pub(super) fn shown<'v>(&self, name: &str, value: &'v str) -> Cow<'v, str> {
        if !self.digest.iter().any(|digest| digest == name) {
            return value.into();
        }
        let digest = Sha256::new().chain_update(self.secret).chain_update(name).chain_update([0]);
        let digest = digest.chain_update(value).finalize();
        digest.iter().take(8).fold("#".to_owned(), |text, byte| text + &format!("{byte:02x}")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_taken_with_everything_he_asks() {
        let sample = Sample::new(2_500, vec!["ip".to_owned()], Vec::new());
        let mut taken = 0;
        for n in 0..4_000 {
            let ip = n.to_string();
            let asks = ["/a", "/b", "/c"].map(|api| sample.takes(&Request::new([("api", api), ("ip", &ip)])));
            assert!(asks == [true; 3] || asks == [false; 3]);
            taken += u32::from(asks[0]);
        }
        // Ten standard deviations from a quarter.
        assert!((725..=1_275).contains(&taken), "{taken}");
        let whole = Sample::new(2_500, Vec::new(), Vec::new());
        let one = [("ip", "1"), ("api", "/a")];
        let other = [("api", "/a"), ("ip", "1")];
        assert_eq!(whole.place(&Request::new(one)), whole.place(&Request::new(other)));
    }

    #[test]
    fn a_digest_tells_values_apart_and_nothing_else() {
        let [one, other] = [(); 2].map(|()| Sample::new(WHOLE, Vec::new(), vec!["ip".to_owned()]));
        assert_eq!(one.shown("ip", "1.2.3.4"), one.shown("ip", "1.2.3.4"));
        assert_ne!(one.shown("ip", "1.2.3.4"), one.shown("ip", "1.2.3.5"));
        assert_ne!(one.shown("ip", "1.2.3.4"), other.shown("ip", "1.2.3.4"));
        assert_eq!(one.shown("user", "alice"), "alice");
        assert_eq!(one.shown("ip", "1.2.3.4").len(), 17);
    }
}
