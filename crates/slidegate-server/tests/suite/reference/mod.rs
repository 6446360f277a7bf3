//! Files that derive from declarations in the code. The tests compare the files with the declarations; with
//! `SLIDEGATE_WRITE=1` they write the files.

mod cli;
mod configuration;
mod http_api;

/// Text for a cell of a table. Outside of code, characters that Markdown would interpret are escaped.
fn cell(text: &str) -> String {
    let mut is_code = false;
    let escaped = text.chars().map(|char| {
        is_code ^= char == '`';
        match char {
            '\n' => " ".to_owned(),
            '|' => "\\|".to_owned(),
            '*' | '<' | '[' | ']' if !is_code => format!("\\{char}"),
            char => char.to_string(),
        }
    });
    escaped.collect()
}
