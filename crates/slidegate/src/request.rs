//! Requests for permits, before any rule is applied.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use smallvec::SmallVec;

use crate::{Error, Micros, RequestId};

/// Largest number of attributes of one request.
pub const MAX_ATTRIBUTES: usize = 32;

/// Longest attribute name, in bytes.
pub const MAX_NAME: usize = 64;

/// Longest attribute value, in bytes. No listener of `slidegate serve` accepts a message with a longer value, so no client
/// can avoid a rule with a longer value. Rules match the full value; only keys use a digest for long values.
pub const MAX_VALUE: usize = 4 << 20;

/// The attribute that holds a plain text: `limiter.acquire("alice")` is a request with `key` = alice.
pub const PLAIN_ATTRIBUTE: &str = "key";

/// A request for permits: its attributes or resource, the number of permits, and an optional id.
///
/// ```
/// use slidegate::Request;
/// let login = Request::new([("api", "/login"), ("ip", "1.2.3.4")]);
/// let tokens = Request::new([("user", "alice")]).permits(1_500);
/// let own_limit = Request::resource("user123").limit(10).window(std::time::Duration::from_secs(1));
/// ```
///
/// A request can be passed by reference, and so can attributes. Nothing is copied then.
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
    /// Attributes, which the rules match.
    Attributes(Attributes<'a>),
    /// A resource for which the caller gives the limit, within the configured bounds.
    Resource { name: &'a str, ad_hoc_limit: AdHocLimit },
}

/// Names and values of a request, owned or borrowed. They make up most of the size of a request, so borrowing avoids
/// moving many bytes.
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

/// The limit that a request gives for its [resource](Request::resource).
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
    /// Creates a request for one permit, evaluated by the rules that match these attributes.
    pub fn new(attributes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Request::with_attributes(Attributes::Owned(attributes.into_iter().collect()))
    }

    #[inline]
    fn with_attributes(attributes: Attributes<'a>) -> Self {
        Request { subject: Subject::Attributes(attributes), permits: 1, id: None }
    }

    /// Creates a request for one permit of a limit that the request gives itself; see [`Request::limit`] and
    /// [`Request::window`].
    pub fn resource(name: &'a str) -> Self {
        Request {
            subject: Subject::Resource { name, ad_hoc_limit: AdHocLimit::default() },
            permits: 1,
            id: None,
        }
    }

    /// Sets the number of permits; 0 reads the counts without a charge.
    #[must_use]
    pub fn permits(mut self, permits: u64) -> Self {
        self.permits = permits;
        self
    }

    /// Sets the id under which this request can be retried without being charged twice.
    #[must_use]
    pub fn id(mut self, id: RequestId) -> Self {
        self.id = Some(Cow::Owned(id));
        self
    }

    /// Sets the limit of a [resource](Request::resource).
    #[must_use]
    pub fn limit(self, limit: u64) -> Self {
        self.edit_limit(|ad_hoc| ad_hoc.limit = Some(limit))
    }

    /// Sets the window of a [resource](Request::resource).
    #[must_use]
    pub fn window(self, window: Duration) -> Self {
        self.edit_limit(|ad_hoc| ad_hoc.window = Some(window.into()))
    }

    /// Makes a [resource](Request::resource) a token bucket of `burst` permits that refills at its limit per window. It is
    /// counted separately from a resource of the same name without a burst.
    #[must_use]
    pub fn burst(self, burst: u64) -> Self {
        self.edit_limit(|ad_hoc| ad_hoc.burst = Some(burst))
    }

    /// Sets limit, window and burst of a [resource](Request::resource) at once, to values that [`Request::own_limit`]
    /// returned.
    #[must_use]
    pub fn with_own_limit(self, limit: AdHocLimit) -> Self {
        self.edit_limit(|ad_hoc| *ad_hoc = limit)
    }

    /// Returns the attributes, in their order; `None` if the request gives its own limit.
    pub fn attributes(&self) -> Option<&[(&'a str, &'a str)]> {
        match &self.subject {
            Subject::Attributes(attributes) => Some(attributes),
            Subject::Resource { .. } => None,
        }
    }

    /// Returns the resource and the limit that the request gives for it; `None` if the request has attributes.
    pub fn own_limit(&self) -> Option<(&'a str, AdHocLimit)> {
        match &self.subject {
            Subject::Attributes(_) => None,
            Subject::Resource { name, ad_hoc_limit } => Some((name, *ad_hoc_limit)),
        }
    }

    /// Returns the number of permits.
    pub fn cost(&self) -> u64 {
        self.permits
    }

    /// Returns the id set by [`Request::id`].
    pub fn request_id(&self) -> Option<&RequestId> {
        self.id.as_deref()
    }

    fn edit_limit(mut self, edit: impl FnOnce(&mut AdHocLimit)) -> Self {
        if let Subject::Resource { ad_hoc_limit, .. } = &mut self.subject {
            edit(ad_hoc_limit);
        }
        self
    }
}

/// Borrows a request without copying its contents.
impl<'r> From<&'r Request<'_>> for Request<'r> {
    #[inline]
    fn from(request: &'r Request<'_>) -> Self {
        let subject = match &request.subject {
            Subject::Attributes(pairs) => Subject::Attributes(Attributes::Borrowed(pairs)),
            Subject::Resource { name, ad_hoc_limit } => {
                Subject::Resource { name, ad_hoc_limit: *ad_hoc_limit }
            }
        };
        Request { subject, permits: request.permits, id: request.id.as_deref().map(Cow::Borrowed) }
    }
}

/// Borrows attributes for a request of one permit, evaluated by the rules that match them.
impl<'a> From<&'a [(&'a str, &'a str)]> for Request<'a> {
    #[inline]
    fn from(attributes: &'a [(&'a str, &'a str)]) -> Self {
        Request::with_attributes(Attributes::Borrowed(attributes))
    }
}

impl<'a, const N: usize> From<&'a [(&'a str, &'a str); N]> for Request<'a> {
    #[inline]
    fn from(attributes: &'a [(&'a str, &'a str); N]) -> Self {
        Request::from(attributes.as_slice())
    }
}

/// Creates a request with a single attribute: the text is the value of [`key`](PLAIN_ATTRIBUTE).
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

/// Checks the bounds of attributes. All protocols rely on this check: no rule evaluates unbounded input.
pub(crate) fn check_attributes(attributes: &[(&str, &str)]) -> Result<(), Error> {
    let n = attributes.len();
    ensure!(n <= MAX_ATTRIBUTES, "a request may have at most {MAX_ATTRIBUTES} attributes, not {n}");
    for (i, (name, value)) in attributes.iter().enumerate() {
        check_name(name)?;
        check_value(&format_args!("attribute `{name}`"), value)?;
        let first = attributes[..i].iter().all(|(other, _)| other != name);
        ensure!(first, "attribute `{name}` is given twice");
    }
    Ok(())
}

/// Checks an attribute name: letters, digits, `_`, `-` and `.`.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    let valid = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(allowed);
    ensure!(valid, "an attribute name must be 1 to {MAX_NAME} letters, digits or any of `_-.`");
    Ok(())
}

pub(crate) fn check_value(what: &dyn fmt::Display, value: &str) -> Result<(), Error> {
    let n = value.len();
    ensure!(n > 0, "{what} is empty: leave it out instead");
    ensure!(n <= MAX_VALUE, "{what} has {n} bytes; at most {MAX_VALUE} are accepted");
    Ok(())
}
