//! The `listen` part of the file: where each door listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::yaml::{Node, Reader};

/// Where a door listens, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: the door is closed.
    Off,
    /// There; port 0 picks a free one.
    At(SocketAddr),
}

impl Place {
    /// A port of this machine that others cannot reach.
    pub const fn local(port: u16) -> Self {
        Place::At(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Place::Off);
        }
        let address = text.parse();
        address.map(Place::At).map_err(|_| {
            format!("must be an address and a port such as 127.0.0.1:8080, or `off`, not \"{text}\"")
        })
    }
}

/// Where the doors listen; the command line beats it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    /// HTTP.
    pub http: Option<Place>,
    /// gRPC.
    pub grpc: Option<Place>,
    /// The Redis protocol.
    pub resp: Option<Place>,
    /// HTTP for changes.
    pub admin: Option<Place>,
}

impl Listen {
    /// These, and where they say nothing, `others`.
    #[must_use]
    pub fn or(self, others: Listen) -> Self {
        Listen {
            http: self.http.or(others.http),
            grpc: self.grpc.or(others.grpc),
            resp: self.resp.or(others.resp),
            admin: self.admin.or(others.admin),
        }
    }

    /// Where they listen unless told otherwise.
    pub const DEFAULT: Listen = Listen {
        http: Some(Place::local(8080)),
        grpc: Some(Place::local(8081)),
        resp: Some(Place::local(6380)),
        admin: Some(Place::Off),
    };
}

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<Listen> {
    let fields = reader.fields(node, "listen", &["http", "grpc", "resp", "admin"])?;
    let mut place = |name: &str| {
        let node = fields.get(name)?;
        let text = reader.text(node, name)?;
        match text.parse() {
            Ok(place) => Some(place),
            Err(message) => {
                reader.problem(node, format!("{name} {message}"));
                None
            }
        }
    };
    Some(Listen { http: place("http"), grpc: place("grpc"), resp: place("resp"), admin: place("admin") })
}

/// Where to listen: an address and a port each, port 0 for a free one, or `off`.
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
    /// HTTP for what changes rules and counts, which is then refused everywhere else. off, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub admin: Option<String>,
}
