//! What a caller asks, before any rule has looked at it.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use smallvec::SmallVec;

use crate::{Error, Micros, RequestId};

/// The most attributes one request may have.
pub const MAX_ATTRIBUTES: usize = 32;

/// The longest attribute name, in bytes.
pub const MAX_NAME: usize = 64;

/// The longest attribute value, in bytes. No message that a listener of `slidegate serve` accepts has a longer one, so no
/// client escapes a rule with a longer value: rules match values whole, and only keys hold a digest of a long value.
pub const MAX_VALUE: usize = 4 << 20;

/// The attribute that a plain text stands for: `limiter.acquire("alice")` is a request with `key` = alice.
pub const PLAIN_ATTRIBUTE: &str = "key";

/// A request for permits: what it is about, how many, and perhaps an id.
///
/// ```
/// use slidegate::Request;
/// let login = Request::new([("api", "/login"), ("ip", "1.2.3.4")]);
/// let tokens = Request::new([("user", "alice")]).permits(1_500);
/// let own_limit = Request::resource("user123").limit(10).window(std::time::Duration::from_secs(1));
/// ```
///
/// Who keeps a request, or its attributes, lends them: nothing is copied.
///
/// ```
/// # use slidegate::{Limiter, Request};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let limiter = Limiter::per_minute(100)?;
/// limiter.acquire(&[("key", "alice")]).await?;
/// let request = Request::from("bob").permits(5);
/// limiter.peek(&request).await?;
/// limiter.acquire(&request).await?;
/// # Ok::<(), slidegate::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) permits: u64,
    pub(crate) id: Option<Cow<'a, RequestId>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Subject<'a> {
    /// The rules find what applies.
    Attributes(Attributes<'a>),
    /// The caller names its own limit, within the configured bounds.
    Resource { name: &'a str, own: AdHocLimit },
}

/// Names and values, which somebody else may keep: they are most of a request, and to judge it need not be moved.
#[derive(Clone, Debug)]
pub(crate) enum Attributes<'a> {
    Owned(SmallVec<[(&'a str, &'a str); 4]>),
    Borrowed(&'a [(&'a str, &'a str)]),
}

impl<'a> Deref for Attributes<'a> {
    type Target = [(&'a str, &'a str)];

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Attributes::Owned(pairs) => pairs,
            Attributes::Borrowed(pairs) => pairs,
        }
    }
}

/// What a request names of its own limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdHocLimit {
    /// See [`Request::limit`].
    pub limit: Option<u64>,
    /// See [`Request::window`].
    pub window: Option<Micros>,
    /// See [`Request::burst`].
    pub burst: Option<u64>,
}

impl<'a> Request<'a> {
    /// A request for one permit, judged by the rules that match these attributes.
    pub fn new(attributes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Request::about(Attributes::Owned(attributes.into_iter().collect()))
    }

    #[inline]
    fn about(attributes: Attributes<'a>) -> Self {
        Request { subject: Subject::Attributes(attributes), permits: 1, id: None }
    }

    /// A request for one permit of a limit that it names itself; see [`Request::limit`] and
    /// [`Request::window`].
    pub fn resource(name: &'a str) -> Self {
        Request { subject: Subject::Resource { name, own: AdHocLimit::default() }, permits: 1, id: None }
    }

    /// How many permits; 0 only looks.
    #[must_use]
    pub fn permits(mut self, permits: u64) -> Self {
        self.permits = permits;
        self
    }

    /// The id under which this request may be asked again without being charged twice.
    #[must_use]
    pub fn id(mut self, id: RequestId) -> Self {
        self.id = Some(Cow::Owned(id));
        self
    }

    /// The limit of a [resource](Request::resource).
    #[must_use]
    pub fn limit(self, limit: u64) -> Self {
        self.own(|own| own.limit = Some(limit))
    }

    /// The window of a [resource](Request::resource).
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        self.own(|own| own.window = Some(window.into()))
    }

    /// Makes a [resource](Request::resource) a token bucket of so many permits, refilled at its limit per window, and
    /// counted apart from the resource of the same name that is none.
    #[must_use]
    pub fn burst(self, burst: u64) -> Self {
        self.own(|own| own.burst = Some(burst))
    }

    /// Its attributes, in their order; none if it brings its own limit.
    pub fn attributes(&self) -> Option<&[(&'a str, &'a str)]> {
        match &self.subject {
            Subject::Attributes(attributes) => Some(attributes),
            Subject::Resource { .. } => None,
        }
    }

    /// The resource whose limit it brings, and what it names of that; none if it has attributes.
    pub fn own_limit(&self) -> Option<(&'a str, AdHocLimit)> {
        match &self.subject {
            Subject::Attributes(_) => None,
            Subject::Resource { name, own } => Some((name, *own)),
        }
    }

    /// How many permits it asks for.
    pub fn cost(&self) -> u64 {
        self.permits
    }

    /// The id that it was given by [`Request::id`].
    pub fn known_as(&self) -> Option<&RequestId> {
        self.id.as_deref()
    }

    fn own(mut self, name: impl FnOnce(&mut AdHocLimit)) -> Self {
        if let Subject::Resource { own, .. } = &mut self.subject {
            name(own);
        }
        self
    }
}

/// The same request; what it has stays where it is.
impl<'r> From<&'r Request<'_>> for Request<'r> {
    #[inline]
    fn from(request: &'r Request<'_>) -> Self {
        let subject = match &request.subject {
            Subject::Attributes(pairs) => Subject::Attributes(Attributes::Borrowed(pairs)),
            Subject::Resource { name, own } => Subject::Resource { name, own: *own },
        };
        Request { subject, permits: request.permits, id: request.id.as_deref().map(Cow::Borrowed) }
    }
}

/// A request for one permit, judged by the rules that match these attributes, which stay where they are.
impl<'a> From<&'a [(&'a str, &'a str)]> for Request<'a> {
    #[inline]
    fn from(attributes: &'a [(&'a str, &'a str)]) -> Self {
        Request::about(Attributes::Borrowed(attributes))
    }
}

impl<'a, const N: usize> From<&'a [(&'a str, &'a str); N]> for Request<'a> {
    #[inline]
    fn from(attributes: &'a [(&'a str, &'a str); N]) -> Self {
        Request::from(attributes.as_slice())
    }
}

/// A request about one thing: its attribute [`key`](PLAIN_ATTRIBUTE) is the text.
impl<'a> From<&'a str> for Request<'a> {
    fn from(text: &'a str) -> Self {
        Request::new([(PLAIN_ATTRIBUTE, text)])
    }
}

impl<'a> From<&'a String> for Request<'a> {
    fn from(text: &'a String) -> Self {
        Request::from(text.as_str())
    }
}

/// The checks that every door relies on: what a stranger sends is bounded before any rule sees it.
pub(crate) fn check_attributes(attributes: &[(&str, &str)]) -> Result<(), Error> {
    if attributes.len() > MAX_ATTRIBUTES {
        let n = attributes.len();
        return Err(Error::invalid(format!("a request may have {MAX_ATTRIBUTES} attributes, not {n}")));
    }
    for (i, (name, value)) in attributes.iter().enumerate() {
        check_name(name)?;
        check_value(&format_args!("attribute `{name}`"), value)?;
        if attributes[..i].iter().any(|(other, _)| other == name) {
            return Err(Error::invalid(format!("attribute `{name}` is given twice")));
        }
    }
    Ok(())
}

/// An attribute name: letters, digits, `_`, `-` and `.`.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
        return Err(Error::invalid(format!(
            "an attribute name must be 1 to {MAX_NAME} letters, digits or any of `_-.`"
        )));
    }
    Ok(())
}

pub(crate) fn check_value(what: &dyn fmt::Display, value: &str) -> Result<(), Error> {
    if value.is_empty() {
        return Err(Error::invalid(format!("{what} is empty: leave it out if there is none")));
    }
    if value.len() > MAX_VALUE {
        let n = value.len();
        return Err(Error::invalid(format!("{what} has {n} bytes; at most {MAX_VALUE} are accepted")));
    }
    Ok(())
}
