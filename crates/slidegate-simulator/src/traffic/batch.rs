//! Requests that were read and wait to be judged, by another thread.
//!
//! What most lines have is kept close together, because it goes from one core to another; what few have is elsewhere.

use slidegate::{AdHocLimit, Micros, Request, RequestId};

use super::event::{Decided, Event};

/// A run of lines, in the order of the trace.
#[derive(Debug, Default)]
pub(super) struct Batch {
    text: String,
    /// Where in the text names and values end. Each begins where the one before ends.
    ends: Vec<u32>,
    lines: Vec<Parsed>,
    /// How far the file was read after the last of them.
    pub(super) position: u64,
}

/// One line; its attributes are in the batch, one after the other.
#[derive(Debug)]
struct Parsed {
    number: u64,
    at: Micros,
    permits: u64,
    /// Names and values.
    texts: u32,
    rare: Option<Box<Rare>>,
}

/// What few lines have.
#[derive(Debug, Default)]
struct Rare {
    /// What is wrong with it, if it is no request.
    bad: Option<String>,
    /// The limit that it brings; its resource is then its only text.
    own: Option<AdHocLimit>,
    id: Option<RequestId>,
    decided: Option<(bool, Option<String>)>,
}

impl Batch {
    /// Forgets everything, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.lines.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// A line that is a request.
    pub(super) fn add(&mut self, number: u64, event: Event<'_, '_>) {
        let Event { at, request, decided } = event;
        let before = self.ends.len();
        let own = request.own_limit().map(|(resource, own)| {
            self.keep(resource);
            own
        });
        for (name, value) in request.attributes().unwrap_or_default() {
            self.keep(name);
            self.keep(value);
        }
        let id = request.known_as();
        let rare = own.is_some() || id.is_some() || decided.is_some();
        let rare = rare.then(|| {
            let decided = decided.map(|was| (was.allowed, was.denied_by.map(str::to_owned)));
            Box::new(Rare { bad: None, own, id: id.cloned(), decided })
        });
        let texts = (self.ends.len() - before) as u32;
        self.lines.push(Parsed { number, at, permits: request.cost(), texts, rare });
    }

    /// A line that is none.
    pub(super) fn add_bad(&mut self, number: u64, why: String) {
        let rare = Some(Box::new(Rare { bad: Some(why), ..Rare::default() }));
        self.lines.push(Parsed { number, at: Micros::ZERO, permits: 0, texts: 0, rare });
    }

    /// Gives every line to `visit`, with its number, until it says that it is enough: a request, or what was wrong with it.
    pub(super) fn each<E>(
        &self,
        mut visit: impl FnMut(u64, Result<Event<'_, '_>, &str>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut ends = self.ends.as_slice();
        let mut from = 0;
        // A request is large, so it borrows them.
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for line in &self.lines {
            let (own, rest) = ends.split_at(line.texts as usize);
            ends = rest;
            let texts = own.iter().map(|&to| {
                let text = &self.text[from..to as usize];
                from = to as usize;
                text
            });
            let go_on = match line.rare.as_deref() {
                None => {
                    pairs.clear();
                    pairs.extend(Pairs(texts));
                    let mut request = Request::from(pairs.as_slice());
                    if line.permits != 1 {
                        request = request.permits(line.permits);
                    }
                    visit(line.number, Ok(Event::new(line.at, &request)))?
                }
                Some(Rare { bad: Some(why), .. }) => visit(line.number, Err(why))?,
                Some(rare) => {
                    let request = rare.request(texts).permits(line.permits);
                    let event = Event { at: line.at, request: &request, decided: rare.decided() };
                    visit(line.number, Ok(event))?
                }
            };
            if !go_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn keep(&mut self, text: &str) {
        self.text.push_str(text);
        // A batch has far less than four gigabytes: so many lines of so many bytes.
        self.ends.push(self.text.len() as u32);
    }
}

impl Rare {
    fn request<'b>(&'b self, mut texts: impl Iterator<Item = &'b str>) -> Request<'b> {
        let request = match self.own {
            Some(own) => own_limit(texts.next().unwrap_or_default(), own),
            None => Request::new(Pairs(texts)),
        };
        match &self.id {
            Some(id) => request.id(id.clone()),
            None => request,
        }
    }

    fn decided(&self) -> Option<Decided<'_>> {
        let (allowed, by) = self.decided.as_ref()?;
        Some(Decided { allowed: *allowed, denied_by: by.as_deref() })
    }
}

/// Names and values, in turns, two by two.
struct Pairs<I>(I);

impl<'b, I: Iterator<Item = &'b str>> Iterator for Pairs<I> {
    type Item = (&'b str, &'b str);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, self.0.next()?))
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, most) = self.0.size_hint();
        (least / 2, most.map(|most| most / 2))
    }
}

/// A request of a resource that names as much of its limit.
pub(super) fn own_limit(resource: &str, own: AdHocLimit) -> Request<'_> {
    let AdHocLimit { limit, window, burst } = own;
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
