//! Configuration file: rules, listeners and settings. The parser checks the whole text and reports every mistake at
//! once.

mod access;
mod authorize;
mod effective;
mod expand;
mod guard;
mod hot_keys;
mod inputs;
mod limits;
mod listen;
mod load;
mod memory;
mod monitor;
mod redis;
mod reservations;
mod rules_text;
mod shutdown;
mod topology;

use std::str::FromStr;

use slidegate::section::{Description, Kind, Section, Shown, Vocabulary};
use slidegate::yaml::{Fields, Node, Reader};
use slidegate::{
    Error, MemoryOptions, Problem, Rules,
    redis::{FailoverOptions, StackOptions},
    rules::RulesFile,
};

pub use self::access::{AccessConfig, TlsConfig};
pub(crate) use self::authorize::deny_status;
pub use self::authorize::{AuthorizeConfig, Origin};
pub use self::inputs::{Environment, Inputs, variable_name};
pub use self::limits::{Limits, MAX_RULES_BODY};
pub use self::listen::{Listen, ListenAddress, ListenConfig};
pub(crate) use self::load::{load, mistakes, parse, read_text};
pub use self::monitor::{AccuracyConfig, MemoryConfig, MonitorConfig};
pub use self::redis::{DEFAULT_URL, RedisConfig};
pub use self::reservations::ReservationsConfig;
pub(crate) use self::rules_text::rules_part;
pub use self::shutdown::ShutdownConfig;

/// Configuration that `serve` uses without a file.
pub const DEMO: &str = include_str!("demo.yaml");

/// Kind of store that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process.
    #[default]
    Memory,
    /// Redis at this address, or at the address in `redis`.
    Redis(Option<String>),
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(StoreKind::Memory),
            "redis" => Ok(StoreKind::Redis(None)),
            url if redis::is_url(url) => Ok(StoreKind::Redis(Some(url.to_owned()))),
            _ => Err("the store must be `memory`, `redis`, or an address such as redis://127.0.0.1:6379"
                .to_owned()),
        }
    }
}

/// Checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Rules. Unknown if they are in Redis.
    pub rules: Rules,
    /// Settings of the server.
    pub settings: ConfigSettings,
    /// Parts of the file that are valid and probably not intended.
    pub warnings: Vec<Problem>,
    /// Text of the rules as their author wrote it, if they are a separate part of the file.
    pub rules_text: Option<String>,
    /// Names of the variables that the file refers to.
    pub referenced: Vec<String>,
}

slidegate::section! {
    /// Configuration file: rules, listeners and settings.
    pub struct ConfigSettings("Slidegate configuration") {
        /// Addresses of the listeners.
        listen: ListenConfig as listen::ListenSection,
        /// Tokens for calls and for changes.
        access: AccessConfig,
        /// TLS on every listener.
        tls: Option<TlsConfig>,
        /// Settings of `/v1/authorize`, which proxies call to ask for a decision.
        authorize: AuthorizeConfig,
        /// Place of the counts: `memory` (this process), `redis` (the server in the section `redis`), or the address
        /// of a Redis server (`redis://…`). The command line takes precedence.
        store: Option<StoreKind> { by_default("memory").secret() },
        /// Bounds of the memory store, and its policy when the store is full.
        memory: MemoryOptions as memory::MemoryStore,
        /// Connection to Redis, and storage options.
        redis: RedisConfig as redis::Redis,
        /// Decisions while Redis does not answer.
        guard: FailoverOptions as guard::Guard,
        /// Protection of Redis against overload by hot keys.
        hot_keys: StackOptions as hot_keys::HotKeys,
        /// Background checks of the counts and of the memory of Redis.
        monitor: MonitorConfig,
        /// Keys that sign reservations.
        reservations: ReservationsConfig,
        /// Shutdown of the server after a signal.
        shutdown: ShutdownConfig,
    }
}

impl Config {
    /// Parses a file without variables and flags. The error lists every mistake with its line. Sections that refer to variables
    /// or files are not read.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Config::parse_with(text, &Inputs::default())
    }

    /// Parses a file, with values from outside. The error lists every mistake with its line, or with its variable.
    pub fn parse_with(text: &str, inputs: &Inputs) -> Result<Self, Error> {
        parse_file(text, inputs).map(|(config, _)| config)
    }

    /// Returns the effective settings as YAML, each with its origin as a comment, and the checked configuration. `name` is the
    /// name of the file. Secrets are masked.
    pub fn effective(name: &str, text: &str, inputs: &Inputs) -> Result<(String, Self), Error> {
        let (config, given) = parse_file(text, inputs)?;
        Ok((effective::yaml(&config.settings, &given, name), config))
    }

    /// Parses only the settings of a file. Mistakes in the rules do not matter.
    pub(crate) fn parse_settings(text: &str, inputs: &Inputs) -> Result<ConfigSettings, Error> {
        let mut reader = Reader::default();
        let mut node = Node::parse(text)?;
        inputs.apply(&mut node, &mut reader);
        let known = [ConfigSettings::names(), RulesFile::names()].concat();
        let fields = reader.fields(&node, "the file", &known);
        let settings = fields.map(|fields| {
            ConfigSettings::given_from(ConfigSettings::default(), fields, &mut reader, "the file").value
        });
        reader.finish(settings)
    }

    /// Parses the rules of a configuration file, or rules in the format of `GET /v1/rules`. Other sections of the file are
    /// ignored.
    pub fn parse_rules(text: &str, redis: &RedisConfig) -> Result<Rules, Error> {
        let node = Node::parse(text)?;
        let mut reader = Reader::default();
        let known = [ConfigSettings::names(), RulesFile::names()].concat();
        let fields = reader.fields(&node, "the rules", &known);
        let rules = fields.and_then(|fields| Rules::read(fields, &mut reader));
        if let Some(rules) = &rules {
            redis::check_encodings(&node, &mut reader, redis, rules);
        }
        reader.finish(rules)
    }

    /// Describes the file as data, for the JSON Schema and the reference page.
    pub fn describe() -> Description {
        let mut file = ConfigSettings::describe();
        let rules = RulesFile::describe().fields.into_iter().filter(|(terms, ..)| terms.name != "edition");
        file.fields.extend(rules.map(|(mut terms, mut kind, default)| {
            if terms.name == "rules" {
                terms.doc = "Rules, in the order in which they are evaluated. Or `redis`: all nodes share the rules that are stored in \
                    Redis, and `PUT /v1/rules` replaces them.";
                let words = vec![("redis", "All nodes share the rules that are stored in Redis.")];
                let place = Vocabulary { name: "RulesPlace", doc: "Location of rules that are not in the file.", words };
                kind = Kind::Union("Rules", vec![kind, Kind::Words(place)]);
            }
            (terms, kind, default)
        }));
        file
    }
}

/// Parses a file, with values from outside. Returns the configuration, and the file with these values.
fn parse_file(text: &str, inputs: &Inputs) -> Result<(Config, Node), Error> {
    let mut reader = Reader::default();
    let mut node = Node::parse(text)?;
    let referenced = inputs.apply(&mut node, &mut reader);
    let known = [ConfigSettings::names(), RulesFile::names()].concat();
    let fields = reader.fields(&node, "the file", &known);
    let config = fields.and_then(|fields| read(fields, &mut reader));
    let mut config = reader.finish(config)?;
    (config.rules_text, config.referenced) = (rules_part(text), referenced);
    Ok((config, node))
}

fn read(fields: Fields<'_>, reader: &mut Reader) -> Option<Config> {
    let given = ConfigSettings::given_from(ConfigSettings::default(), fields, reader, "the file");
    let (settings, redis) = (given.value, given.fields.get("redis"));
    warn_of_references_in_rules(&given.fields, reader);
    check_store(&settings, &given.fields, reader);
    let rules = match given.fields.get("rules") {
        Some(node) if node.is_word("redis") => {
            if let Some(node) = given.fields.get("unmatched") {
                let message = "`unmatched` must be stored with the rules, which are in Redis: include it in `PUT /v1/rules`";
                reader.problem(node, message);
            }
            reader.accept(node, Rules::unknown())?
        }
        _ => Rules::read(given.fields, reader)?,
    };
    if let Some(node) = redis {
        redis::check_encodings(node, reader, &settings.redis, &rules);
    }
    let rules = settings.authorize.normalize_paths(rules);
    let warnings = reader.take_warnings();
    Some(Config { rules, settings, warnings, rules_text: None, referenced: Vec::new() })
}

/// Warns if the rules contain `${`: references are replaced only in settings, not in rules.
fn warn_of_references_in_rules(fields: &Fields<'_>, reader: &mut Reader) {
    for name in RulesFile::names() {
        if let Some(node) = fields.get(name)
            && node.any_text(&|text| text.contains("${"))
        {
            let message = format!(
                "`{name}` has `${{`, which is not replaced: only settings refer to variables and files"
            );
            reader.warning(node, message);
        }
    }
}

/// Checks variables with the address of Redis against the store.
fn check_store(settings: &ConfigSettings, fields: &Fields<'_>, reader: &mut Reader) {
    let Some(redis) = fields.get("redis") else { return };
    let address = topology::KINDS.iter().find_map(|kind| redis.field(kind)).filter(|node| is_variable(node));
    let Some((address, name)) = address.and_then(|node| Some((node, node.source()?))) else { return };
    match (&settings.store, fields.get("store")) {
        (Some(StoreKind::Redis(Some(_))), Some(store)) if is_variable(store) => {
            let message = format!(
                "the address of Redis is also in {name}: set only one of them, or SLIDEGATE_STORE=redis"
            );
            reader.problem(store, message);
        }
        (None | Some(StoreKind::Memory), _) => {
            reader.warning(address, "has no effect with `store: memory`: set SLIDEGATE_STORE=redis");
        }
        _ => {}
    }
}

/// Returns true if a value is from a variable.
fn is_variable(node: &Node) -> bool {
    node.source().is_some_and(|source| !source.starts_with('-'))
}

slidegate::field_type! {
    StoreKind => StoreKind,
    kind: |_| Kind::Text,
    // The value is not repeated in a message, because it may contain a password.
    read: |node, reader, what, _| {
        let store = reader.text(node, what)?.parse();
        store.map_err(|message: String| reader.problem(node, message)).ok()
    },
    shown: |_| Shown::Null,
}
