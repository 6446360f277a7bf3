//! Requests that were read and wait to be judged, by another thread: their texts are in one piece of memory.

use std::borrow::Cow;
use std::ops::Range;

use slidegate::{Micros, Own, Request, RequestId};

use super::event::{Decided, Event};

/// A run of lines, in the order of the trace.
#[derive(Debug, Default)]
pub(super) struct Batch {
    text: String,
    /// Names and values.
    pairs: Vec<(Range<usize>, Range<usize>)>,
    lines: Vec<(u64, Result<Parsed, String>)>,
    /// How far the file was read after the last of them.
    pub(super) position: u64,
}

/// One request; what it has of text is in the batch.
#[derive(Debug)]
struct Parsed {
    at: Micros,
    subject: Subject,
    permits: u64,
    id: Option<RequestId>,
    decided: Option<(bool, Option<Range<usize>>)>,
}

#[derive(Debug)]
enum Subject {
    /// Places of pairs.
    Attributes(Range<usize>),
    Resource(Range<usize>, Own),
}

impl Batch {
    /// Forgets everything, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.pairs.clear();
        self.lines.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// A line that is a request.
    pub(super) fn add(&mut self, number: u64, event: &Event<'_>) {
        let request = &event.request;
        let subject = match request.own_limit() {
            Some((name, own)) => Subject::Resource(self.keep(name), own),
            None => {
                let from = self.pairs.len();
                for (name, value) in request.attributes().unwrap_or_default() {
                    let pair = (self.keep(name), self.keep(value));
                    self.pairs.push(pair);
                }
                Subject::Attributes(from..self.pairs.len())
            }
        };
        let decided = event.decided.as_ref();
        let decided =
            decided.map(|decided| (decided.allowed, decided.denied_by.as_ref().map(|by| self.keep(by))));
        let (permits, id) = (request.cost(), request.known_as().cloned());
        self.lines.push((number, Ok(Parsed { at: event.at, subject, permits, id, decided })));
    }

    /// A line that is none.
    pub(super) fn add_bad(&mut self, number: u64, why: String) {
        self.lines.push((number, Err(why)));
    }

    /// Gives every line to `visit`, with its number, until it says that it is enough: a request, or what was wrong with it.
    pub(super) fn each<E>(
        &self,
        mut visit: impl FnMut(u64, Result<Event<'_>, &str>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        for (number, line) in &self.lines {
            let go_on = match line {
                Ok(parsed) => visit(*number, Ok(parsed.event(&self.text, &self.pairs)))?,
                Err(why) => visit(*number, Err(why))?,
            };
            if !go_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn keep(&mut self, text: &str) -> Range<usize> {
        let from = self.text.len();
        self.text.push_str(text);
        from..self.text.len()
    }
}

impl Parsed {
    #[inline]
    fn event<'b>(&self, text: &'b str, pairs: &[(Range<usize>, Range<usize>)]) -> Event<'b> {
        let part = |range: &Range<usize>| &text[range.clone()];
        let mut request = match &self.subject {
            Subject::Attributes(range) => {
                Request::new(pairs[range.clone()].iter().map(|(name, value)| (part(name), part(value))))
            }
            Subject::Resource(name, own) => own_limit(part(name), *own),
        };
        if self.permits != 1 {
            request = request.permits(self.permits);
        }
        if let Some(id) = &self.id {
            request = request.id(id.clone());
        }
        let decided = self.decided.as_ref().map(|(allowed, by)| Decided {
            allowed: *allowed,
            denied_by: by.as_ref().map(|by| Cow::Borrowed(part(by))),
        });
        Event { at: self.at, request, decided }
    }
}

/// A request of a resource that names as much of its limit.
pub(super) fn own_limit(resource: &str, own: Own) -> Request<'_> {
    let Own { limit, window, burst } = own;
    let mut request = Request::resource(resource);
    if let Some(limit) = limit {
        request = request.limit(limit);
    }
    if let Some(window) = window {
        request = request.window(window.into());
    }
    if let Some(burst) = burst {
        request = request.burst(burst);
    }
    request
}
