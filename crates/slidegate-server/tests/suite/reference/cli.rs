//! `docs/reference/cli.md`, from the declaration of the command line.
// Without the feature `otel` some flags are missing.
#![cfg(feature = "otel")]

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, Command};
use slidegate_testkit::documents::compare;

use super::cell;

const INTRODUCTION: &str = "# Command line

This page lists every subcommand and flag of `slidegate`. It is generated from the declarations in `crates/slidegate-server/src/cli`; a
test compares it with them. `slidegate SUBCOMMAND --help` prints the same texts.

These environment variables have no flag, so that secrets do not appear in the list of processes:

| variable | meaning |
|---|---|
| `SLIDEGATE_TOKEN` | token for decisions: `serve` requires it from clients, and `acquire`, `explain` and `bench` send it |
| `SLIDEGATE_ADMIN_TOKEN` | token that `serve` requires for changes of rules and counts |
| `SLIDEGATE_RESERVATION_KEY` | key with which `serve` signs reservations |

Every setting of the configuration file has a variable, too. [Configuration](configuration.md#environment-variables) lists them.
";

fn text(styled: Option<&StyledStr>) -> String {
    styled.map(ToString::to_string).unwrap_or_default().trim().to_owned()
}

fn default(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values = arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy()));
    values.collect::<Vec<_>>().join(" ")
}

/// Name of a flag or argument with the name of its value.
fn name(arg: &Arg) -> String {
    let values: Vec<&str> =
        arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let takes_value = arg.get_action().takes_values();
    match arg.get_long() {
        Some(long) if takes_value => format!("`--{long} {}`", values.join(" ")),
        Some(long) => format!("`--{long}`"),
        None => format!("`{}`", values.join(" ")),
    }
}

fn write_arguments<'a>(page: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    page.push_str("\n| flag | default | environment | meaning |\n|---|---|---|---|\n");
    for arg in arguments {
        let mut meaning = cell(&text(arg.get_long_help().or(arg.get_help())));
        let values = if arg.get_action().takes_values() { arg.get_possible_values() } else { Vec::new() };
        for value in values {
            let help = value.get_help().map(|help| format!(": {}", cell(&help.to_string())));
            write!(meaning, "<br>`{}`{}", value.get_name(), help.unwrap_or_default()).unwrap();
        }
        let environment =
            arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        writeln!(page, "| {} | {} | {environment} | {meaning} |", name(arg), default(arg)).unwrap();
    }
}

fn write_command(page: &mut String, command: &mut Command, path: &str) {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").lines().map(str::trim).collect::<Vec<_>>().join("\n");
    writeln!(
        page,
        "\n## {path}\n\n{}\n\n```text\n{usage}\n```",
        text(command.get_long_about().or(command.get_about()))
    )
    .unwrap();
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in command.get_arguments().filter(shown) {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        if let Some(heading) = heading {
            writeln!(page, "\n**{heading}**").unwrap();
        }
        write_arguments(
            page,
            command.get_arguments().filter(shown).filter(|arg| arg.get_help_heading() == heading),
        );
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        writeln!(page, "\n```text\n{}\n```", after.to_string().trim()).unwrap();
    }
    for subcommand in command.get_subcommands_mut().filter(|subcommand| subcommand.get_name() != "help") {
        let path = format!("{path} {}", subcommand.get_name());
        write_command(page, subcommand, &path);
    }
}

#[test]
fn page_lists_every_flag() {
    let mut page = INTRODUCTION.to_owned();
    let mut program = slidegate_server::command();
    program.build();
    for command in program.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let path = format!("slidegate {}", command.get_name());
        write_command(&mut page, command, &path);
    }
    compare("docs/reference/cli.md", &page.replace("|  |", "| |").replace("|  |", "| |"));
}
