//! Tests settings by file, variable and flag, references in the file, and `slidegate config`.

use std::process::{Command, Output, Stdio};

use slidegate::Micros;
use slidegate::redis::RedisTopology;
use slidegate::section::{Kind, Section, Setting};
use slidegate_server::config::{Config, ConfigSettings, Environment, Inputs, StoreKind, variable_name};
use slidegate_testkit::process;

use crate::server::BINARY;

const RULES: &str = "rules: []\n";

/// Returns `slidegate` without the variables of this process.
fn slidegate(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SLIDEGATE_")) {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command
}

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    process::output(&mut slidegate(arguments, variables))
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns a value of a setting that is not its default.
fn another_value(setting: &Setting<'_>) -> String {
    let path = setting.path.join(".");
    let texts = [
        ("authorize.attributes", "{ user: header x-user }"),
        ("authorize.trusted-proxies", "[10.0.0.0/8]"),
        ("store", "redis"),
        ("redis.url", "redis://:hush@host:1"),
        ("redis.prefix", "other"),
    ];
    if let Some((_, text)) = texts.iter().find(|(known, _)| *known == path) {
        return (*text).to_owned();
    }
    let default = setting.default.unwrap_or_default();
    match setting.kind {
        Kind::Flag => (default != "true").to_string(),
        Kind::Whole(_, max) => match default.parse::<u64>() {
            Ok(number) if number < *max => (number + 1).to_string(),
            Ok(number) => (number - 1).to_string(),
            Err(_) => setting.terms.example.unwrap().to_owned(),
        },
        Kind::Time(bounds) => {
            let time: Micros = default.trim_matches('"').parse().unwrap();
            let step = Micros::from_millis(1).get();
            let fits = bounds.is_none_or(|(_, max)| time.get() + step <= max.get());
            Micros::new(if fits { time.get() + step } else { time.get() - step }).to_string()
        }
        Kind::Percent(_) => "50%".to_owned(),
        Kind::Words(words) => words.words.iter().find(|(word, _)| *word != default).unwrap().0.to_owned(),
        Kind::Union("Address", _) => "127.0.0.1:1".to_owned(),
        _ => setting.terms.example.unwrap_or_else(|| panic!("{path} needs an example")).to_owned(),
    }
}

/// Returns other settings that a setting needs, as a file.
fn companions(path: &str) -> &'static str {
    match path {
        "tls.certificate" => "tls: { key: x }\n",
        "tls.key" => "tls: { certificate: x }\n",
        "tls.client-ca" => "tls: { certificate: x, key: x }\n",
        "redis.sentinel.master" => "redis: { sentinel: { nodes: [redis://a] } }\n",
        "redis.sentinel.nodes" => "redis: { sentinel: { master: x } }\n",
        _ if path.starts_with("redis.sentinel.") => {
            "redis: { sentinel: { master: x, nodes: [redis://a] } }\n"
        }
        "redis.tls.cert" => "redis: { url: rediss://a, tls: { key: x } }\n",
        "redis.tls.key" => "redis: { url: rediss://a, tls: { cert: x } }\n",
        _ if path.starts_with("redis.tls.") => "redis: { url: rediss://a }\n",
        _ => "",
    }
}

/// Adds a setting to a file in flow style.
fn with_setting(file: &str, path: &[&str], value: &str) -> String {
    let inner = path[1..].iter().rev().fold(value.to_owned(), |value, name| format!("{{ {name}: {value} }}"));
    let sections: Vec<&str> =
        file.lines().filter(|line| line.starts_with(&format!("{}: ", path[0]))).collect();
    match sections.as_slice() {
        [] => format!("{file}{}: {inner}\n", path[0]),
        // The section is there: the setting becomes its first field, or the first of the section inside of it.
        [section] => {
            let at = match path {
                [_, inner, _] if section.contains(&format!("{inner}: {{")) => format!("{inner}: {{"),
                _ => format!("{}: {{", path[0]),
            };
            let field = match path {
                [_, inner, name] if section.contains(&format!("{inner}: {{")) => format!("{name}: {value}"),
                [_, inner, name] => format!("{inner}: {{ {name}: {value} }}"),
                [_, name] => format!("{name}: {value}"),
                _ => panic!("{path:?}"),
            };
            file.replacen(&at, &format!("{at} {field},"), 1)
        }
        _ => panic!("{file}"),
    }
}

/// Everything that settings mean to the server. `Debug` leaves out secrets and some options of Redis.
fn effect(settings: &ConfigSettings) -> (String, String, Option<StoreKind>, Option<RedisTopology>) {
    let redis = settings.redis.options(None).ok().map(|options| options.topology);
    (format!("{settings:?}"), ConfigSettings::show(settings).to_string(), settings.store.clone(), redis)
}

/// The test is generated from the declarations: a new setting is tested without a change here.
#[test]
fn every_setting_has_the_same_effect_by_file_and_by_variable() {
    let section = ConfigSettings::describe();
    let settings = section.settings();
    assert!(settings.len() > 60, "{}", settings.len());
    for setting in settings {
        let (path, name) = (setting.path.join("."), variable_name(&setting.path));
        let value = another_value(&setting);
        let base = format!("{}{RULES}", companions(&path));
        let value = value.trim_matches('"');
        // In a file, a text with special characters is in quotes.
        let quoted = match setting.kind {
            Kind::Text | Kind::Union(..) => format!("\"{value}\""),
            _ => value.to_owned(),
        };
        let file = with_setting(&base, &setting.path, &quoted);
        let by_file = Config::parse_with(&file, &Inputs::new(Environment::default()));
        let by_file = by_file.unwrap_or_else(|error| panic!("{file}: {error}")).settings;
        let inputs = Inputs::new([(name.as_str(), value)].into_iter().collect());
        let by_variable = Config::parse_with(&base, &inputs);
        let by_variable = by_variable.unwrap_or_else(|error| panic!("{name}={value}: {error}")).settings;
        assert!(effect(&by_variable) == effect(&by_file), "{path}: {value}");
        if let Ok(before) = Config::parse(&base) {
            assert!(effect(&by_variable) != effect(&before.settings), "{path}: {value} is the default");
        }
        // The variable comes before the file.
        let both = Config::parse_with(&file, &inputs).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(effect(&both.settings) == effect(&by_file), "{path}");
    }
}

#[test]
fn passwords_by_variable_are_exact() {
    // Not a number, though it looks like one.
    let file = "redis: { sentinel: { master: m, nodes: [redis://a] } }\nrules: []\n";
    let inputs = Inputs::new([("SLIDEGATE_REDIS_SENTINEL_PASSWORD", "0123")].into_iter().collect());
    let options = Config::parse_with(file, &inputs).unwrap().settings.redis.options(None).unwrap();
    let RedisTopology::Sentinel(sentinel) = options.topology else { panic!("sentinels") };
    assert_eq!(sentinel.password.as_deref(), Some("0123"));
    let url = "redis://u:p%23:${x}@host:1/2";
    let inputs = Inputs::new([("SLIDEGATE_REDIS_URL", url)].into_iter().collect());
    let options = Config::parse_with(RULES, &inputs).unwrap().settings.redis.options(None).unwrap();
    assert!(options.topology == RedisTopology::One(url.to_owned()));
    let list = r#"["redis://:a@a:1", 'redis://b:2']"#;
    let inputs = Inputs::new([("SLIDEGATE_REDIS_CLUSTER", list)].into_iter().collect());
    let options = Config::parse_with(RULES, &inputs).unwrap().settings.redis.options(None).unwrap();
    assert!(options.topology == RedisTopology::Cluster(vec!["redis://:a@a:1".into(), "redis://b:2".into()]));
}

/// Removes the origins from the output of `slidegate config`.
fn values(output: &str) -> String {
    let lines = output.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" # ").next().unwrap().trim_end().to_owned() + "\n").collect()
}

fn origin_of<'o>(output: &'o str, name: &str) -> &'o str {
    let line = output.lines().find(|line| line.trim_start().starts_with(&format!("{name}: ")));
    line.and_then(|line| line.split_once(" # ")).unwrap_or_else(|| panic!("{name} in {output}")).1
}

/// Each flag that has a setting, by the real program: file, variable and flag have the same effect, in ascending precedence.
#[test]
fn flags_come_before_variables_and_variables_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for (flag, path, value) in [
        ("--store", &["store"][..], "redis"),
        ("--http", &["listen", "http"], "127.0.0.1:1"),
        ("--grpc", &["listen", "grpc"], "127.0.0.1:1"),
        ("--resp", &["listen", "resp"], "127.0.0.1:1"),
        ("--admin", &["listen", "admin"], "127.0.0.1:1"),
    ] {
        let (file, variable) = (folder.path().join("config.yaml"), variable_name(path));
        let name = path.last().unwrap();
        let config = |value: &str, variables: &[(&str, &str)], flags: &[&str]| {
            std::fs::write(&file, with_setting(RULES, path, value)).unwrap();
            let arguments = [&["config", "--config", "config.yaml"], flags].concat();
            let mut command = slidegate(&arguments, variables);
            let output = process::output(command.current_dir(folder.path()));
            assert!(output.status.success(), "{output:?}");
            stdout(&output)
        };
        let other = if *name == "store" { "memory" } else { "127.0.0.1:2" };
        let by_file = config(value, &[], &[]);
        let by_variable = config(other, &[(&variable, value)], &[]);
        let by_flag = config(other, &[(&variable, other)], &[flag, value]);
        assert_eq!(values(&by_variable), values(&by_file), "{flag}");
        assert_eq!(values(&by_flag), values(&by_file), "{flag}");
        assert_ne!(values(&config(other, &[], &[])), values(&by_file), "{flag}");
        let origins = [&by_file, &by_variable, &by_flag].map(|output| origin_of(output, name));
        assert_eq!(origins, ["config.yaml:2", variable.as_str(), flag]);
    }
}

#[test]
fn effective_configuration_is_valid_and_masks_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = "# A comment\nstore: redis://u:hush-1@a:1/2\nredis:\n  cluster: [\"redis://:hush-2@b\", redis://c]\n\
                listen:\n  limits: { connections: 7 }\nunmatched: deny\n\
                rules:\n  - { name: a, limit: 5, window: 1s, match: { api: [\"/x\", \"/y*\"] } }\n";
    std::fs::write(folder.path().join("config.yaml"), file).unwrap();
    let variables = [
        ("SLIDEGATE_TOKEN", "hush-hush-hush-hush"),
        ("SLIDEGATE_GUARD_NODES", "3"),
        ("SLIDEGATE_AUTHORIZE_ATTRIBUTES", "{ user: header x-user }"),
    ];
    let config = |path: &str, variables: &[(&str, &str)]| {
        let mut command = slidegate(&["config", "--config", path, "--http", "off"], variables);
        let output = process::output(command.current_dir(folder.path()));
        assert!(output.status.success() && stderr(&output).is_empty(), "{output:?}");
        stdout(&output)
    };
    let printed = config("config.yaml", &variables);
    assert!(!printed.contains("hush"), "{printed}");
    let line = |value: &str, origin: &str| format!("{value:<48} # {origin}");
    for line in [
        line("store: \"redis://u:********@a:1/2\"", "config.yaml:2"),
        line("  cluster: [\"redis://:********@b\", \"redis://c\"]", "config.yaml:4"),
        line("    connections: 7", "config.yaml:6"),
        line("  http: \"off\"", "--http"),
        line("  nodes: 3", "SLIDEGATE_GUARD_NODES"),
        line("  attributes: { user: \"header x-user\" }", "SLIDEGATE_AUTHORIZE_ATTRIBUTES"),
        line("  deadline: \"50ms\"", "default"),
        "# SLIDEGATE_TOKEN is set, and its value is not printed.".to_owned(),
        "# rules: config.yaml".to_owned(),
        "unmatched: deny".to_owned(),
    ] {
        assert!(printed.lines().any(|known| known == line), "{line} is not in\n{printed}");
    }
    assert!(!printed.contains("  url: "), "the address is in `cluster`: {printed}");
    // The output is a configuration with the same values.
    std::fs::write(folder.path().join("printed.yaml"), &printed).unwrap();
    assert_eq!(values(&config("printed.yaml", &[])), values(&printed));
}

#[test]
fn mistakes_name_their_variable() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = "redis: { cluster: [redis://b] }\nrules: []\n";
    for (file, variables, message) in [
        (
            RULES,
            &[("SLIDEGATE_LISTEN_HTTP", "here"), ("SLIDEGATE_REDIS_CONNECTIONS", "many")][..],
            "the configuration has mistakes:\n  SLIDEGATE_LISTEN_HTTP: http must be an address and a port such as 127.0.0.1:8080, \
             a port such as 8080 for this machine only, :8080 for every interface, or `off`, not \"here\"\n  \
             SLIDEGATE_REDIS_CONNECTIONS: connections must be a whole number, not \"many\"",
        ),
        (
            "store: x\nrules: []\n",
            &[("SLIDEGATE_REDIS_CONNECTIONS", "65")],
            "config.yaml has mistakes:\n  SLIDEGATE_REDIS_CONNECTIONS: connections must be between 1 and 64, not 65\n  \
             config.yaml:1:8: the store must be `memory`, `redis`, or an address such as redis://127.0.0.1:6379",
        ),
        (
            RULES,
            &[("SLIDEGATE_STORE", "")],
            "the configuration has mistakes:\n  SLIDEGATE_STORE is empty: set a value, or unset the variable",
        ),
        (
            RULES,
            &[("SLIDEGATE_REDIS_CLUSTER", "redis://a,redis://b")],
            "the configuration has mistakes:\n  SLIDEGATE_REDIS_CLUSTER: cluster must be a list, not a text",
        ),
        (
            cluster,
            &[("SLIDEGATE_REDIS_URL", "redis://:hush@a")],
            "config.yaml has mistakes:\n  config.yaml:1:19: `redis` has both `url` (SLIDEGATE_REDIS_URL) and `cluster`: set only one of them",
        ),
        (
            RULES,
            &[("SLIDEGATE_STORE", "redis://:hush@a"), ("SLIDEGATE_REDIS_URL", "redis://:hush@b")],
            "the configuration has mistakes:\n  SLIDEGATE_STORE: the address of Redis is also in SLIDEGATE_REDIS_URL: set only \
             one of them, or SLIDEGATE_STORE=redis",
        ),
        (
            RULES,
            &[("SLIDEGATE_TLS_CERTIFICATE", "x")],
            "the configuration has mistakes:\n  SLIDEGATE_TLS_CERTIFICATE: tls needs `key`",
        ),
    ] {
        std::fs::write(folder.path().join("config.yaml"), file).unwrap();
        for command in ["serve", "config"] {
            let mut command = slidegate(&[command, "--config", "config.yaml"], variables);
            let output = process::output(command.current_dir(folder.path()));
            assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{output:?}");
            assert!(stderr(&output).contains(message), "{}\n{message}", stderr(&output));
            assert!(!stderr(&output).contains("hush"), "{}", stderr(&output));
        }
    }
}

#[test]
fn unread_variables_are_reported() {
    let variables = [
        ("SLIDEGATE_LISTN_HTTP", "x"),
        ("SLIDEGATE_SERVICE_HOST", "10.0.0.1"),
        ("SLIDEGATE_TOKEN", "hush-hush-hush-hush"),
        ("SLIDEGATE_LOG_LEVEL", "info"),
        ("SLIDEGATE_REDIS_URL", "redis://a"),
    ];
    let output = run(&["config"], &variables);
    assert!(output.status.success(), "{output:?}");
    let lines = stderr(&output);
    let expected = "SLIDEGATE_LISTN_HTTP is not read: did you mean SLIDEGATE_LISTEN_HTTP?";
    assert!(lines.lines().count() == 1 && lines.trim_end().ends_with(expected), "{lines}");
    // A server also reports a setting without effect.
    let arguments = ["serve", "--http", "off", "--grpc", "off", "--resp", "off"];
    let lines = stderr(&run(&arguments, &variables));
    assert!(lines.contains(expected), "{lines}");
    let expected = "SLIDEGATE_REDIS_URL: has no effect with `store: memory`: set SLIDEGATE_STORE=redis";
    assert!(lines.contains(expected), "{lines}");
}

/// A server without flags, and then `slidegate health` with the same variables.
#[test]
fn server_starts_by_variables_alone() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "listen: { grpc: off, resp: off }\nrules: [{ name: a, limit: 1, window: 1s }]\n";
    std::fs::write(folder.path().join("config.yaml"), rules).unwrap();
    let variables = [("SLIDEGATE_CONFIG", "config.yaml"), ("SLIDEGATE_LISTEN_HTTP", "127.0.0.1:0")];
    let mut command = slidegate(&[], &variables);
    let mut child = command.current_dir(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = process::Lines::of(child.stdout.take().unwrap());
    let mut address = None;
    while let Some(line) = lines.next("the server is ready").filter(|line| line != "ready") {
        address = address.or(line.strip_prefix("listening on http://").map(str::to_owned));
        assert!(!line.contains("grpc://"), "{line}");
    }
    let address = address.expect("it says where it listens");
    let health = |variables: &[(&str, &str)], arguments: &[&str]| {
        let arguments = [&["health"], arguments].concat();
        let mut command = slidegate(&arguments, variables);
        let output = process::output(command.current_dir(folder.path()));
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let variables = [("SLIDEGATE_CONFIG", "config.yaml"), ("SLIDEGATE_LISTEN_HTTP", address.as_str())];
    let ready = format!("http://{address}/readyz: 200 {{\"ready\":true,");
    let (code, text, _) = health(&variables, &[]);
    assert!(code == Some(0) && text.starts_with(&ready), "{text}");
    // The rules are no concern of a health check.
    std::fs::write(folder.path().join("config.yaml"), "rules: nonsense\n").unwrap();
    assert_eq!(health(&variables, &[]).0, Some(0));
    assert_eq!(health(&[], &["--url", &format!("http://{address}/")]).0, Some(0));
    assert_eq!(health(&[], &["--http", &address]).0, Some(0));
    let _ = child.kill();
    let _ = child.wait();
    let (code, text, error) = health(&variables, &[]);
    assert_eq!((code, text.as_str()), (Some(1), ""));
    assert!(error.contains(&format!("no answer from http://{address}/readyz: ")), "{error}");
    let (code, _, error) = health(&[], &["--http", "off"]);
    assert!(code == Some(1) && error.contains("the HTTP listeners are off"), "{error}");
    let (code, _, error) = health(&[], &["--http", "127.0.0.1:0"]);
    assert!(
        code == Some(1) && error.contains("the server chooses its port when it starts: use --url"),
        "{error}"
    );
}

#[test]
fn files_refer_to_variables_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("password");
    std::fs::write(&secret, "hu${sh}\n").unwrap();
    let file = format!(
        "store: redis\nredis:\n  url: \"redis://${{REDIS_USER}}:${{file:{}}}@$${{host}}:1\"\n  connections: ${{COUNT}}\n  \
         prefix: \"${{COUNT}}\"\nauthorize:\n  attributes: {{ user: \"header ${{HEADER}}\" }}\n  trusted-proxies: ${{PROXIES}}\n\
         guard: {{ deadline: \"${{DEADLINE}}\" }}\nrules: [{{ name: a, match: {{ api: \"${{x}}\" }}, limit: 5, window: 1s }}]\n",
        secret.display()
    );
    let variables = [
        ("REDIS_USER", "me"),
        ("COUNT", "5"),
        ("HEADER", "x-user"),
        ("PROXIES", "[10.0.0.0/8, 192.168.0.1]"),
        ("DEADLINE", "20ms"),
    ];
    let inputs = Inputs::references_only(variables.into_iter().collect());
    let config = Config::parse_with(&file, &inputs).unwrap();
    let options = config.settings.redis.options(None).unwrap();
    assert!(options.topology == RedisTopology::One("redis://me:hu${sh}@${host}:1".to_owned()));
    assert_eq!((options.connections, options.prefix.as_str()), (5, "5"));
    assert_eq!(config.settings.authorize.trusted_proxies.len(), 2);
    assert_eq!(config.settings.guard.deadline.as_millis(), 20);
    assert_eq!(config.referenced, ["HEADER", "PROXIES", "REDIS_USER", "COUNT", "COUNT", "DEADLINE"]);
    let warnings: Vec<&str> = config.warnings.iter().map(|warning| warning.message.as_str()).collect();
    assert_eq!(
        warnings,
        ["`rules` has `${`, which is not replaced: only settings refer to variables and files"]
    );
    // Without an environment, as in `simulate`, the sections with references are not read.
    assert_eq!(
        Config::parse(&file).unwrap().settings.redis.options(None).unwrap().address(),
        "127.0.0.1:6379"
    );
    let output = {
        std::fs::write(folder.path().join("config.yaml"), &file).unwrap();
        let mut command = slidegate(&["config", "--config", "config.yaml"], &variables);
        process::output(command.current_dir(folder.path()))
    };
    assert!(stdout(&output).contains("url: \"redis://me:********@${host}:1\""), "{output:?}");
    assert!(!stdout(&output).contains("sh}"), "{output:?}");
}

#[test]
fn wrong_references_are_reported_with_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (empty, large) = (path("empty", "\n"), path("large", &"x".repeat(70_000)));
    let missing = folder.path().join("missing").display().to_string();
    let form = "`${…}` must have the name of a variable, or `file:` and a path; write `$${` for `${` itself";
    for (value, message) in [
        ("${NO_SUCH_VARIABLE}", "the variable NO_SUCH_VARIABLE is not set".to_owned()),
        ("${EMPTY}", "EMPTY is empty: set a value, or unset the variable".to_owned()),
        (&format!("${{file:{empty}}}"), format!("{empty} is empty")),
        (&format!("${{file:{large}}}"), format!("{large} has more than 65536 bytes")),
        (
            &format!("${{file:{missing}}}"),
            format!("cannot read {missing}: No such file or directory (os error 2)"),
        ),
        ("${A", "`${` has no `}`: write `$${` for `${` itself".to_owned()),
        ("${}", form.to_owned()),
        ("${A:-b}", form.to_owned()),
        ("${1}", form.to_owned()),
    ] {
        let file = format!("redis:\n  url: \"redis://:{value}@host\"\n{RULES}");
        let inputs = Inputs::references_only([("EMPTY", "")].into_iter().collect());
        assert_eq!(Config::parse_with(&file, &inputs).unwrap_err().to_string(), format!("2:8: {message}"));
    }
    let file = format!("redis:\n  connections: ${{COUNT}}\n{RULES}");
    let inputs = Inputs::references_only([("COUNT", "100")].into_iter().collect());
    let message = "2:16: connections must be between 1 and 64, not 100";
    assert_eq!(Config::parse_with(&file, &inputs).unwrap_err().to_string(), message);
}

/// `validate` replaces references, and reads no setting from a variable.
#[test]
fn validate_checks_references() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), "redis: { url: \"${URL}\" }\nrules: []\n").unwrap();
    let validate = |variables: &[(&str, &str)]| {
        let mut command = slidegate(&["validate", "a.yaml"], variables);
        process::output(command.current_dir(folder.path()))
    };
    let output = validate(&[("URL", "redis://a"), ("SLIDEGATE_LISTEN_HTTP", "nonsense")]);
    assert_eq!(stdout(&output), "a.yaml: ok, 0 rules\n");
    let output = validate(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "a.yaml:1:15: the variable URL is not set\n");
}

#[test]
fn completions_and_manual_pages_are_generated() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&run(&["completions", shell], &[]));
        assert!(script.contains("acquire") && script.contains("admin-without-token"), "{shell}: {script}");
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man");
    let output = run(&["man", pages.to_str().unwrap()], &[]);
    assert!(output.status.success(), "{output:?}");
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("slidegate.1").starts_with(".ie \\n(.g .ds Aq"), "{}", page("slidegate.1"));
    assert!(page("slidegate-serve.1").contains("SLIDEGATE_LISTEN_HTTP"));
    assert!(pages.join("slidegate-import-envoy.1").exists());
    assert_eq!(stdout(&run(&["man"], &[])).trim_end(), page("slidegate.1").trim_end());
}
