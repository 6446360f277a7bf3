//! Names of records and codes in the Lua parts: replaced by formats and numbers when a script is assembled, so that a
//! name costs nothing when the script runs.
//!
//! | in Lua | meaning |
//! |---|---|
//! | `RunForm.Granted` | a code |
//! | `Line.SIZE` | bytes of a record |
//! | `local key, kind = Line.take()` | some fields of the next record of the plan, in their order |
//! | `local line = Line.take_table()` | the next record of the plan, as a table |
//! | `local window = Line.at(text, offset)` | some fields of the record at that offset of a text, the first being 0 |
//! | `RunReply.pack({ granted = 1, … })` | a record as text; every field must be given |
//!
//! `A.B.pack`, `A.B.at` and `A.B.SIZE` treat a record `A` and the record `B` after it as one record.

use super::record::{CODES, RECORDS};

/// Replaces the names of records and codes; the error states which use is wrong.
pub(in crate::store::redis) fn expand(part: &str) -> Result<String, String> {
    let (mut out, mut rest) = (String::with_capacity(2 * part.len()), part);
    while let Some(first) = rest.chars().next() {
        let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let length = match first {
            '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            'A'..='Z' | 'a'..='z' | '_' => rest.find(|c| !is_path(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        rest = match token.rsplit_once('.').map(|(path, name)| (path, name, find(CODES, path), fields(path)))
        {
            Some((_, code, Some(codes), _)) => {
                let index = codes.iter().position(|known| *known == code);
                out += &index.ok_or_else(|| format!("unknown code {token}"))?.to_string();
                after
            }
            Some((_, method, None, Some(fields))) => expand_record(method, &fields, after, &mut out)
                .ok_or_else(|| format!("wrong use of {token}"))??,
            _ => {
                out += token;
                after
            }
        };
    }
    Ok(out)
}

fn find(declared: &[(&str, &'static [&'static str])], name: &str) -> Option<&'static [&'static str]> {
    declared.iter().find(|(known, _)| *known == name).map(|(_, names)| *names)
}

/// Returns the fields of one record, or of several in sequence.
fn fields(path: &str) -> Option<Vec<&'static str>> {
    Some(path.split('.').map(|name| find(RECORDS, name)).collect::<Option<Vec<_>>>()?.concat())
}

/// Expands one use of a record; `after` starts with its arguments. Returns the text after the arguments.
fn expand_record<'t>(
    method: &str,
    fields: &[&str],
    after: &'t str,
    out: &mut String,
) -> Option<Result<&'t str, String>> {
    let size = fields.len() * size_of::<f64>();
    if method == "SIZE" {
        *out += &size.to_string();
        return Some(Ok(after));
    }
    let (arguments, after) = parenthesized(after)?;
    let arguments = match expand(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return Some(Err(error)),
    };
    let format = |fields: usize| format!("'<{}'", "d".repeat(fields));
    match method {
        "take" => {
            let (names, first) = pop_names(out, fields)?;
            let (format, start) = (format(names.len()), 8 * first + 1);
            *out += &format!("{} = struct_unpack({format}, plan, position + {start})", names.join(", "));
            *out += &format!(" position = position + {size}");
        }
        "take_table" => {
            let (start, _) = assigned(out)?;
            let table = out.split_off(start).trim_end_matches([' ', '=']).to_owned();
            let (all, format) = (fields.join(", "), format(fields.len()));
            let pairs: Vec<String> = fields.iter().map(|field| format!("{field} = {field}")).collect();
            *out += &format!("{table} do local {all} = struct_unpack({format}, plan, position + 1)");
            *out += &format!(" {table} = {{ {} }} end position = position + {size}", pairs.join(", "));
        }
        "at" => {
            let (text, offset) = arguments.split_once(", ")?;
            let (names, first) = pop_names(out, fields)?;
            let (format, start) = (format(names.len()), 8 * first + 1);
            *out += &format!("{} = struct_unpack({format}, {text}, {offset} + {start})", names.join(", "));
        }
        "pack" => {
            let table = arguments.trim().strip_prefix('{')?.strip_suffix('}')?;
            let given: Vec<(&str, &str)> =
                split_list(table).map(|item| item.split_once('=')).collect::<Option<_>>()?;
            let value =
                |field: &&str| given.iter().find(|(name, _)| name.trim() == *field).map(|(_, v)| v.trim());
            let values: Vec<&str> = fields.iter().map(value).collect::<Option<_>>()?;
            if given.len() != values.len() {
                return None;
            }
            *out += &format!("struct_pack({}, {})", format(fields.len()), values.join(", "));
        }
        _ => return None,
    }
    Some(Ok(after))
}

/// Removes the names of an assignment from the end of `out`. Returns a name for each field from the first assigned
/// field to the last, and the index of the first.
fn pop_names(out: &mut String, fields: &[&str]) -> Option<(Vec<String>, usize)> {
    let (start, is_local) = assigned(out)?;
    let text = out.split_off(start);
    let names: Vec<&str> = text.trim_end().strip_suffix('=')?.split(',').map(str::trim).collect();
    let index = |name: &str| fields.iter().position(|field| *field == name);
    let (first, last) = (index(names.first()?)?, index(names.last()?)?);
    let known: Vec<&str> = fields.get(first..=last)?.to_vec();
    // Fields in between that are not assigned get the name `_`, which must not become a global variable.
    let all: Vec<String> =
        known.iter().map(|field| if names.contains(field) { *field } else { "_" }.to_owned()).collect();
    let in_order = known.iter().filter(|field| names.contains(field)).eq(names.iter());
    (in_order && (is_local || names.len() == known.len())).then_some((all, first))
}

/// Returns where the names of the assignment at the end of `out` start, and whether it declares local variables.
fn assigned(out: &str) -> Option<(usize, bool)> {
    let names = out.trim_end().strip_suffix('=')?;
    let is_list = |c: char| c.is_ascii_alphanumeric() || "_, \n".contains(c);
    let list = names.rfind(|c| !is_list(c)).map_or(0, |end| end + 1);
    match names[list..].rfind("local ") {
        Some(start) => Some((list + start + "local ".len(), true)),
        None => {
            let line = list + names[list..].rfind('\n')? + 1;
            Some((line + names[line..].find(|c| c != ' ')?, false))
        }
    }
}

/// Splits a text that starts with a parenthesis after the closing one; returns what is inside, and the rest.
fn parenthesized(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((text.get(1..i)?, &text[i + 1..]));
        }
    }
    None
}

/// Splits a list at the commas that are not inside parentheses or brackets. The last comma may be followed by nothing.
fn split_list(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let commas = move |c: char| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    list.split(commas).filter(|item| !item.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_read_and_packed_by_its_names() {
        for (name, fields) in RECORDS {
            let (list, format) = (fields.join(", "), format!("'<{}'", "d".repeat(fields.len())));
            let size = 8 * fields.len();
            assert_eq!(
                expand(&format!("\n  local {list} = {name}.take()\n")).unwrap(),
                format!(
                    "\n  local {list} = struct_unpack({format}, plan, position + 1) position = position + {size}\n"
                )
            );
            let (last, start) = (fields[fields.len() - 1], size - 7);
            assert_eq!(
                expand(&format!("\n  {last} = {name}.at(raw, 4)\n")).unwrap(),
                format!("\n  {last} = struct_unpack('<d', raw, 4 + {start})\n")
            );
            // Values given in any order are packed in the order of the fields.
            let values: Vec<String> =
                fields.iter().rev().map(|field| format!("{field} = f({field}, 1)")).collect();
            let packed: Vec<String> = fields.iter().map(|field| format!("f({field}, 1)")).collect();
            assert_eq!(
                expand(&format!("return {name}.pack({{ {} }})", values.join(", "))).unwrap(),
                format!("return struct_pack({format}, {})", packed.join(", "))
            );
            let pairs: Vec<String> = fields.iter().map(|field| format!("{field} = {field}")).collect();
            assert_eq!(
                expand(&format!("local t = {name}.take_table()")).unwrap(),
                format!(
                    "local t do local {list} = struct_unpack({format}, plan, position + 1) t = {{ {} }} end \
                     position = position + {size}",
                    pairs.join(", ")
                )
            );
        }
        for (name, codes) in CODES {
            for (i, code) in codes.iter().enumerate() {
                assert_eq!(expand(&format!("x == {name}.{code} and y")).unwrap(), format!("x == {i} and y"));
            }
        }
    }

    #[test]
    fn records_in_sequence_are_one_text() {
        assert_eq!(
            expand(
                "return ReplyHead.RunHead.GrantedRun.pack({ at = now, form = RunForm.Granted, used = u, })"
            )
            .unwrap(),
            "return struct_pack('<ddd', now, 1, u)"
        );
        assert_eq!(
            expand("local ttl, times, cost = Batch.Line.RequestHead.Run.at(plan, 0)").unwrap(),
            "local ttl, _, _, times, cost = struct_unpack('<ddddd', plan, 0 + 121)"
        );
        assert_eq!(expand("-- Batch.Line.SIZE\nBatch.Line.SIZE").unwrap(), "-- Batch.Line.SIZE\n136");
    }

    #[test]
    fn wrong_uses_are_errors() {
        for wrong in [
            "local key = Batch.take()",
            "local cost, times = Run.take()",
            "\ntimes, line = Run.take()",
            "Run.take()",
            "local run = Run.read()",
            "GrantedRun.pack({ used = 1, granted = 1 })",
            "RunHead.pack({})",
            "RunHead.pack({ form = RunForm.Denied })",
            "ReplyHead.pack({ at = 1",
        ] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }
}
