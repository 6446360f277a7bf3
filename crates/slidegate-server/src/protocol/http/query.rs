//! Query parameters of a request. Errors name the parameter and its values in the words of the API.

use std::ops::RangeInclusive;

use axum::extract::Query;
use axum::http::Uri;

use super::error::{ApiError, Code};

/// Parameters of a query, each at most once.
pub(super) struct QueryParams(Vec<(String, String)>);

impl QueryParams {
    /// Reads a query that has no other parameters than the `known` ones.
    pub(super) fn read(uri: &Uri, known: &[&str]) -> Result<Self, ApiError> {
        let params = QueryParams::read_any(uri)?;
        match params.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(params),
            Some((name, _)) => {
                Err(invalid(&format!("there is no parameter `{name}`: the parameters are {}", quoted(known))))
            }
        }
    }

    /// Reads a query that may have any parameters.
    pub(super) fn read_any(uri: &Uri) -> Result<Self, ApiError> {
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|_| invalid("it must be NAME=VALUE, separated by `&`"))?;
        for (n, (name, _)) in pairs.iter().enumerate() {
            if pairs[..n].iter().any(|(other, _)| other == name) {
                return Err(invalid(&format!("`{name}` is given twice")));
            }
        }
        Ok(QueryParams(pairs))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn required(&self, name: &str) -> Result<&str, ApiError> {
        self.text(name).ok_or_else(|| invalid(&format!("`{name}` is missing")))
    }

    pub(super) fn number(&self, name: &str, bounds: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse::<u64>().ok().filter(|number| bounds.contains(number));
        number.map(Some).ok_or_else(|| {
            let (min, max) = (bounds.start(), bounds.end());
            invalid(&format!("`{name}` must be a whole number between {min} and {max}"))
        })
    }

    /// Returns the choice whose word is the value of the parameter `name`, or `None` if the parameter is
    /// missing.
    pub(super) fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<Option<T>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let choice = choices.iter().find(|(word, _)| *word == text);
        choice.map(|(_, value)| Some(*value)).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            invalid(&format!("`{name}` must be one of {}", quoted(&words)))
        })
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

pub(super) fn invalid(problem: &str) -> ApiError {
    ApiError::new(Code::InvalidRequest, format!("invalid query: {problem}"))
}
