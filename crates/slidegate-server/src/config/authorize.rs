//! The `authorize` section of the file: how `/v1/authorize` turns a request of a proxy into attributes.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use axum::http::{HeaderName, StatusCode};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::Rules;
use slidegate::http::{PathSpelling, network};
use slidegate::yaml::{Node, Reader};

/// Source of the value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Address of the client.
    Client,
    /// Path of the request, without the query.
    Path,
    /// Method of the request.
    Method,
    /// Host of the request.
    Host,
    /// Header of the request.
    Header(HeaderName),
}

/// Settings of `/v1/authorize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizeConfig {
    /// Attributes, and the source of their values.
    pub attributes: Vec<(String, Origin)>,
    /// Proxies that are trusted to name the client's address.
    pub trusted_proxies: Vec<IpNet>,
    /// Number of bits of an IPv6 address that identify one client.
    pub ipv6_prefix: u8,
    /// Status code of a denial.
    pub deny_status: StatusCode,
    /// Spellings that are treated as the same path.
    pub path: PathSpelling,
}

impl AuthorizeConfig {
    /// Returns the same rules with their paths normalized as `/v1/authorize` normalizes them.
    pub(crate) fn normalize_paths(&self, rules: Rules) -> Rules {
        let paths = self.attributes.iter().filter(|(_, origin)| *origin == Origin::Path);
        paths.fold(rules, |rules, (name, _)| rules.with_paths(name, self.path))
    }
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
            path: PathSpelling::merged(),
        }
    }
}

/// Checks the status code of a denial: it must be an error, not a success or a redirect.
pub(crate) fn deny_status(number: u64) -> Result<StatusCode, String> {
    let status = u16::try_from(number).ok().filter(|n| (400..600).contains(n));
    status
        .and_then(|n| StatusCode::from_u16(n).ok())
        .ok_or_else(|| format!("the status of a denial must be from 400 to 599, not {number}"))
}

const FIELDS: [&str; 5] = ["attributes", "trusted-proxies", "ipv6-prefix", "deny-status", "path"];

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
    if let Some(node) = fields.get("path") {
        config.path = read_path(node, reader)?;
    }
    Some(config)
}

fn read_path(node: &Node, reader: &mut Reader) -> Option<PathSpelling> {
    let fields = reader.fields(node, "path", &["trailing-slash", "case", "parameters", "backslash"])?;
    let mut keeps = |name: &str, merged: &'static str| match fields.get(name) {
        Some(node) => reader.word(node, name, &[(merged, false), ("keep", true)]),
        None => Some(false),
    };
    let [slash, case] = [keeps("trailing-slash", "strip"), keeps("case", "lower")];
    let [parameters, backslash] = [keeps("parameters", "strip"), keeps("backslash", "slash")];
    let mut path = PathSpelling::merged();
    path = if slash? { path.keep_trailing_slash() } else { path };
    path = if case? { path.keep_case() } else { path };
    path = if parameters? { path.keep_parameters() } else { path };
    Some(if backslash? { path.keep_backslash() } else { path })
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

/// Settings of `/v1/authorize`, which decides about the requests of a proxy.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Authorize")]
pub struct AuthorizeFile {
    /// Attributes, and the source of their values: `client` (its address), `path`, `method`, `host`, or `header NAME`.
    /// `{ ip: client, api: path, method: method, host: host }`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attributes: Option<BTreeMap<String, String>>,
    /// Addresses and networks of proxies that are trusted to name the client's address. This machine, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trusted_proxies: Option<Vec<String>>,
    /// Number of bits of an IPv6 address that identify one client. 64, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 16, max = 128))]
    pub ipv6_prefix: Option<u8>,
    /// Status code of a denial; nginx accepts only 401 and 403. 429, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schemars(range(min = 400, max = 599))]
    pub deny_status: Option<u16>,
    /// Spellings that are treated as the same path. All that some back end treats as the same, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<PathFile>,
}

/// Spellings that are treated as the same path.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "Path")]
pub struct PathFile {
    /// `strip`: `/login/` is `/login`. `strip`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trailing_slash: Option<StripFile>,
    /// `lower`: `/LOGIN` is `/login`. `lower`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub case: Option<CaseFile>,
    /// `strip`: `/login;a` is `/login`. `strip`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parameters: Option<StripFile>,
    /// `slash`: `\\login` is `/login`. `slash`, unless given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub backslash: Option<BackslashFile>,
}

/// Treatment of a part of a path.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Strip")]
pub enum StripFile {
    /// The part is removed.
    Strip,
    /// The part stays.
    Keep,
}

/// Treatment of the letters of a path.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Case")]
pub enum CaseFile {
    /// All letters become lower case.
    Lower,
    /// The letters stay as they are.
    Keep,
}

/// Treatment of a backslash in a path.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Backslash")]
pub enum BackslashFile {
    /// A backslash becomes a slash.
    Slash,
    /// A backslash stays as it is.
    Keep,
}
