//! Extraction of attribute values from requests.

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, StatusCode, header};

use super::{ClientAddress, Rejection};
use crate::Error;
use crate::http::{PathSpelling, host};
use crate::request::check_value;

/// Extracts the value of an attribute from a request, and defines the behaviour if there is none.
///
/// By default, a request without a value lacks the attribute, and rules with it in their `key` or `match` do not apply. An
/// empty value counts as none. Rules match the full value, of any length; a value of more than
/// [`MAX_VALUE`](crate::bounds::MAX_VALUE) bytes gets status 400.
///
/// ```
/// use http::StatusCode;
/// use slidegate::tower::Extract;
///
/// let user = Extract::header("x-user")?.or_deny(StatusCode::UNAUTHORIZED);
/// let tenant = Extract::header("x-tenant")?.or("nobody");
/// let version = Extract::closure(|request| match request.uri.path().split('/').nth(1) {
///     Some("v1") | Some("v2") => Ok(request.uri.path().get(1..3).map(Into::into)),
///     _ => Err("paths begin with /v1 or /v2".into()),
/// });
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Clone)]
pub struct Extract {
    origin: Origin,
    missing: Missing,
}

type Found<'r> = Result<Option<Cow<'r, str>>, Rejection>;

#[derive(Clone)]
enum Origin {
    Client(ClientAddress),
    Header(HeaderName),
    Path(PathSpelling),
    Method,
    Host,
    Closure(Arc<dyn for<'r> Fn(&'r Parts) -> Found<'r> + Send + Sync>),
}

/// Behaviour for a request without a value.
#[derive(Clone)]
enum Missing {
    Skip,
    Value(Box<str>),
    Deny(StatusCode),
}

impl Extract {
    fn new(origin: Origin) -> Self {
        Extract { origin, missing: Missing::Skip }
    }

    /// Extracts the first header of this name.
    pub fn header(name: &str) -> Result<Self, Error> {
        let name = name.parse().map_err(|_| {
            Error::invalid(format!("a header name may have letters, digits and `-`, not \"{name}\""))
        })?;
        Ok(Extract::new(Origin::Header(name)))
    }

    /// Extracts the normalized path without the query: `/a//b/../%62` is `/a/b`. Inside a router that strips a prefix, the
    /// prefix is missing here too.
    ///
    /// Paths that differ in a trailing slash, letter case or parameters are different paths, as they are for the routers of
    /// axum and tonic. For a service that does not distinguish them, such as a proxy, use [`Extract::path_as`].
    pub fn path() -> Self {
        Extract::path_as(PathSpelling::distinct())
    }

    /// Extracts the path in this spelling. If the rules may be written in another spelling, extend them with
    /// `Rules::with_paths`.
    pub fn path_as(spelling: PathSpelling) -> Self {
        Extract::new(Origin::Path(spelling))
    }

    /// Extracts the method.
    pub fn method() -> Self {
        Extract::new(Origin::Method)
    }

    /// Extracts the requested host, without its port and in lower case. The client chooses it.
    pub fn host() -> Self {
        Extract::new(Origin::Host)
    }

    /// Extracts a value from the extension `T`, set by an outer layer; no value if the extension is missing.
    pub fn extension<T: Send + Sync + 'static>(
        find: impl for<'r> Fn(&'r T) -> Option<Cow<'r, str>> + Send + Sync + 'static,
    ) -> Self {
        Extract::closure(move |request| Ok(request.extensions.get::<T>().and_then(&find)))
    }

    /// Extracts a value with a closure over the head of a request. A rejection is sent to the client and charges nothing.
    pub fn closure(find: impl for<'r> Fn(&'r Parts) -> Found<'r> + Send + Sync + 'static) -> Self {
        Extract::new(Origin::Closure(Arc::new(find)))
    }

    /// Uses this value if the request has none.
    #[must_use]
    pub fn or(self, value: impl Into<Box<str>>) -> Self {
        Extract { missing: Missing::Value(value.into()), ..self }
    }

    /// Responds with this status if the request has no value.
    #[must_use]
    pub fn or_deny(self, status: StatusCode) -> Self {
        Extract { missing: Missing::Deny(status), ..self }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.missing {
            Missing::Value(value) => check_value(&"the default value", value),
            Missing::Skip | Missing::Deny(_) => Ok(()),
        }
    }

    /// Returns the value of the attribute `name`; `None` if the request lacks it.
    pub(super) fn value<'r>(&'r self, name: &str, request: &'r Parts) -> Found<'r> {
        let found = self.origin.find(request)?.filter(|value| !value.is_empty());
        match (found, &self.missing) {
            (Some(value), _) => Ok(Some(value)),
            (None, Missing::Skip) => Ok(None),
            (None, Missing::Value(value)) => Ok(Some(Cow::Borrowed(value))),
            (None, Missing::Deny(status)) => {
                Err(Rejection::new(*status, format!("the request has no `{name}`")))
            }
        }
    }
}

impl From<ClientAddress> for Extract {
    fn from(client: ClientAddress) -> Self {
        Extract::new(Origin::Client(client))
    }
}

impl Origin {
    fn find<'r>(&self, request: &'r Parts) -> Found<'r> {
        Ok(match self {
            Origin::Client(client) => client.find(request)?.map(Cow::Owned),
            Origin::Header(name) => header_text(request, name),
            Origin::Path(spelling) => Some(spelling.path(request.uri.path().as_bytes())),
            Origin::Method => Some(request.method.as_str().into()),
            Origin::Host => match request.uri.host() {
                Some(name) => Some(host(name).into()),
                None => header_text(request, &header::HOST).map(|name| host(&name).into()),
            },
            Origin::Closure(find) => find(request)?,
        })
    }
}

fn header_text<'r>(request: &'r Parts, name: &HeaderName) -> Option<Cow<'r, str>> {
    request.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()))
}
