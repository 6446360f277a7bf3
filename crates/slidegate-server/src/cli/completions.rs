//! `slidegate completions`: prints a completion script for a shell.

use clap_complete::Shell;

use crate::common::console::say;

/// Prints the script.
pub(super) fn run(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "slidegate", &mut script);
    say(String::from_utf8_lossy(&script).trim_end());
}
