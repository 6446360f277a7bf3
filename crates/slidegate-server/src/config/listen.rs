//! The `listen` section of the file: addresses of the listeners, and bounds on clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::Micros;
use slidegate::yaml::{Node, Reader};

use super::limits::Limits;
use super::limits::MAX_RULES_BODY;

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
        let address = text.parse();
        address.map(ListenAddress::At).map_err(|_| {
            format!("must be an address and a port such as 127.0.0.1:8080, or `off`, not \"{text}\"")
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

    /// Addresses of the listeners, unless configured.
    pub const DEFAULT: Listen = Listen {
        http: Some(ListenAddress::local(8080)),
        grpc: Some(ListenAddress::local(8081)),
        resp: Some(ListenAddress::local(6380)),
        admin: Some(ListenAddress::Off),
    };
}

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<(Listen, Limits)> {
    let fields = reader.fields(node, "listen", &["http", "grpc", "resp", "admin", "limits"])?;
    let limits = fields.get("limits").map_or(Some(Limits::default()), |node| read_limits(node, reader));
    let mut address = |name: &str| {
        let node = fields.get(name)?;
        let text = reader.text(node, name)?;
        match text.parse() {
            Ok(address) => Some(address),
            Err(message) => {
                reader.problem(node, format!("{name} {message}"));
                None
            }
        }
    };
    let listen = Listen {
        http: address("http"),
        grpc: address("grpc"),
        resp: address("resp"),
        admin: address("admin"),
    };
    Some((listen, limits?))
}

/// Upper bound on connections of a listener, and on streams. No system has more open files.
const MAX_COUNT: u64 = 1_000_000;

/// Shortest and longest time limit for the first byte.
const FIRST_BYTE: (Micros, Micros) = (Micros::from_millis(10), Micros::from_secs(3_600));

/// Smallest budget for unfinished requests. The largest request must fit, in the steps in which its bytes are taken from
/// the budget.
const MIN_UNFINISHED_BYTES: u64 = 2 * MAX_RULES_BODY as u64;

const LIMITS: [&str; 6] = [
    "connections",
    "connections-per-address",
    "first-byte",
    "unfinished-bytes",
    "grpc-streams",
    "grpc-streams-per-connection",
];

fn read_limits(node: &Node, reader: &mut Reader) -> Option<Limits> {
    let fields = reader.fields(node, "limits", &LIMITS)?;
    let mut number = |name: &str, least: u64, most: u64| {
        let Some(node) = fields.get(name) else { return Some(None) };
        match reader.whole(node, name)? {
            n if (least..=most).contains(&n) => Some(Some(usize::try_from(n).ok()?)),
            n => {
                reader.problem(node, format!("{name} must be between {least} and {most}, not {n}"));
                None
            }
        }
    };
    let connections = number("connections", 1, MAX_COUNT);
    let per_address = number("connections-per-address", 1, MAX_COUNT);
    let bytes = number("unfinished-bytes", MIN_UNFINISHED_BYTES, 1 << 40);
    let streams = number("grpc-streams", 0, MAX_COUNT);
    let per_connection = number("grpc-streams-per-connection", 0, 1_000);
    let first_byte = match fields.get("first-byte") {
        None => Some(None),
        Some(node) => match reader.duration(node, "first-byte") {
            Some(time) if (FIRST_BYTE.0..=FIRST_BYTE.1).contains(&time) => Some(Some(time.into())),
            Some(time) => {
                let (least, most) = FIRST_BYTE;
                reader.problem(node, format!("first-byte must be between {least} and {most}, not {time}"));
                None
            }
            None => None,
        },
    };
    let defaults = Limits::default();
    let connections = connections?.unwrap_or(defaults.connections);
    Some(Limits {
        connections,
        connections_per_address: per_address?.unwrap_or(connections.div_ceil(2)),
        first_byte: first_byte?.unwrap_or(defaults.first_byte),
        unfinished_bytes: bytes?.unwrap_or(defaults.unfinished_bytes),
        grpc_streams: streams?.unwrap_or(defaults.grpc_streams),
        grpc_streams_per_connection: per_connection?.unwrap_or(defaults.grpc_streams_per_connection),
        ..defaults
    })
}

/// Addresses of the listeners: an address and a port each, port 0 for a free one, or `off`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Listen")]
pub struct ListenFile {
    /// HTTP. 127.0.0.1:8080, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub http: Option<String>,
    /// gRPC: Envoy's rate-limit service. 127.0.0.1:8081, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub grpc: Option<String>,
    /// The Redis protocol. 127.0.0.1:6380, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resp: Option<String>,
    /// HTTP for changes of rules and counts, which are then forbidden on all other listeners. off, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub admin: Option<String>,
    /// Bounds on the resources that clients can use.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limits: Option<LimitsFile>,
}

/// Bounds on the resources that clients can use.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "ListenLimits")]
pub struct LimitsFile {
    /// Upper bound on the connections of each listener. At the bound, the oldest connection that has not sent a whole
    /// request is closed to make room for the next, or else the connections that have been idle for longest. 10000,
    /// unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = MAX_COUNT))]
    pub connections: Option<u64>,
    /// Upper bound on connections from one client address, or one /64 network of IPv6. Half of `connections`, unless
    /// given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 1, max = MAX_COUNT))]
    pub connections_per_address: Option<u64>,
    /// Time limit for the first byte of a connection. 10s, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_byte: Option<String>,
    /// Upper bound on the bytes of unfinished requests and commands of all connections together. 268435456, unless
    /// given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = MIN_UNFINISHED_BYTES))]
    pub unfinished_bytes: Option<u64>,
    /// Upper bound on gRPC streams: watches of `grpc.health.v1.Health` and reflection. 1000, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(max = MAX_COUNT))]
    pub grpc_streams: Option<u64>,
    /// Upper bound on gRPC streams of one connection. 8, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(max = 1_000))]
    pub grpc_streams_per_connection: Option<u64>,
}
