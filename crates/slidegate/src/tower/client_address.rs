//! Who asks: the peer's address, or what trusted proxies say of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::request::Parts;
use http::{Extensions, StatusCode};
use ipnet::IpNet;

use super::Rejection;
use crate::Error;
use crate::http::{client, counted, forwarded, network, x_forwarded_for};

/// How many bits of an IPv6 address are one client, unless said otherwise: what providers give to one customer at least.
const IPV6_PREFIX: u8 = 64;

/// Finds a client's address: an IPv4 address, or the /64 that an IPv6 address is one of.
///
/// The peer's address is what the server has put among the request's extensions; a request without it is answered with
/// status 500, because without it nobody would be limited. Behind proxies the peer is a proxy. Only those that are named
/// are believed, and each only about whom it was asked by, so whatever a client writes into a header itself is not.
///
/// ```
/// use std::net::SocketAddr;
/// use axum::extract::ConnectInfo;
/// use slidegate::tower::ClientAddress;
///
/// // axum, served by `into_make_service_with_connect_info::<SocketAddr>()`
/// let direct = ClientAddress::new(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| Some(*peer));
/// let proxied = direct.behind(["10.0.0.0/8", "192.0.2.1"])?;
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Clone)]
pub struct ClientAddress {
    peer: Arc<dyn Fn(&Extensions) -> Result<Option<SocketAddr>, Rejection> + Send + Sync>,
    trusted: Arc<[IpNet]>,
    chain: Chain,
    ipv6_prefix: u8,
}

/// Which header proxies append to.
#[derive(Clone, Copy)]
enum Chain {
    XForwardedFor,
    Forwarded,
}

impl ClientAddress {
    /// The peer's address is in the extension `T`; none if it has none, as over a Unix socket.
    pub fn new<T: Send + Sync + 'static>(
        peer: impl Fn(&T) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        let peer = move |extensions: &Extensions| match extensions.get::<T>() {
            Some(found) => Ok(peer(found)),
            None => Err(Rejection::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!(
                    "the server does not say who asks: requests lack the extension {}",
                    short_name::<T>()
                ),
            )),
        };
        ClientAddress {
            peer: Arc::new(peer),
            trusted: Arc::new([]),
            chain: Chain::XForwardedFor,
            ipv6_prefix: IPV6_PREFIX,
        }
    }

    /// Believes proxies in these networks, or at these addresses, about whom they were asked by: in `X-Forwarded-For`.
    pub fn behind<'n>(self, proxies: impl IntoIterator<Item = &'n str>) -> Result<Self, Error> {
        let trusted = proxies.into_iter().map(network).collect::<Result<_, Error>>()?;
        Ok(ClientAddress { trusted, ..self })
    }

    /// The proxies write `Forwarded` (RFC 7239) instead. Only one of the two headers is ever read: the other one is
    /// whatever the client sent.
    #[must_use]
    pub fn by_forwarded(self) -> Self {
        ClientAddress { chain: Chain::Forwarded, ..self }
    }

    /// How many bits of an IPv6 address are one client, from 16 to 128.
    pub fn ipv6_prefix(self, bits: u8) -> Result<Self, Error> {
        if !(16..=128).contains(&bits) {
            return Err(Error::invalid(format!("an IPv6 prefix must be from 16 to 128 bits, not {bits}")));
        }
        Ok(ClientAddress { ipv6_prefix: bits, ..self })
    }

    pub(super) fn find(&self, request: &Parts) -> Result<Option<String>, Rejection> {
        let Some(peer) = (self.peer)(&request.extensions)? else { return Ok(None) };
        Ok(Some(counted(self.client(peer.ip(), request), self.ipv6_prefix)))
    }

    fn client(&self, peer: IpAddr, request: &Parts) -> IpAddr {
        match self.chain {
            Chain::XForwardedFor => client(peer, x_forwarded_for(&request.headers), &self.trusted),
            Chain::Forwarded => client(peer, forwarded(&request.headers), &self.trusted),
        }
    }
}

/// Without the modules it is in, which are none of a client's business.
fn short_name<T>() -> &'static str {
    let name = std::any::type_name::<T>();
    let own = name.split('<').next().unwrap_or(name);
    own.rsplit("::").next().unwrap_or(own)
}
