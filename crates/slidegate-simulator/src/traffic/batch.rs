//! Batch of parsed requests, passed from the thread that reads to the thread that decides.
//!
//! The fields that most lines have are stored compactly, because they move from one core to another. Uncommon fields are stored
//! separately.

use slidegate::{AdHocLimit, Micros, Request, RequestId};

use super::event::{Event, RecordedDecision};

/// Consecutive lines, in the order of the trace.
#[derive(Debug, Default)]
pub(super) struct Batch {
    text: String,
    /// Ends of the names and values in `text`. Each text begins at the end of the previous one.
    ends: Vec<u32>,
    lines: Vec<ParsedLine>,
    /// Position in the file after the last line, in bytes.
    pub(super) position: u64,
}

/// One line. Its attributes are in the batch, after those of the previous line.
#[derive(Debug)]
struct ParsedLine {
    number: u64,
    at: Micros,
    permits: u64,
    /// Number of names and values.
    texts: u32,
    uncommon: Option<Box<UncommonFields>>,
}

/// Fields that few lines have.
#[derive(Debug, Default)]
struct UncommonFields {
    /// Reason why the line could not be parsed.
    error: Option<String>,
    /// Ad-hoc limit of the request. The resource is then the line's only text.
    ad_hoc: Option<AdHocLimit>,
    id: Option<RequestId>,
    recorded: Option<(bool, Option<String>)>,
}

impl Batch {
    /// Removes all lines and keeps the allocated memory.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.lines.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Adds a line that is a request.
    pub(super) fn add(&mut self, number: u64, event: Event<'_, '_>) {
        let Event { at, request, recorded } = event;
        let before = self.ends.len();
        let ad_hoc = request.own_limit().map(|(resource, ad_hoc)| {
            self.push_text(resource);
            ad_hoc
        });
        for (name, value) in request.attributes().unwrap_or_default() {
            self.push_text(name);
            self.push_text(value);
        }
        let id = request.request_id();
        let uncommon = ad_hoc.is_some() || id.is_some() || recorded.is_some();
        let uncommon = uncommon.then(|| {
            let recorded = recorded.map(|decision| (decision.allowed, decision.denied_by.map(str::to_owned)));
            Box::new(UncommonFields { error: None, ad_hoc, id: id.cloned(), recorded })
        });
        let texts = (self.ends.len() - before) as u32;
        self.lines.push(ParsedLine { number, at, permits: request.cost(), texts, uncommon });
    }

    /// Adds a line that could not be parsed.
    pub(super) fn add_error(&mut self, number: u64, reason: String) {
        let uncommon = Some(Box::new(UncommonFields { error: Some(reason), ..UncommonFields::default() }));
        self.lines.push(ParsedLine { number, at: Micros::ZERO, permits: 0, texts: 0, uncommon });
    }

    /// Gives every line to `visit`, with its number: a request, or the reason why it could not be parsed. Stops early and returns
    /// false if `visit` returns false.
    pub(super) fn for_each<E>(
        &self,
        mut visit: impl FnMut(u64, Result<Event<'_, '_>, &str>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut ends = self.ends.as_slice();
        let mut from = 0;
        // A request that owns its attributes is large, so it borrows them from here.
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for line in &self.lines {
            let (own_ends, rest) = ends.split_at(line.texts as usize);
            ends = rest;
            let texts = own_ends.iter().map(|&to| {
                let text = &self.text[from..to as usize];
                from = to as usize;
                text
            });
            let proceed = match line.uncommon.as_deref() {
                None => {
                    pairs.clear();
                    pairs.extend(Pairs(texts));
                    let mut request = Request::from(pairs.as_slice());
                    if line.permits != 1 {
                        request = request.permits(line.permits);
                    }
                    visit(line.number, Ok(Event::new(line.at, &request)))?
                }
                Some(UncommonFields { error: Some(reason), .. }) => visit(line.number, Err(reason))?,
                Some(uncommon) => {
                    let request = uncommon.request(texts).permits(line.permits);
                    let event = Event { at: line.at, request: &request, recorded: uncommon.recorded() };
                    visit(line.number, Ok(event))?
                }
            };
            if !proceed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn push_text(&mut self, text: &str) {
        self.text.push_str(text);
        // The number of lines and their length are bounded: a batch is much smaller than 4 GiB.
        self.ends.push(self.text.len() as u32);
    }
}

impl UncommonFields {
    fn request<'b>(&'b self, mut texts: impl Iterator<Item = &'b str>) -> Request<'b> {
        let request = match self.ad_hoc {
            Some(ad_hoc) => Request::resource(texts.next().unwrap_or_default()).with_own_limit(ad_hoc),
            None => Request::new(Pairs(texts)),
        };
        match &self.id {
            Some(id) => request.id(id.clone()),
            None => request,
        }
    }

    fn recorded(&self) -> Option<RecordedDecision<'_>> {
        let (allowed, by) = self.recorded.as_ref()?;
        Some(RecordedDecision { allowed: *allowed, denied_by: by.as_deref() })
    }
}

/// Iterator that pairs alternating names and values.
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
