//! Parses CSV tables with a header and one request per line.

use csv_core::{ReadRecordResult, Reader};
use slidegate::Request;

use super::event::Event;
use super::fields::{Fields, MappedAttribute, ResolvedFields, unknown_field_error};
use super::json::TIME_FIELDS;
use super::line_reader::MAX_LINE;
use super::time::read_time;

/// Maximum number of columns.
const MAX_COLUMNS: usize = 1_000;

/// Parser for lines of a table.
#[derive(Debug)]
pub(super) struct Csv {
    record: Record,
    columns: usize,
    time: usize,
    permits: Option<usize>,
    attributes: Vec<(usize, String)>,
    fields: Fields,
    mapped: Vec<MappedAttribute>,
    missing: Vec<String>,
}

impl Csv {
    /// Creates a parser from the header, which is the first line of the table.
    pub(super) fn new(header: &str, fields: &Fields) -> Result<Self, String> {
        let mut record = Record::default();
        record.read(header)?;
        let names: Vec<&str> = record.values().map(str::trim).collect();
        let what = "the header of the table";
        let index = |flag: &str, field: &str| {
            names
                .iter()
                .position(|name| *name == field)
                .ok_or_else(|| unknown_field_error(flag, field, &names, what))
        };
        let time = match &fields.time {
            Some(field) => index("--time", field)?,
            None => TIME_FIELDS
                .iter()
                .find_map(|time| names.iter().position(|name| name == time))
                .ok_or_else(|| {
                    format!(
                        "{what} has no time field (one of {}): name it with --time",
                        TIME_FIELDS.join(", ")
                    )
                })?,
        };
        let permits = fields.permits.as_deref().map(|field| index("--permits", field)).transpose()?;
        let ResolvedFields { indices: attributes, mapped, missing } = fields.resolve(&names, what)?;
        let columns = names.len();
        Ok(Csv { record, columns, time, permits, attributes, fields: fields.clone(), mapped, missing })
    }

    pub(super) fn mapped(&self) -> Vec<MappedAttribute> {
        self.mapped.clone()
    }

    /// Parses one line and gives its request to `visit`.
    pub(super) fn read(
        &mut self,
        line: &str,
        visit: impl FnOnce(Event<'_, '_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.record.read(line)?;
        let n = self.record.values().count();
        if n != self.columns {
            return Err(format!("the line has {n} values, but the header has {}", self.columns));
        }
        let value = |index| self.record.value(index);
        let time = value(self.time);
        let at = read_time(time).ok_or_else(|| format!("\"{time}\" is not a time"))?;
        let permits = match self.permits {
            Some(index) => {
                let permits = value(index).trim();
                permits.parse().map_err(|_| format!("\"{permits}\" is not a number of permits"))?
            }
            None => 1,
        };
        let named = self.attributes.iter().map(|(index, name)| (name.as_str(), value(*index)));
        let named = named.filter(|(_, value)| !value.is_empty());
        let request = Request::new(named.chain(self.fields.constants())).permits(permits);
        visit(Event::new(at, &request))
    }

    /// Returns a note for the report about attributes that the table does not have.
    pub(super) fn note(&self) -> Option<String> {
        let first = self.missing.first()?;
        Some(format!(
            "the table has no `{}`, which the rules use: set --attribute {first}=COLUMN, or --constant {first}=VALUE",
            self.missing.join("`, `")
        ))
    }
}

/// Values of one line.
#[derive(Debug, Default)]
struct Record {
    text: String,
    /// End of each value in `text`.
    ends: Vec<usize>,
}

impl Record {
    fn read(&mut self, line: &str) -> Result<(), String> {
        let mut text = std::mem::take(&mut self.text).into_bytes();
        text.resize(line.len().min(MAX_LINE) + 1, 0);
        self.ends.resize(MAX_COLUMNS, 0);
        let (read, _, written, ends) = Reader::new().read_record(line.as_bytes(), &mut text, &mut self.ends);
        match read {
            // The end of the input ends the last value.
            ReadRecordResult::InputEmpty | ReadRecordResult::Record => {}
            ReadRecordResult::End => return Err("it is empty".to_owned()),
            ReadRecordResult::OutputFull => return Err("the line is too long".to_owned()),
            ReadRecordResult::OutputEndsFull => {
                return Err(format!("the line has more than {MAX_COLUMNS} values"));
            }
        }
        text.truncate(written);
        self.ends.truncate(ends);
        if self.ends.last() != Some(&written) || self.ends.is_empty() {
            self.ends.push(written);
        }
        self.text = String::from_utf8(text).map_err(|_| "the line is not text".to_owned())?;
        Ok(())
    }

    fn value(&self, index: usize) -> &str {
        let from = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[from..self.ends[index]]
    }

    fn values(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|index| self.value(index))
    }
}
