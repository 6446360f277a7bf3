//! `slidegate man`: manual pages.

use std::io;
use std::path::Path;

use clap_mangen::Man;

use crate::common::console::say;

/// Writes one page for each command to `directory`, or prints the page of `slidegate`.
pub(super) fn run(directory: Option<&Path>) -> Result<(), String> {
    match directory {
        Some(directory) => std::fs::create_dir_all(directory)
            .and_then(|()| clap_mangen::generate_to(super::command(), directory))
            .map_err(|error| format!("cannot write to {}: {error}", directory.display())),
        None => {
            let page = first_page().map_err(|error| error.to_string())?;
            say(page.trim_end());
            Ok(())
        }
    }
}

fn first_page() -> io::Result<String> {
    let mut page = Vec::new();
    Man::new(super::command().disable_help_subcommand(true)).render(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
