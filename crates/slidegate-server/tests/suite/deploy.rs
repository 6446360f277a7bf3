//! Tests that the configurations of `deploy/` are valid, and that the program reads everything that its manifests set.
//! `scripts/check-deploy.sh` validates the manifests themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use slidegate_server::Config;
use slidegate_testkit::process;

use crate::server::BINARY;

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// Configurations for the server, by the files that contain them.
fn configurations() -> Vec<(&'static str, String)> {
    let config_map = |file| (file, yaml(&read(file))["data"]["slidegate.yaml"].as_str().unwrap().to_owned());
    vec![
        ("slidegate.yaml", read("slidegate.yaml")),
        ("compose/slidegate/slidegate.yaml", read("compose/slidegate/slidegate.yaml")),
        config_map("kubernetes/base/configmap.yaml"),
        config_map("kubernetes/overlays/envoy-sidecar/configmap.yaml"),
    ]
}

#[test]
fn configurations_are_valid() {
    for (file, text) in configurations() {
        let config = Config::parse(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(config.warnings.is_empty(), "{file}: {:?}", config.warnings);
    }
}

/// The settings that the example shows as comments are valid, too. A comment has a space after `#`, a setting has none.
#[test]
fn commented_settings_are_valid() {
    let lines = read("slidegate.yaml");
    let lines = lines.lines().filter(|line| *line != "store: memory");
    let uncommented = lines.map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with("  ") && setting.starts_with(' ') => line,
        Some(setting) => setting,
        None => line,
    });
    let text = uncommented.collect::<Vec<_>>().join("\n");
    let config = Config::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(config.settings.access.admin_tokens_file.is_some());
}

/// Command line and variables of the server in a manifest.
struct Container {
    file: &'static str,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    configuration: String,
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// The server of an overlay: a patch adds variables to those of the base.
fn overlay(name: &'static str) -> Container {
    let container = |file: &str| yaml(&read(file))["spec"]["template"]["spec"]["containers"][0].clone();
    let base = container("kubernetes/base/deployment.yaml");
    let patch = container(&format!("kubernetes/overlays/{name}/deployment.yaml"));
    let value = |variable: &Value| match variable["value"].as_str() {
        Some(value) => value.to_owned(),
        None => {
            let secret = yaml(&read(&format!("kubernetes/overlays/{name}/secret.yaml")));
            let key = variable["valueFrom"]["secretKeyRef"]["key"].as_str().unwrap();
            secret["stringData"][key].as_str().unwrap().to_owned()
        }
    };
    let variables = [&base, &patch].into_iter().flat_map(|container| container["env"].as_array().unwrap());
    let variables =
        variables.map(|variable| (variable["name"].as_str().unwrap().to_owned(), value(variable)));
    let configuration = yaml(&read("kubernetes/base/configmap.yaml"));
    Container {
        file: name,
        arguments: words(&base["args"]),
        variables: variables.collect(),
        configuration: configuration["data"]["slidegate.yaml"].as_str().unwrap().to_owned(),
    }
}

fn compose() -> Container {
    let node = yaml(&read("compose.yaml"))["x-node"].clone();
    let variables = node["environment"].as_object().unwrap().iter();
    Container {
        file: "compose.yaml",
        arguments: words(&node["command"]),
        variables: variables.map(|(name, value)| pair(name, value.as_str().unwrap())).collect(),
        configuration: read("compose/slidegate/slidegate.yaml"),
    }
}

fn image() -> Container {
    let text = read("docker/Dockerfile").replace("\\\n", " ");
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).unwrap().to_owned();
    let variables = line("ENV ");
    let variables = variables.split_whitespace().map(|variable| variable.split_once('=').unwrap());
    Container {
        file: "docker/Dockerfile",
        arguments: words(&yaml(&line("CMD "))),
        variables: variables.map(|(name, value)| pair(name, value)).collect(),
        configuration: read("slidegate.yaml"),
    }
}

/// The unit, with the variables that its environment file shows as comments.
fn unit() -> Container {
    let unit = read("systemd/slidegate.service");
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/slidegate ")).unwrap();
    let defaults = read("debian/default");
    let variables = defaults.lines().filter_map(|line| line.strip_prefix("#SLIDEGATE_")?.split_once('='));
    Container {
        file: "systemd/slidegate.service",
        arguments: command.split(' ').map(str::to_owned).collect(),
        variables: variables.map(|(name, value)| pair(&format!("SLIDEGATE_{name}"), value)).collect(),
        configuration: read("slidegate.yaml"),
    }
}

/// Starts `slidegate config` instead of `slidegate serve`, with the same arguments and variables: it prints each setting with
/// its origin, and warns of variables that nothing reads.
#[test]
fn every_variable_of_a_manifest_is_read() {
    /// Path of the configuration in all manifests.
    const CONFIGURATION: &str = "/etc/slidegate/slidegate.yaml";
    for container in [overlay("embedded"), overlay("redis"), compose(), image(), unit()] {
        let Container { file, arguments, variables, configuration } = container;
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("slidegate.yaml");
        fs::write(&path, configuration).unwrap();
        let local = |text: &String| text.replace(CONFIGURATION, path.to_str().unwrap());
        assert_eq!(arguments[0], "serve", "{file}");
        let mut command = Command::new(BINARY);
        command.env_clear().arg("config").args(arguments[1..].iter().map(local));
        command.envs(variables.iter().map(|(name, value)| (name, local(value))));
        let output = process::output(&mut command);
        let (settings, log) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && log.is_empty(), "{file}: {log}");
        assert!(settings.contains(&format!("# rules: {}\n", path.display())), "{file}: {settings}");
        // Variables of flags are no settings.
        let is_setting = |name: &str| !["SLIDEGATE_CONFIG", "SLIDEGATE_LOG"].contains(&name);
        for (name, value) in variables.iter().filter(|(name, _)| is_setting(name)) {
            let line = settings.lines().find(|line| line.ends_with(&format!(" # {name}")));
            let line = line.unwrap_or_else(|| panic!("{file}: {name} is not in\n{settings}"));
            assert!(line.contains(value), "{file}: {line}");
        }
    }
}
