//! The `listen` section of the file: addresses of the listeners, and bounds on clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use slidegate::section::{Kind, Shown};

use super::limits::{Limits, LimitsSection};

/// Address of a listener, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// No listener.
    Off,
    /// Listener at this address. Port 0 picks a free port.
    At(SocketAddr),
}

impl ListenAddress {
    /// Address on the loopback interface, which other machines cannot reach.
    pub const fn local(port: u16) -> Self {
        ListenAddress::At(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(ListenAddress::Off);
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("localhost", text));
        let on = |host: Ipv4Addr| port.parse().ok().map(|port| SocketAddr::new(host.into(), port));
        let address = match host {
            "localhost" => on(Ipv4Addr::LOCALHOST),
            "" => on(Ipv4Addr::UNSPECIFIED),
            _ => text.parse().ok(),
        };
        address.map(ListenAddress::At).ok_or_else(|| {
            format!(
                "must be an address and a port such as 127.0.0.1:8080, a port such as 8080 for this machine only, \
                 :8080 for every interface, or `off`, not \"{text}\""
            )
        })
    }
}

/// Addresses of the listeners. The command line takes precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    /// HTTP.
    pub http: Option<ListenAddress>,
    /// gRPC.
    pub grpc: Option<ListenAddress>,
    /// The Redis protocol.
    pub resp: Option<ListenAddress>,
    /// HTTP for changes of rules and counts.
    pub admin: Option<ListenAddress>,
}

impl Listen {
    /// Returns these addresses, completed by those of `others`.
    #[must_use]
    pub fn or(self, others: Listen) -> Self {
        Listen {
            http: self.http.or(others.http),
            grpc: self.grpc.or(others.grpc),
            resp: self.resp.or(others.resp),
            admin: self.admin.or(others.admin),
        }
    }

    /// Default addresses of the listeners.
    pub const DEFAULT: Listen = Listen {
        http: Some(ListenAddress::local(8080)),
        grpc: Some(ListenAddress::local(8081)),
        resp: Some(ListenAddress::local(6380)),
        admin: Some(ListenAddress::Off),
    };
}

/// Listeners, and bounds on their clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenConfig {
    /// Addresses of the listeners. The command line takes precedence.
    pub addresses: Listen,
    /// Bounds on the resources that clients can use.
    pub limits: Limits,
}

slidegate::section! {
    /// Addresses of the listeners. Each is an address and a port, such as `127.0.0.1:8080`. `8080` listens on the
    /// loopback interface only, `:8080` on every interface. Port 0 selects a free port, and `off` means no listener.
    pub(super) struct ListenSection("Listen", base: ListenConfig::default()) for ListenConfig {
        /// Listener for HTTP.
        [addresses] http: Option<ListenAddress> { by_default("127.0.0.1:8080") },
        /// Listener for gRPC: the rate limit service of Envoy.
        [addresses] grpc: Option<ListenAddress> { by_default("127.0.0.1:8081") },
        /// Listener for the Redis protocol.
        [addresses] resp: Option<ListenAddress> { by_default("127.0.0.1:6380") },
        /// Listener for HTTP with changes of rules and counts. If it is set, all other listeners reject these
        /// changes.
        [addresses] admin: Option<ListenAddress> { by_default("off") },
        /// Bounds on the resources that clients can use.
        limits: LimitsSection,
    }
}

slidegate::field_type! {
    ListenAddress => ListenAddress,
    kind: |_| Kind::Union("Address", vec![Kind::Text, Kind::Whole(0, u16::MAX.into())]),
    read: |node, reader, what, _| {
        let address = reader.text_or_whole(node, what)?.parse();
        address.map_err(|message| reader.problem(node, format!("{what} {message}"))).ok()
    },
    shown: |address| {
        Shown::Text(match address {
            ListenAddress::Off => "off".to_owned(),
            ListenAddress::At(address) => address.to_string(),
        })
    },
}
