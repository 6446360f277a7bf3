//! Sampling of clients for a recording, and redaction of attributes.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use sha2::{Digest, Sha256};
use slidegate::Request;

/// Share that selects all clients: 100 %, in hundredths of a percent.
pub(crate) const ALL_CLIENTS: u32 = 10_000;

/// Selection of a share of the clients. A selected client is recorded with all its requests.
pub(crate) struct ClientSampler {
    /// Share in hundredths of a percent.
    share: u32,
    /// Attributes that identify a client; all attributes of a request if empty.
    by: Vec<String>,
    /// Attributes that are recorded only as a digest.
    digest: Vec<String>,
    /// Hasher that selects clients, different for every recording.
    hasher: RandomState,
    /// Key of the digests. It is never stored, so that a guessed value cannot be verified.
    secret: [u8; 32],
}

impl ClientSampler {
    pub(crate) fn new(share: u32, by: Vec<String>, digest: Vec<String>) -> Self {
        let random = RandomState::new();
        let mut secret = [0; 32];
        for (index, part) in secret.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&random.hash_one(index).to_le_bytes());
        }
        ClientSampler { share, by, digest, hasher: RandomState::new(), secret }
    }

    /// Returns true if a request is recorded. The result is the same for all requests of one client.
    pub(super) fn includes(&self, request: &Request<'_>) -> bool {
        self.share >= ALL_CLIENTS
            || self.client_hash(request) % u64::from(ALL_CLIENTS) < u64::from(self.share)
    }

    fn client_hash(&self, request: &Request<'_>) -> u64 {
        let Some(attributes) = request.attributes() else {
            return self.hasher.hash_one(request.own_limit().map(|(resource, _)| resource));
        };
        let client = |(name, _): &&(&str, &str)| self.by.iter().any(|by| by == name);
        let mut pairs: Vec<_> = attributes.iter().filter(client).collect();
        if pairs.is_empty() {
            pairs = attributes.iter().collect();
        }
        pairs.sort_unstable();
        self.hasher.hash_one(pairs)
    }

    /// Returns a value as it is recorded: unchanged, or as a digest.
    pub(super) fn redact<'v>(&self, name: &str, value: &'v str) -> Cow<'v, str> {
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
    fn client_is_recorded_with_all_its_requests() {
        let sampler = ClientSampler::new(2_500, vec!["ip".to_owned()], Vec::new());
        let mut recorded = 0;
        for n in 0..4_000 {
            let ip = n.to_string();
            let included =
                ["/a", "/b", "/c"].map(|api| sampler.includes(&Request::new([("api", api), ("ip", &ip)])));
            assert!(included == [true; 3] || included == [false; 3]);
            recorded += u32::from(included[0]);
        }
        // The bounds are ten standard deviations below and above the expected number, a quarter of the clients.
        assert!((725..=1_275).contains(&recorded), "{recorded}");
        let whole = ClientSampler::new(2_500, Vec::new(), Vec::new());
        let one = [("ip", "1"), ("api", "/a")];
        let other = [("api", "/a"), ("ip", "1")];
        assert_eq!(whole.client_hash(&Request::new(one)), whole.client_hash(&Request::new(other)));
    }

    #[test]
    fn digests_only_distinguish_values() {
        let [one, other] =
            [(); 2].map(|()| ClientSampler::new(ALL_CLIENTS, Vec::new(), vec!["ip".to_owned()]));
        assert_eq!(one.redact("ip", "1.2.3.4"), one.redact("ip", "1.2.3.4"));
        assert_ne!(one.redact("ip", "1.2.3.4"), one.redact("ip", "1.2.3.5"));
        assert_ne!(one.redact("ip", "1.2.3.4"), other.redact("ip", "1.2.3.4"));
        assert_eq!(one.redact("user", "alice"), "alice");
        assert_eq!(one.redact("ip", "1.2.3.4").len(), 17);
    }
}
