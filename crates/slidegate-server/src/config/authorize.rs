//! The `authorize` part of the file: what `/v1/authorize` makes of what a proxy says.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use axum::http::{HeaderName, StatusCode};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::http::network;
use slidegate::yaml::{Node, Reader};

/// Where the value of an attribute comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client's address.
    Client,
    /// What it asks for, without the query.
    Path,
    /// How it asks.
    Method,
    /// Whom it asks.
    Host,
    /// A header of its request.
    Header(HeaderName),
}

/// What `/v1/authorize` goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizeConfig {
    /// Attributes, and where their values come from.
    pub attributes: Vec<(String, Origin)>,
    /// Whose word is taken for who the client is.
    pub trusted_proxies: Vec<IpNet>,
    /// How many bits of an IPv6 address are one client.
    pub ipv6_prefix: u8,
    /// The status of a refusal.
    pub deny_status: StatusCode,
}

impl Default for AuthorizeConfig {
    fn default() -> Self {
        let attributes = [
            ("ip", Origin::Client),
            ("api", Origin::Path),
            ("method", Origin::Method),
            ("host", Origin::Host),
        ];
        let loopback =
            [IpNet::new_assert([127, 0, 0, 0].into(), 8), IpNet::new_assert(Ipv6Addr::LOCALHOST.into(), 128)];
        AuthorizeConfig {
            attributes: attributes.map(|(name, origin)| (name.to_owned(), origin)).into(),
            trusted_proxies: loopback.into(),
            ipv6_prefix: 64,
            deny_status: StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

/// The statuses that a refusal may have: none that says yes or sends somewhere else.
pub(crate) fn deny_status(number: u64) -> Result<StatusCode, String> {
    let status = u16::try_from(number).ok().filter(|n| (400..600).contains(n));
    status
        .and_then(|n| StatusCode::from_u16(n).ok())
        .ok_or_else(|| format!("the status of a refusal must be from 400 to 599, not {number}"))
}

const FIELDS: [&str; 4] = ["attributes", "trusted-proxies", "ipv6-prefix", "deny-status"];

pub(super) fn read(node: &Node, reader: &mut Reader) -> Option<AuthorizeConfig> {
    let fields = reader.fields(node, "authorize", &FIELDS)?;
    let mut config = AuthorizeConfig::default();
    if let Some(node) = fields.get("attributes") {
        config.attributes = read_attributes(node, reader)?;
    }
    if let Some(node) = fields.get("trusted-proxies") {
        config.trusted_proxies.clear();
        for item in reader.list(node, "trusted-proxies")? {
            let text = reader.text(item, "trusted-proxies")?;
            match network(text) {
                Ok(net) => config.trusted_proxies.push(net),
                Err(error) => reader.problem(item, error.to_string()),
            }
        }
    }
    if let Some(node) = fields.get("ipv6-prefix") {
        let bits = reader.whole(node, "ipv6-prefix")?;
        match u8::try_from(bits).ok().filter(|bits| (16..=128).contains(bits)) {
            Some(bits) => config.ipv6_prefix = bits,
            None => reader.problem(node, format!("ipv6-prefix must be from 16 to 128, not {bits}")),
        }
    }
    if let Some(node) = fields.get("deny-status") {
        let number = reader.whole(node, "deny-status")?;
        match deny_status(number) {
            Ok(status) => config.deny_status = status,
            Err(message) => reader.problem(node, message),
        }
    }
    Some(config)
}

fn read_attributes(node: &Node, reader: &mut Reader) -> Option<Vec<(String, Origin)>> {
    let mut attributes = Vec::new();
    for (_, name, node) in reader.entries(node, "attributes")? {
        let text = reader.text(node, &name)?;
        let origin = match text {
            "client" => Some(Origin::Client),
            "path" => Some(Origin::Path),
            "method" => Some(Origin::Method),
            "host" => Some(Origin::Host),
            _ => {
                let header = text.strip_prefix("header ").map(|name| name.trim().parse());
                header.and_then(Result::ok).map(Origin::Header)
            }
        };
        match origin {
            Some(origin) => attributes.push((name, origin)),
            None => reader.problem(
                node,
                format!(
                    "`{name}` comes from `client`, `path`, `method`, `host` or `header NAME`, not \"{text}\""
                ),
            ),
        }
    }
    Some(attributes)
}

/// What `/v1/authorize` makes of what a proxy says.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Authorize")]
pub struct AuthorizeFile {
    /// Attributes, and where their values come from: `client` (its address), `path`, `method`, `host`, or `header NAME`.
    /// `{ ip: client, api: path, method: method, host: host }`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attributes: Option<BTreeMap<String, String>>,
    /// Addresses and networks whose word is taken for who the client is. This machine, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trusted_proxies: Option<Vec<String>>,
    /// How many bits of an IPv6 address are one client. 64, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 16, max = 128))]
    pub ipv6_prefix: Option<u8>,
    /// The status of a refusal; nginx takes 401 and 403 only. 429, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 400, max = 599))]
    pub deny_status: Option<u16>,
}
