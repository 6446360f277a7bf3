//! Client address of a request: the address of the peer, or the address that trusted proxies report.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::request::Parts;
use http::{Extensions, StatusCode};
use ipnet::IpNet;

use super::Rejection;
use crate::Error;
use crate::http::{client, counted, forwarded, network, x_forwarded_for};

/// Default number of bits of an IPv6 address that identify a client: the smallest network that providers give a customer.
const IPV6_PREFIX: u8 = 64;

/// Determines the client of a request: an IPv4 address, or the /64 network of an IPv6 address.
///
/// The server must put the address of the peer into the extensions of the request. A request without it gets status 500,
/// because otherwise no client would be limited. Behind proxies the peer is a proxy. Only the configured proxies are
/// trusted, and each only about its direct peer, so a header that a client sends has no effect.
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
    peer: Arc<Peer>,
    trusted: Arc<[IpNet]>,
    header: ForwardedHeader,
    ipv6_prefix: u8,
}

type Peer = dyn Fn(&Extensions) -> Result<Option<SocketAddr>, Rejection> + Send + Sync;

/// Header to which the proxies append.
#[derive(Clone, Copy)]
enum ForwardedHeader {
    XForwardedFor,
    Forwarded,
}

impl ClientAddress {
    /// Reads the address of the peer from the extension `T`; `None` if the peer has no address, as on a Unix socket.
    pub fn new<T: Send + Sync + 'static>(
        peer: impl Fn(&T) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        let peer = move |extensions: &Extensions| match extensions.get::<T>() {
            Some(found) => Ok(peer(found)),
            None => Err(Rejection::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("cannot find the client address: requests lack the extension {}", short_name::<T>()),
            )),
        };
        ClientAddress {
            peer: Arc::new(peer),
            trusted: Arc::new([]),
            header: ForwardedHeader::XForwardedFor,
            ipv6_prefix: IPV6_PREFIX,
        }
    }

    /// Trusts proxies in these networks, or at these addresses, to report their peer in `X-Forwarded-For`.
    pub fn behind<'n>(self, proxies: impl IntoIterator<Item = &'n str>) -> Result<Self, Error> {
        let trusted = proxies.into_iter().map(network).collect::<Result<_, Error>>()?;
        Ok(ClientAddress { trusted, ..self })
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`. Only one of the two headers is ever read, because the client
    /// can set the other one to anything.
    #[must_use]
    pub fn by_forwarded(self) -> Self {
        ClientAddress { header: ForwardedHeader::Forwarded, ..self }
    }

    /// Sets the number of bits of an IPv6 address that identify a client, from 16 to 128.
    pub fn ipv6_prefix(self, bits: u8) -> Result<Self, Error> {
        ensure!((16..=128).contains(&bits), "an IPv6 prefix must be from 16 to 128 bits, not {bits}");
        Ok(ClientAddress { ipv6_prefix: bits, ..self })
    }

    pub(super) fn find(&self, request: &Parts) -> Result<Option<String>, Rejection> {
        let Some(peer) = (self.peer)(&request.extensions)? else { return Ok(None) };
        Ok(Some(counted(self.client(peer.ip(), request), self.ipv6_prefix)))
    }

    fn client(&self, peer: IpAddr, request: &Parts) -> IpAddr {
        match self.header {
            ForwardedHeader::XForwardedFor => client(peer, x_forwarded_for(&request.headers), &self.trusted),
            ForwardedHeader::Forwarded => client(peer, forwarded(&request.headers), &self.trusted),
        }
    }
}

/// Returns a type name without its modules, which clients need not see.
fn short_name<T>() -> &'static str {
    let name = std::any::type_name::<T>();
    let own = name.split('<').next().unwrap_or(name);
    own.rsplit("::").next().unwrap_or(own)
}
