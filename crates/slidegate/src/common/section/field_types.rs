//! Types of fields: numbers, texts, lengths of time, words, lists.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::{FieldType, Kind, Shown, Terms, Vocabulary};
use crate::Micros;
use crate::common::percent::percent;
use crate::common::yaml::{Node, Reader};
use crate::words::Words;

/// Records a mistake if a value is outside of the bounds of its field. `text` formats a value.
fn within(
    node: &Node,
    reader: &mut Reader,
    what: &str,
    value: u64,
    bounds: (u64, u64),
    text: impl Fn(u64) -> String,
) -> Option<u64> {
    let (min, max) = bounds;
    if (min..=max).contains(&value) {
        return Some(value);
    }
    let [min, max, value] = [min, max, value].map(text);
    reader.reject(node, format!("{what} must be between {min} and {max}, not {value}"))
}

macro_rules! whole_numbers {
    ($($type:ty),*) => { $(
        crate::field_type! {
            $type => $type,
            kind: |terms| {
                let (min, max) = terms.bounds.unwrap_or((0, u64::MAX));
                Kind::Whole(min, max)
            },
            read: |node, reader, what, terms| {
                let (min, max) = terms.bounds.unwrap_or((0, <$type>::MAX as u64));
                let number = reader.whole(node, what)?;
                within(node, reader, what, number, (min, max), |n| n.to_string())?.try_into().ok()
            },
            shown: |value| Shown::Whole(*value as u64),
        }
    )* };
}

whole_numbers!(u8, u32, u64, usize);

crate::field_type! {
    NonZeroU32 => NonZeroU32,
    kind: |_| Kind::Whole(1, u32::MAX.into()),
    read: |node, reader, what, _| {
        let number = reader.whole(node, what)?;
        let number = within(node, reader, what, number, (1, u32::MAX.into()), |n| n.to_string())?;
        u32::try_from(number).ok().and_then(NonZeroU32::new)
    },
    shown: |value| Shown::Whole(value.get().into()),
}

crate::field_type! {
    bool => bool,
    kind: |_| Kind::Flag,
    read: |node, reader, what, _| reader.flag(node, what),
    shown: |value| Shown::Flag(*value),
}

crate::field_type! {
    String => String,
    kind: |_| Kind::Text,
    read: |node, reader, what, _| reader.text(node, what).map(str::to_owned),
    shown: |value| Shown::Text(value.clone()),
}

crate::field_type! {
    PathBuf => PathBuf,
    kind: |_| Kind::Text,
    read: |node, reader, what, _| reader.text(node, what).map(PathBuf::from),
    shown: |value| Shown::Text(value.display().to_string()),
}

crate::field_type! {
    Micros => Micros,
    kind: |terms| Kind::Time(terms.bounds.map(|(min, max)| (Micros::new(min), Micros::new(max)))),
    read: |node, reader, what, terms| {
        let time = reader.duration(node, what)?;
        let Some(bounds) = terms.bounds else { return Some(time) };
        within(node, reader, what, time.get(), bounds, |n| Micros::new(n).to_string()).map(Micros::new)
    },
    shown: |value| Shown::Text(value.to_string()),
}

crate::field_type! {
    Duration => Duration,
    kind: |terms| Micros::kind(terms),
    read: |node, reader, what, terms| Micros::read(node, reader, what, terms).map(Duration::from),
    shown: |value| Micros::shown(&Micros::from(*value)),
}

/// Percentage such as `12.5%`, in hundredths of a percent.
#[derive(Clone, Copy, Debug)]
pub struct Percent;

crate::field_type! {
    Percent => u32,
    kind: |terms| Kind::Percent(terms.bounds),
    read: |node, reader, what, terms| {
        let share = reader.percent(node, what)?;
        if let Some(bounds) = terms.bounds {
            within(node, reader, what, share.into(), bounds, percent_text)?;
        }
        Some(share)
    },
    shown: |value| Shown::Text(percent(*value)),
}

/// Returns the text of a percentage in hundredths of a percent.
fn percent_text(hundredths: u64) -> String {
    percent(u32::try_from(hundredths).unwrap_or(u32::MAX))
}

/// Whole percentage such as `80%`, in percent.
#[derive(Clone, Copy, Debug)]
pub struct WholePercent;

crate::field_type! {
    WholePercent => u32,
    kind: |terms| Kind::Percent(terms.bounds.map(|(min, max)| (min * 100, max * 100))),
    read: |node, reader, what, terms| {
        let share = reader.percent(node, what)?;
        if !share.is_multiple_of(100) {
            return reader.reject(node, format!("{what} must be a whole number of percent"));
        }
        let bounds = terms.bounds.unwrap_or((0, u32::MAX.into()));
        let percent = within(node, reader, what, u64::from(share / 100), bounds, |n| format!("{n}%"))?;
        u32::try_from(percent).ok()
    },
    shown: |value| Shown::Text(format!("{value}%")),
}

/// Number such as `1.5`, in hundredths.
#[derive(Clone, Copy, Debug)]
pub struct Hundredths;

crate::field_type! {
    Hundredths => u32,
    kind: |terms| {
        let (min, max) = terms.bounds.unwrap_or((0, u64::MAX));
        Kind::Number(min, max)
    },
    read: |node, reader, what, terms| {
        let number = reader.hundredths(node, what)?;
        if let Some(bounds) = terms.bounds {
            within(node, reader, what, number.into(), bounds, |n| (n as f64 / 100.0).to_string())?;
        }
        Some(number)
    },
    shown: |value| Shown::Number(f64::from(*value) / 100.0),
}

/// Field that has no effect, or that is read elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Ignored;

crate::field_type! {
    Ignored => (),
    kind: |_| Kind::Any,
    read: |_, _, _, _| Some(()),
    shown: |_| Shown::Null,
}

impl<T: FieldType> FieldType for Option<T> {
    type Value = Option<T::Value>;

    fn kind(terms: &Terms) -> Kind {
        T::kind(terms)
    }

    fn read(node: &Node, reader: &mut Reader, what: &str, terms: &Terms) -> Option<Option<T::Value>> {
        T::read(node, reader, what, terms).map(Some)
    }

    fn shown(value: &Option<T::Value>) -> Shown {
        value.as_ref().map_or(Shown::Null, T::shown)
    }
}

impl<T: FieldType> FieldType for Vec<T> {
    type Value = Vec<T::Value>;

    fn kind(terms: &Terms) -> Kind {
        Kind::List(Box::new(T::kind(terms)), terms.nonempty)
    }

    /// Returns the valid items.
    fn read(node: &Node, reader: &mut Reader, what: &str, terms: &Terms) -> Option<Vec<T::Value>> {
        let items = reader.list(node, what)?;
        let what = terms.item.unwrap_or(what);
        Some(items.iter().filter_map(|item| T::read(item, reader, what, terms)).collect())
    }

    /// An empty list is not shown, because it means the same as a list that is not given.
    fn shown(value: &Vec<T::Value>) -> Shown {
        if value.is_empty() { Shown::Null } else { Shown::List(value.iter().map(T::shown).collect()) }
    }
}

impl<T: Words> FieldType for T {
    type Value = T;

    fn kind(_: &Terms) -> Kind {
        Kind::Words(Vocabulary::of::<T>())
    }

    fn read(node: &Node, reader: &mut Reader, what: &str, _: &Terms) -> Option<T> {
        let words: Vec<(&str, T)> = T::WORDS.iter().map(|(word, meaning, _)| (*word, *meaning)).collect();
        reader.word(node, what, &words)
    }

    fn shown(value: &T) -> Shown {
        let word = T::WORDS.iter().find(|(_, meaning, _)| meaning == value);
        word.map_or(Shown::Null, |(word, _, _)| Shown::Text((*word).to_owned()))
    }
}
