//! Flags that set settings: of `serve`, and of the commands that need to know how the server is configured.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::app::auth::TOKEN_VARIABLE;
use crate::app::reservation_keys::KEY_VARIABLE;
use crate::app::rule_manager::FileSource;
use crate::common::console::warn;
use crate::config::{Environment, Inputs, ListenAddress, StoreKind};

/// Environment variable with a token that allows changes of rules and counts.
pub(super) const ADMIN_TOKEN_VARIABLE: &str = "SLIDEGATE_ADMIN_TOKEN";

/// Variables with secrets, which are neither settings nor flags.
pub(super) const SECRET_VARIABLES: [&str; 3] = [TOKEN_VARIABLE, ADMIN_TOKEN_VARIABLE, KEY_VARIABLE];

/// Configuration file, and flags that take precedence over it.
#[derive(Debug, Args)]
pub(super) struct SettingsArgs {
    /// Configuration file with rules and settings [default: demo rules]
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Directory with files of envoyproxy/ratelimit (*.yaml, *.yml). Their rules come after the rules of --config
    #[arg(long, value_name = "DIR", env = "SLIDEGATE_ENVOY_CONFIG")]
    envoy_config: Option<PathBuf>,
    /// Place of the counts: `memory` (the counts end with the process), `redis` (the server in the configuration), or
    /// the URL of a Redis server such as redis://user:password@host:6379. Several Slidegate servers can share one
    /// Redis [env: SLIDEGATE_STORE] [default: memory]
    #[arg(long, value_name = "STORE", value_parser = checked::<StoreKind>)]
    store: Option<String>,
    /// Address of the HTTP listener. With port 0, the server selects a free port and
    /// prints it. `off` disables the listener [env:
    /// SLIDEGATE_LISTEN_HTTP] [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = checked::<ListenAddress>)]
    http: Option<String>,
    /// Address of the gRPC listener, for Envoy [env: SLIDEGATE_LISTEN_GRPC] [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDR", value_parser = checked::<ListenAddress>)]
    grpc: Option<String>,
    /// Address of the listener for the Redis protocol (RESP) [env: SLIDEGATE_LISTEN_RESP] [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDR", value_parser = checked::<ListenAddress>)]
    resp: Option<String>,
    /// Address of the HTTP listener for changes of rules and counts. If it is set, all other listeners reject these
    /// changes [env: SLIDEGATE_LISTEN_ADMIN] [default: off]
    #[arg(long, value_name = "ADDR", value_parser = checked::<ListenAddress>)]
    admin: Option<String>,
}

/// Checks the value of a flag, and returns it as it is.
fn checked<T: FromStr<Err = String>>(text: &str) -> Result<String, String> {
    text.parse::<T>().map(|_| text.to_owned())
}

impl SettingsArgs {
    /// Returns the values of these flags, and of the environment.
    pub(super) fn inputs(&self) -> Inputs {
        Inputs::new(Environment::of_process())
            .with_flag(&["store"], "--store", self.store.as_deref())
            .with_flag(&["listen", "http"], "--http", self.http.as_deref())
            .with_flag(&["listen", "grpc"], "--grpc", self.grpc.as_deref())
            .with_flag(&["listen", "resp"], "--resp", self.resp.as_deref())
            .with_flag(&["listen", "admin"], "--admin", self.admin.as_deref())
    }

    /// Returns the files, which are read together with `inputs`.
    pub(super) fn files(&self, inputs: Inputs) -> FileSource {
        FileSource::new(self.config.clone(), self.envoy_config.clone(), inputs)
    }
}

/// Logs a warning for each variable with our prefix that nothing reads. `referenced` are the names that the file refers to.
pub(super) fn warn_of_unread_variables(inputs: &Inputs, referenced: Vec<String>) {
    let mut known = referenced;
    known.extend(SECRET_VARIABLES.map(str::to_owned));
    collect_variables(&super::command(), &mut known);
    inputs.unread(&known).iter().for_each(|message| warn(message));
}

/// Collects the variables of all flags.
fn collect_variables(command: &clap::Command, names: &mut Vec<String>) {
    let variables = command.get_arguments().filter_map(|argument| argument.get_env());
    names.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|command| collect_variables(command, names));
}
