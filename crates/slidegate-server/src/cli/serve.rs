//! `slidegate serve`: starts the server.

use std::env::VarError;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use slidegate::{Clock, ReservationKey, ReservationKeys, SystemClock, redis::RedisStore};

use super::announce::{Announcer, Listening};
use super::settings_args::{ADMIN_TOKEN_VARIABLE, SettingsArgs, warn_of_unread_variables};
use crate::app::auth::{Auth, TOKEN_VARIABLE, Token};
use crate::app::reservation_keys::{self, SharedKey};
use crate::app::rule_manager::Sighup;
use crate::app::state::{AppState, Settings};
use crate::app::{adaptive_task, fleet, monitor, rule_manager};
use crate::common::console::warn;
use crate::common::{secret_file, service_manager, signals};
use crate::config::{AccessConfig, Config, Listen, ListenAddress, ReservationsConfig};
use crate::protocol::serve::Listeners;
use crate::protocol::tls::Tls;
use crate::protocol::{listener, serve};
use crate::store::AnyStore;
use crate::telemetry::capture::RecordArgs;
use crate::telemetry::log::LogArgs;

/// Length of the shortest token.
const MIN_SECRET_CHARS: usize = 16;

/// Number of listeners.
const MAX_LISTENERS: u64 = 4;

/// Open files besides connections.
const OPEN_FILES: u64 = 5_000;

/// Exit code after a second signal, by the convention of shells: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// Time limit for blocking work when the server stops. A file that is still being read after that, such as one on a
/// network mount that does not answer, does not keep the process running.
const BLOCKING_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Accept changes at the address of --admin without a token, even if other machines can reach this address
    #[arg(long, env = "SLIDEGATE_ADMIN_WITHOUT_TOKEN")]
    admin_without_token: bool,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// Runs the server until the process receives a signal to stop.
pub(super) fn run(args: ServeArgs) -> Result<(), String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| {
        args.log.start_lines();
        format!("cannot start: {error}")
    })?;
    let log_keys = args.log.log_keys;
    let announcer = Announcer::new(args.log.is_json());
    let clock = SystemClock::new();
    let started = clock.now();
    let logging = {
        let _inside = runtime.enter();
        args.log.start()?
    };
    let inputs = args.settings.inputs();
    let files = args.settings.files(inputs.clone());
    let watch = files.watch();
    let Config { rules, settings, rules_text, referenced, .. } = files.load()?;
    warn_of_unread_variables(&inputs, referenced);
    let source = files.name();
    let listen = settings.listen.addresses.or(Listen::DEFAULT);
    let store = settings.store.clone().unwrap_or_default();
    let access = access(&settings.access)?;
    if !args.admin_without_token {
        check_admin(&listen, &access)?;
    }
    let reservation_keys = reservation_keys(&settings.reservations)?;
    let recording = args.record.create()?;
    // A connection is an open file. If the system allows fewer, the listener reports it when they run out.
    let limits = settings.listen.limits;
    let _ = rlimit::increase_nofile_limit(OPEN_FILES + MAX_LISTENERS * limits.connections as u64);
    let served = runtime.block_on(async {
        let tls = settings.tls.clone().map(Tls::new).transpose()?.map(Arc::new);
        let (listeners, addresses) = bind_listeners(listen, tls.clone()).await?;
        let store = AnyStore::open(store, &settings)?;
        let shared_rules = if rules.is_known() { None } else { Some(shared_rules(&store)?) };
        let mut app = AppState::new(store.clone(), settings.authorize.normalize_paths(rules), source);
        app.settings = Settings {
            access,
            limits,
            authorize: settings.authorize,
            redis: settings.redis,
            shared_rules: shared_rules.clone(),
            log_keys,
            shutdown: settings.shutdown.clone(),
        };
        if let Some(text) = &rules_text {
            app.set_rules_text(text);
        }
        app.stats.enabled = settings.monitor.decisions;
        let first = addresses.first();
        app.fleet.name = first.map_or_else(String::new, |listening| fleet::node_name(listening.address));
        let shared_key = match (reservation_keys, store.redis_store()) {
            (Some(keys), _) => {
                app.limiter.set_reservation_keys(keys);
                None
            }
            (None, Some(redis)) => Some(SharedKey::start(redis.clone(), &app.limiter).await),
            // With the memory store, counts and reservations are lost with the process, and so may the key.
            (None, None) => None,
        };
        let app = Arc::new(app);
        if let Some(shared_key) = shared_key {
            tokio::spawn(shared_key.follow(Arc::clone(&app)));
        }
        tokio::spawn(store.clone().start_and_watch());
        tokio::spawn(monitor::watch(Arc::clone(&app), settings.monitor));
        tokio::spawn(adaptive_task::watch(Arc::clone(&app)));
        tokio::spawn(fleet::publish(Arc::clone(&app)));
        if let Some(tls) = tls {
            tokio::spawn(tls.reload_on_change());
        }
        tokio::spawn(follow_tokens(settings.access, Arc::clone(&app)));
        tokio::spawn(follow_reservation_keys(settings.reservations, Arc::clone(&app)));
        let signalled = stop_signal(announcer.log_signal(signals::received()));
        let (source, demo) = (app.rules.current().source.clone(), files.is_demo());
        let (sighup, rules_app) = (Sighup::new(), Arc::clone(&app));
        match shared_rules {
            Some(store) => drop(tokio::spawn(rule_manager::follow_shared(store, sighup, rules_app))),
            None => drop(tokio::spawn(files.follow(watch, sighup, rules_app))),
        }
        let recorder = Arc::clone(&app.stats.recorder);
        let recording = recording.map(|recording| recording.start(&recorder)).transpose()?;
        // The signal handlers are installed: a program that reads "ready" may send a signal.
        announcer.started(&addresses, &store, &source, demo);
        tokio::spawn(announce_ready(announcer, Arc::clone(&app)));
        tokio::spawn(service_manager::feed_watchdog());
        serve::run(listeners, app, signalled).await;
        recorder.end_all();
        let written = async {
            if let Some(recording) = recording {
                let _ = tokio::task::spawn_blocking(|| recording.join()).await;
            }
        };
        let timeout = settings.shutdown.leave_timeout();
        let (written, left) = tokio::join!(
            tokio::time::timeout(timeout, written),
            tokio::time::timeout(timeout, store.leave())
        );
        if written.is_err() {
            warn("the recording is not written to its end: its disk does not answer");
        }
        match (store.redis_store(), left) {
            (None, _) => {}
            (Some(_), Ok(())) => tracing::info!(
                event = "left",
                "leased permits are returned, and the other nodes are informed"
            ),
            // Leases expire, and the other nodes notice the missing heartbeats.
            (Some(_), Err(_)) => warn("Redis does not answer: leased permits stay taken until they expire"),
        }
        announcer.stopped(clock.now().since(started));
        Ok(())
    });
    logging.finish();
    runtime.shutdown_timeout(BLOCKING_TIMEOUT);
    served
}

/// Announces to people and to the service manager that the node is ready, as soon as it is.
async fn announce_ready(announcer: Announcer, app: Arc<AppState>) {
    announcer.ready(app).await;
    service_manager::ready();
}

/// Completes when a signal asks the server to stop. A second signal then ends the process at once.
async fn stop_signal(signalled: impl Future<Output = ()>) {
    signalled.await;
    let again = signals::signalled();
    service_manager::stopping();
    tokio::spawn(async {
        again.await;
        warn("stopping at once, because of a second signal");
        std::process::exit(INTERRUPTED);
    });
}

/// Returns the store with the shared rules.
fn shared_rules(store: &AnyStore) -> Result<RedisStore, String> {
    let store = store.redis_store().cloned();
    store.ok_or_else(|| "`rules: redis` needs `store: redis`, because the rules are stored there".to_owned())
}

/// Reads the tokens of the environment and of the files in `access`.
fn access(config: &AccessConfig) -> Result<Auth, String> {
    let data = tokens(TOKEN_VARIABLE, config.tokens_file.as_deref())?;
    let admin = tokens(ADMIN_TOKEN_VARIABLE, config.admin_tokens_file.as_deref())?;
    Ok(Auth::new(data, admin))
}

/// Reads the tokens again whenever one of their files changes.
async fn follow_tokens(config: AccessConfig, app: Arc<AppState>) {
    let paths = [&config.tokens_file, &config.admin_tokens_file].into_iter().flatten().cloned().collect();
    let apply = |auth: Auth| app.settings.access.replace(&auth);
    secret_file::follow("tokens", paths, move || access(&config), apply).await;
}

/// Reads the keys that sign reservations again whenever their file changes.
async fn follow_reservation_keys(config: ReservationsConfig, app: Arc<AppState>) {
    let paths = config.keys_file.iter().cloned().collect();
    let apply = |keys: Option<ReservationKeys>| {
        if let Some(keys) = keys {
            app.limiter.set_reservation_keys(keys);
        }
    };
    secret_file::follow("reservation keys", paths, move || reservation_keys(&config), apply).await;
}

/// Checks that the admin listener is local if no administrator token is set, because it then needs no token.
fn check_admin(listen: &Listen, access: &Auth) -> Result<(), String> {
    match listen.admin {
        Some(ListenAddress::At(address))
            if !access.has_admin() && !address.ip().to_canonical().is_loopback() =>
        {
            Err(format!(
                "any client that can reach {address} could change rules and counts without a token: set {ADMIN_TOKEN_VARIABLE} or \
                 `access.admin-tokens-file`, let --admin listen on 127.0.0.1, or add --admin-without-token if only \
                 administrators can reach it"
            ))
        }
        _ => Ok(()),
    }
}

fn tokens(variable: &str, file: Option<&Path>) -> Result<Vec<Token>, String> {
    let texts = secrets("token", variable, file)?;
    Ok(texts.iter().map(|text| Token::new(text.as_bytes())).collect())
}

/// Reads the keys of the environment and of the file in `reservations`. None if there is neither.
fn reservation_keys(config: &ReservationsConfig) -> Result<Option<ReservationKeys>, String> {
    let texts = secrets("reservation key", reservation_keys::KEY_VARIABLE, config.keys_file.as_deref())?;
    if texts.is_empty() {
        return Ok(None);
    }
    let keys = texts.iter().map(|text| ReservationKey::new(text.as_bytes())).collect::<Result<Vec<_>, _>>();
    keys.and_then(ReservationKeys::new).map(Some).map_err(|error| error.to_string())
}

/// Reads the secrets of an environment variable and of a file, one per line.
fn secrets(what: &str, variable: &str, file: Option<&Path>) -> Result<Vec<String>, String> {
    let mut texts: Vec<String> = Vec::new();
    match std::env::var(variable) {
        Ok(text) if text.trim().is_empty() => {
            return Err(format!("{variable} is empty: set a {what}, or unset the variable"));
        }
        Ok(text) => texts.push(text.trim().to_owned()),
        Err(VarError::NotPresent) => {}
        Err(VarError::NotUnicode(_)) => return Err(format!("{variable} must be UTF-8")),
    }
    if let Some(path) = file {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        texts.extend(lines.map(str::to_owned));
        if texts.is_empty() {
            return Err(format!("{name} has no {what}: write one per line"));
        }
    }
    if texts.iter().any(|text| text.len() < MIN_SECRET_CHARS) {
        // The secret itself is not repeated.
        return Err(format!(
            "a {what} needs at least {MIN_SECRET_CHARS} characters: try `openssl rand -hex 32`"
        ));
    }
    Ok(texts)
}

/// Binds every listener that is not off, and returns the addresses.
async fn bind_listeners(
    listen: Listen,
    tls: Option<Arc<Tls>>,
) -> Result<(Listeners, Vec<Listening>), String> {
    let mut addresses = Vec::new();
    let is_tls = tls.is_some();
    let mut bind = async |configured, flag, scheme| match configured {
        None | Some(ListenAddress::Off) => Ok(None),
        Some(ListenAddress::At(address)) => {
            let (listener, address) = listener::bind(address, flag).await?;
            addresses.push(Listening { protocol: flag, scheme, tls: is_tls, address });
            Ok::<_, String>(Some(listener))
        }
    };
    let listeners = Listeners {
        http: bind(listen.http, "http", "http").await?,
        grpc: bind(listen.grpc, "grpc", "grpc").await?,
        resp: bind(listen.resp, "resp", "redis").await?,
        admin: bind(listen.admin, "admin", "admin http").await?,
        tls,
    };
    if addresses.is_empty() {
        return Err(
            "every listener is off: set at least one of --http, --grpc, --resp and --admin".to_owned()
        );
    }
    Ok((listeners, addresses))
}
