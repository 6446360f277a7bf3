//! The `authorize` section of the file: how `/v1/authorize` turns a request of a proxy into attributes.

use std::net::Ipv6Addr;

use axum::http::{HeaderName, StatusCode};
use ipnet::IpNet;
use slidegate::Rules;
use slidegate::http::{PathSpelling, network};
use slidegate::section::{Kind, Shown};

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

slidegate::section! {
    /// Settings of `/v1/authorize`, which proxies call to ask for a decision.
    pub struct AuthorizeConfig("Authorize") {
        /// Attributes, each with the source of its value: `client` (the address of the client), `path`, `method`,
        /// `host`, or `header NAME`.
        attributes: Vec<(String, Origin)> as Attributes = default_attributes(),
        /// Addresses and networks of proxies. Only these may call `/v1/authorize`, and their headers determine the
        /// address of the client.
        trusted_proxies: Vec<IpNet> as Vec<Network> = this_machine(),
        /// Number of leading bits of an IPv6 address that identify a client. Addresses that differ only in later bits
        /// are the same client.
        ipv6_prefix: u8 { between(16, 128) } = 64,
        /// HTTP status of a denial. For nginx use 401 or 403, because it treats other statuses as an error.
        deny_status: StatusCode as DenyStatus = StatusCode::TOO_MANY_REQUESTS,
        /// Spellings of a path that count as the same path. By default these are all spellings that a back end may
        /// treat as the same path.
        path: PathSpelling as MergedSpellings = PathSpelling::merged(),
    }
}

fn default_attributes() -> Vec<(String, Origin)> {
    let attributes =
        [("ip", Origin::Client), ("api", Origin::Path), ("method", Origin::Method), ("host", Origin::Host)];
    attributes.map(|(name, origin)| (name.to_owned(), origin)).into()
}

fn this_machine() -> Vec<IpNet> {
    vec![IpNet::new_assert([127, 0, 0, 0].into(), 8), IpNet::new_assert(Ipv6Addr::LOCALHOST.into(), 128)]
}

impl AuthorizeConfig {
    /// Returns the same rules with their paths normalized as `/v1/authorize` normalizes them.
    pub(crate) fn normalize_paths(&self, rules: Rules) -> Rules {
        let paths = self.attributes.iter().filter(|(_, origin)| *origin == Origin::Path);
        paths.fold(rules, |rules, (name, _)| rules.with_paths(name, self.path))
    }
}

/// Checks the status code of a denial: it must be an error, not a success or a redirect.
pub(crate) fn deny_status(number: u64) -> Result<StatusCode, String> {
    let status = u16::try_from(number).ok().filter(|n| (400..600).contains(n));
    status
        .and_then(|n| StatusCode::from_u16(n).ok())
        .ok_or_else(|| format!("the status of a denial must be from 400 to 599, not {number}"))
}

slidegate::section! {
    /// Spellings of a path that count as the same path.
    struct PathFile("Path") {
        /// Slash at the end of a path. With `strip`, `/login/` becomes `/login`.
        trailing_slash: Strip,
        /// Letter case of a path. With `lower`, `/LOGIN` becomes `/login`.
        case: Case,
        /// Parameters after a semicolon. With `strip`, `/login;a` becomes `/login`.
        parameters: Strip,
        /// Backslash in a path. With `slash`, `\\login` becomes `/login`.
        backslash: Backslash,
    }
}

slidegate::words! {
    /// Treatment of a part of a path.
    enum Strip default Strip {
        /// This part of the path is removed.
        Strip = "strip",
        /// This part of the path stays.
        Keep = "keep",
    }
}

slidegate::words! {
    /// Treatment of the letters of a path.
    enum Case default Lower {
        /// All letters become lower case.
        Lower = "lower",
        /// The letters stay as they are.
        Keep = "keep",
    }
}

slidegate::words! {
    /// Treatment of a backslash in a path.
    enum Backslash default Slash {
        /// A backslash becomes a slash.
        Slash = "slash",
        /// A backslash stays as it is.
        Keep = "keep",
    }
}

/// Field `path`.
struct MergedSpellings;

slidegate::field_type! {
    MergedSpellings => PathSpelling,
    kind: |terms| PathFile::kind(terms),
    read: |node, reader, what, terms| {
        let file = PathFile::read(node, reader, what, terms)?;
        let mut path = PathSpelling::merged();
        path = if file.trailing_slash == Strip::Keep { path.keep_trailing_slash() } else { path };
        path = if file.case == Case::Keep { path.keep_case() } else { path };
        path = if file.parameters == Strip::Keep { path.keep_parameters() } else { path };
        Some(if file.backslash == Backslash::Keep { path.keep_backslash() } else { path })
    },
    // The defaults are those of the fields.
    shown: |_| Shown::Null,
}

/// Status code of a denial.
struct DenyStatus;

slidegate::field_type! {
    DenyStatus => StatusCode,
    kind: |_| Kind::Whole(400, 599),
    read: |node, reader, what, _| {
        let number = reader.whole(node, what)?;
        deny_status(number).map_err(|message| reader.problem(node, message)).ok()
    },
    shown: |status| Shown::Whole(status.as_u16().into()),
}

/// Address or network.
struct Network;

slidegate::field_type! {
    Network => IpNet,
    kind: |_| Kind::Text,
    read: |node, reader, what, _| {
        let text = reader.text(node, what)?;
        reader.accept(node, network(text))
    },
    shown: |network| Shown::Text(network.to_string()),
}

/// Words for the sources other than headers.
const ORIGINS: [(&str, Origin); 4] =
    [("client", Origin::Client), ("path", Origin::Path), ("method", Origin::Method), ("host", Origin::Host)];

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let header = || text.strip_prefix("header ")?.trim().parse().ok().map(Origin::Header);
        ORIGINS.into_iter().find(|(word, _)| *word == text).map(|(_, origin)| origin).or_else(header)
    }

    fn text(&self) -> String {
        let word = ORIGINS.into_iter().find(|(_, origin)| origin == self).map(|(word, _)| word.to_owned());
        match self {
            Origin::Header(name) => format!("header {name}"),
            _ => word.unwrap_or_default(),
        }
    }
}

/// Attributes, and the source of their values.
struct Attributes;

slidegate::field_type! {
    Attributes => Vec<(String, Origin)>,
    kind: |_| Kind::Map(Box::new(Kind::Text)),
    read: |node, reader, what, _| {
        let mut attributes = Vec::new();
        for (_, name, node) in reader.entries(node, what)? {
            let Some(text) = reader.text(node, &name) else { continue };
            let Some(origin) = Origin::parse(text) else {
                let origins = "`client`, `path`, `method`, `host` or `header NAME`";
                reader.problem(node, format!("the source of `{name}` must be {origins}, not \"{text}\""));
                continue;
            };
            attributes.push((name, origin));
        }
        Some(attributes)
    },
    shown: |attributes| {
        let text = |origin: &Origin| Shown::Text(origin.text());
        Shown::Map(attributes.iter().map(|(name, origin)| (name.clone(), text(origin))).collect())
    },
}
