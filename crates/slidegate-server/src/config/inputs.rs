//! Values from outside of the file: environment variables and flags.
//!
//! Every setting has a variable, whose name derives from its declaration: `SLIDEGATE_LISTEN_HTTP` for `listen.http`. A flag
//! comes before a variable, a variable before the file, and the file before the default. Variables and flags become nodes
//! of the file with their name instead of a position. So they are read and checked like the file, and mistakes name them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use slidegate::section::{Description, Section, Setting};
use slidegate::yaml::{Node, Reader, nearest};

use super::ConfigSettings;
use super::expand::Expander;

/// Prefix of the names of all variables.
const PREFIX: &str = "SLIDEGATE_";

/// Returns the name of the variable of the setting at `path`.
pub fn variable_name(path: &[&str]) -> String {
    PREFIX.to_owned() + &path.join("_").replace('-', "_").to_uppercase()
}

/// Environment variables. `Debug` does not print them, because they may be secrets.
#[derive(Clone, Default)]
pub struct Environment {
    /// Values by name. None if a value is not UTF-8.
    variables: BTreeMap<String, Option<String>>,
}

impl Environment {
    /// Returns the variables of this process.
    pub fn of_process() -> Self {
        let text = |value: std::ffi::OsString| value.into_string().ok();
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value))));
        Environment { variables: variables.collect() }
    }

    /// Returns the value of a variable. None if it is not set.
    pub(super) fn get(&self, name: &str) -> Option<Result<&str, String>> {
        match self.variables.get(name)? {
            None => Some(Err(format!("{name} must be UTF-8"))),
            Some(text) if text.is_empty() => {
                Some(Err(format!("{name} is empty: set a value, or unset the variable")))
            }
            Some(text) => Some(Ok(text)),
        }
    }
}

impl<'v> FromIterator<(&'v str, &'v str)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'v str, &'v str)>>(variables: I) -> Self {
        let owned = variables.into_iter().map(|(name, value)| (name.to_owned(), Some(value.to_owned())));
        Environment { variables: owned.collect() }
    }
}

/// Setting that a flag sets.
#[derive(Clone)]
struct Flag {
    path: &'static [&'static str],
    name: &'static str,
    text: String,
}

/// Values from outside of the file.
#[derive(Clone, Default)]
pub struct Inputs {
    /// Variables for `${NAME}`. Without an environment, sections with `${` are not read.
    environment: Option<Environment>,
    /// True if variables set settings.
    sets_settings: bool,
    flags: Vec<Flag>,
}

impl fmt::Debug for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inputs").finish_non_exhaustive()
    }
}

impl Inputs {
    /// Values for a server: variables and flags set settings.
    pub fn new(environment: Environment) -> Self {
        Inputs { environment: Some(environment), sets_settings: true, flags: Vec::new() }
    }

    /// Variables that only `${NAME}` in the file refers to.
    pub fn references_only(environment: Environment) -> Self {
        Inputs { environment: Some(environment), ..Inputs::default() }
    }

    /// Adds the value of a flag for the setting at `path`.
    #[must_use]
    pub fn with_flag(
        mut self,
        path: &'static [&'static str],
        name: &'static str,
        text: Option<&str>,
    ) -> Self {
        self.flags.extend(text.map(|text| Flag { path, name, text: text.to_owned() }));
        self
    }

    /// Replaces `${…}` in the settings of a file, and puts the values of variables and flags into it. Returns the names of the
    /// variables that the file refers to.
    pub(super) fn apply(&self, file: &mut Node, reader: &mut Reader) -> Vec<String> {
        let Some(environment) = &self.environment else {
            skip_references(file);
            return Vec::new();
        };
        let settings = ConfigSettings::describe();
        let referenced = Expander::expand(file, &settings, environment, reader);
        for setting in settings.settings() {
            if let Some(node) = self.value_of(&setting, environment, reader) {
                file.set(&setting.path, node);
            }
        }
        referenced
    }

    /// Returns the value of a flag, or else of the variable of a setting. Records a mistake if it cannot be read.
    fn value_of(
        &self,
        setting: &Setting<'_>,
        environment: &Environment,
        reader: &mut Reader,
    ) -> Option<Node> {
        let flag = self.flags.iter().find(|flag| flag.path == setting.path);
        let (source, text) = match flag {
            Some(flag) => (flag.name.to_owned(), Ok(flag.text.as_str())),
            None => {
                let name = variable_name(&setting.path);
                let text = environment.get(&name).filter(|_| self.sets_settings)?;
                (name, text)
            }
        };
        let source: Arc<str> = source.into();
        let text = text.map_err(|message| {
            // The message names the variable.
            reader.problem(&Node::from_text(""), message);
        });
        let node = setting.kind.node(text.ok()?).map_err(|error| {
            let message = error.problems().first().map(|problem| problem.message.clone());
            let form = "must be a list or a mapping in YAML or JSON";
            let message = format!("{form}: {}", message.unwrap_or_default());
            reader.problem(&Node::from_text("").with_source(&source), message);
        });
        Some(node.ok()?.with_source(&source))
    }

    /// Returns a message for each variable with our prefix that nothing reads. `known` are the names of variables that are
    /// read elsewhere.
    pub(crate) fn unread(&self, known: &[String]) -> Vec<String> {
        let Some(environment) = &self.environment else { return Vec::new() };
        let section = ConfigSettings::describe();
        let settings: Vec<String> = section.settings().iter().map(|s| variable_name(&s.path)).collect();
        let names: Vec<&str> = settings.iter().chain(known).map(String::as_str).collect();
        let unread = environment.variables.keys().filter(|name| {
            name.starts_with(PREFIX) && !names.contains(&name.as_str()) && !is_service_link(name)
        });
        unread.map(|name| format!("{name} is not read: {}", hint(name, &names, &section))).collect()
    }
}

/// Returns a hint for an environment variable that the server does not read, such as the name that was meant.
fn hint(name: &str, names: &[&str], section: &Description) -> String {
    let short: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix(PREFIX)).collect();
    if let Some(meant) = nearest(name.trim_start_matches(PREFIX), &short) {
        return format!("did you mean {PREFIX}{meant}?");
    }
    let inside = section.settings().into_iter().map(|setting| variable_name(&setting.path));
    match inside.into_iter().find(|inner| inner.starts_with(&format!("{name}_"))) {
        Some(inner) => format!("it is a section, whose settings have their own variables, such as {inner}"),
        None => "`slidegate config` prints every setting, and docs/reference/configuration.md its variable"
            .to_owned(),
    }
}

/// Returns true for a variable that Kubernetes sets in every container beside a service whose name begins with `slidegate`,
/// such as `SLIDEGATE_SERVICE_HOST` and `SLIDEGATE_PORT_8080_TCP_ADDR`.
fn is_service_link(name: &str) -> bool {
    let protocol = |part: &str| ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| part.contains(protocol));
    let port = |text: &str| text.is_empty() || text.starts_with(|c: char| c == '_' || c.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.split_once("_SERVICE_PORT").is_some_and(|(_, rest)| port(rest))
        || name.ends_with("_PORT")
        || name
            .split_once("_PORT_")
            .is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()) && protocol(rest))
}

/// Removes the sections that refer to variables or files, which are not known.
fn skip_references(file: &mut Node) {
    for name in ConfigSettings::names() {
        if let Some(node) = file.field_mut(name)
            && node.any_text(&|text| text.contains("${"))
        {
            *node = Node::from_scalar("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_own_variable() {
        let section = ConfigSettings::describe();
        let mut names: Vec<String> = section.settings().iter().map(|s| variable_name(&s.path)).collect();
        assert!(names.contains(&"SLIDEGATE_HOT_KEYS_DENY_CACHE".to_owned()));
        assert!(names.iter().all(|name| !is_service_link(name)), "{names:?}");
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn unread_variables_are_reported_with_a_hint() {
        let names = [
            "SLIDEGATE_LISTN_HTTP",
            "SLIDEGATE_REDIS",
            "SLIDEGATE_SOMETHING_ELSE_ENTIRELY",
            "SLIDEGATE_TOKEN",
            "SLIDEGATE_STORE",
            "SLIDEGATE_SERVICE_HOST",
            "SLIDEGATE_SERVICE_PORT",
            "SLIDEGATE_SERVICE_PORT_HTTP",
            "SLIDEGATE_PORT",
            "SLIDEGATE_PORT_8080_TCP",
            "SLIDEGATE_PORT_8080_TCP_ADDR",
            "OTHER",
        ];
        let inputs = Inputs::new(names.into_iter().map(|name| (name, "x")).collect());
        assert_eq!(
            inputs.unread(&["SLIDEGATE_TOKEN".to_owned()]),
            [
                "SLIDEGATE_LISTN_HTTP is not read: did you mean SLIDEGATE_LISTEN_HTTP?",
                "SLIDEGATE_REDIS is not read: it is a section, whose settings have their own variables, such as \
                 SLIDEGATE_REDIS_URL",
                "SLIDEGATE_SOMETHING_ELSE_ENTIRELY is not read: `slidegate config` prints every setting, and \
                 docs/reference/configuration.md its variable",
            ]
        );
    }
}
