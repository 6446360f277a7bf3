//! `slidegate config`: prints the effective configuration.

use clap::Args;

use super::settings_args::{SECRET_VARIABLES, SettingsArgs, warn_of_unread_variables};
use crate::app::rule_manager::RulesBody;
use crate::common::console::say;

/// Arguments of `slidegate config`.
#[derive(Debug, Args)]
#[command(after_help = "A flag takes precedence over a variable, and a variable over the file.\n\n\
    Examples:\n  \
    slidegate config --config rules.yaml\n  \
    SLIDEGATE_LISTEN_HTTP=0.0.0.0:8080 slidegate config | grep http")]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Do not print the rules
    #[arg(long)]
    no_rules: bool,
}

/// Prints all settings with their origins, and the rules.
pub(super) fn run(args: &ConfigArgs) -> Result<(), String> {
    let inputs = args.settings.inputs();
    let files = args.settings.files(inputs.clone());
    let (settings, config) = files.effective()?;
    warn_of_unread_variables(&inputs, config.referenced);
    say(&format!(
        "# Effective configuration of slidegate {}. The comment after a value is its origin.",
        env!("CARGO_PKG_VERSION")
    ));
    for name in SECRET_VARIABLES.iter().filter(|name| std::env::var_os(name).is_some()) {
        say(&format!("# {name} is set, and its value is not printed."));
    }
    say(settings.trim_end());
    if args.no_rules {
        return Ok(());
    }
    say(&format!("# rules: {}", files.name()));
    if !config.rules.is_known() {
        say("rules: redis");
        return Ok(());
    }
    let rules =
        serde_saphyr::to_string(&RulesBody::from(&config.rules)).map_err(|error| error.to_string())?;
    say(rules.trim_end());
    Ok(())
}
