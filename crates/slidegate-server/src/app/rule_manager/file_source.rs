//! Rules from files, reloaded when a file changes or on SIGHUP.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use slidegate::{Rules, Unmatched};
use tokio::task::spawn_blocking;

use crate::app::state::AppState;
use crate::common::file_watch::{FileWatch, POLL_INTERVAL};
use crate::common::service_manager;
use crate::config::{self, Config, ConfigSettings, DEMO, Inputs};
use crate::envoy;

use super::Sighup;

/// Name of the rules that are used without a file.
const DEMO_NAME: &str = "demo rules";

/// Files with rules: our configuration file, and a directory of envoyproxy/ratelimit files. Demo rules if neither is
/// given.
#[derive(Clone, Debug)]
pub(crate) struct FileSource {
    config: Option<PathBuf>,
    envoy: Option<PathBuf>,
    /// Values from outside of the files.
    inputs: Inputs,
    /// Configuration from standard input, which can be read only once.
    stdin_config: Arc<OnceLock<Config>>,
}

impl FileSource {
    pub(crate) fn new(config: Option<PathBuf>, envoy: Option<PathBuf>, inputs: Inputs) -> Self {
        FileSource { config, envoy, inputs, stdin_config: Arc::default() }
    }

    pub(crate) fn is_demo(&self) -> bool {
        self.config.is_none() && self.envoy.is_none()
    }

    /// Returns the names of the files, for messages.
    pub(crate) fn name(&self) -> String {
        let names: Vec<String> = [&self.config, &self.envoy]
            .into_iter()
            .flatten()
            .map(|path| path.display().to_string())
            .collect();
        if names.is_empty() { DEMO_NAME.to_owned() } else { names.join(", ") }
    }

    /// Reads and checks all files. The error lists every mistake.
    pub(crate) fn load(&self) -> Result<Config, String> {
        let config = match &self.config {
            Some(path) if path == Path::new("-") => self.load_once(path)?,
            Some(path) => config::load(path, &self.inputs)?,
            None => config::parse(DEMO_NAME, DEMO, &self.inputs)?,
        };
        self.with_envoy_rules(config)
    }

    /// Returns the effective settings as YAML, and the configuration. The error lists every mistake.
    pub(crate) fn effective(&self) -> Result<(String, Config), String> {
        let (name, text) = self.text()?;
        let effective = Config::effective(&name, &text, &self.inputs);
        let (settings, config) = effective.map_err(|error| config::mistakes(&name, &error))?;
        Ok((settings, self.with_envoy_rules(config)?))
    }

    /// Returns the settings. Mistakes in the rules do not matter.
    pub(crate) fn settings(&self) -> Result<ConfigSettings, String> {
        let (name, text) = self.text()?;
        Config::parse_settings(&text, &self.inputs).map_err(|error| config::mistakes(&name, &error))
    }

    /// Returns the name and the text of the configuration file.
    fn text(&self) -> Result<(String, Cow<'static, str>), String> {
        let Some(path) = &self.config else { return Ok((DEMO_NAME.to_owned(), DEMO.into())) };
        let name = path.display().to_string();
        let text = config::read_text(path).map_err(|error| format!("cannot read {name}: {error}"))?;
        Ok((name, text.into()))
    }

    fn with_envoy_rules(&self, mut config: Config) -> Result<Config, String> {
        if let Some(directory) = &self.envoy {
            let more = envoy::load(directory)?;
            let own = match &self.config {
                Some(_) if !config.rules.is_known() => {
                    return Err(
                        "`rules: redis` and --envoy-config cannot be combined: convert the files with `slidegate import envoy`".to_owned()
                    );
                }
                Some(_) => config.rules,
                None => Rules::new([]).map_err(|error| error.to_string())?,
            };
            let rules = own.and(more).map_err(|error| format!("{}: {error}", self.name()))?;
            // envoyproxy/ratelimit allows a descriptor that its files do not name.
            config.rules = rules.or_unmatched(Unmatched::Allow);
        }
        Ok(config)
    }

    fn load_once(&self, path: &Path) -> Result<Config, String> {
        if let Some(config) = self.stdin_config.get() {
            return Ok(config.clone());
        }
        let config = config::load(path, &self.inputs)?;
        Ok(self.stdin_config.get_or_init(|| config).clone())
    }

    /// Returns the files that can change. Standard input is not one of them.
    fn paths(&self) -> Vec<PathBuf> {
        let own = self.config.iter().filter(|path| path.as_path() != Path::new("-")).cloned();
        let theirs = self.envoy.iter().flat_map(|directory| envoy::files(directory).unwrap_or_default());
        own.chain(theirs).collect()
    }

    /// Starts to watch the files. Must be called before they are read, so that no later change is missed.
    pub(crate) fn watch(&self) -> FileWatch {
        FileWatch::new(self.paths())
    }

    /// Reads the files if they have changed, or if a reload is `requested`. None if there is nothing to read. The flag
    /// beside the configuration is true if the files did not change while they were read.
    ///
    /// Blocks as long as the file system does.
    fn read_if_changed(
        &self,
        watch: &mut FileWatch,
        requested: bool,
    ) -> Option<Result<(Config, bool), String>> {
        if !watch.changed(self.paths()) && !requested {
            return None;
        }
        Some(self.load().map(|config| (config, watch.confirm(self.paths()))))
    }

    /// Puts the rules of the files in force whenever a file changes, or a signal requests it. Rules from another source
    /// stay in force as long as the content of the files is the same.
    ///
    /// The files are read on a blocking thread: a file system that does not answer delays only this task.
    pub(crate) async fn follow(self, watch: FileWatch, mut sighup: Sighup, app: Arc<AppState>) {
        let watch = Arc::new(Mutex::new(watch));
        let mut last_hash = app.rules.current().hash.clone();
        loop {
            let requested = tokio::select! {
                () = sighup.received() => true,
                () = tokio::time::sleep(POLL_INTERVAL) => false,
            };
            if requested {
                service_manager::reloading();
            }
            let (files, watch) = (self.clone(), Arc::clone(&watch));
            let read = spawn_blocking(move || files.read_if_changed(&mut watch.lock(), requested)).await;
            let Some(read) = read.unwrap_or_else(|_| Some(Err("reading the file failed".to_owned()))) else {
                continue;
            };
            match read {
                Ok((config, _)) if !config.rules.is_known() => {
                    app.reject_rules(&self.name(), "`rules: redis` takes effect after a restart".to_owned());
                }
                Ok((config, true)) => {
                    let now = super::hash(&config.rules);
                    if let Some(text) = &config.rules_text {
                        app.set_rules_text(text);
                    }
                    if requested || now != last_hash {
                        app.change_rules(config.rules, &self.name(), None);
                    }
                    app.rules.clear_failure();
                    last_hash = now;
                }
                // The files changed while they were read.
                Ok((_, false)) => {}
                // The files are read again until they are valid.
                Err(message) => app.reject_rules(&self.name(), message),
            }
            if requested {
                service_manager::ready();
            }
        }
    }
}
