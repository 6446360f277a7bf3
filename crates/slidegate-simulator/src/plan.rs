//! Checks the options: loads the rules, and rejects options that contradict each other.

use std::fmt;
use std::path::{Path, PathBuf};

use slidegate::{
    Micros, Quota, Rule, Rules,
    bounds::{MAX_WINDOW, MIN_WINDOW},
};

use crate::options::{Percent, SimulateArgs};
use crate::scenarios::AlgorithmChoice;
use crate::traffic::{Fields, Instants, Pattern, Shape, SyntheticClients, Trace, Traffic, attribute_names};

/// Maximum duration of a pattern.
const MAX_DURATION: Micros = Micros::from_secs(366 * 24 * 3600);

/// Maximum number of requests in a pattern.
const MAX_REQUESTS: u64 = 1_000_000_000;

/// Windows to suggest limits for if neither `--window` nor `--rules` is given.
const DEFAULT_WINDOWS: [Micros; 3] = [Micros::from_secs(1), Micros::from_secs(60), Micros::from_secs(3600)];

/// Checked options of a simulation: the traffic, the question about it, and the form of the answer.
pub struct Plan {
    pub(crate) traffic: Traffic,
    pub(crate) question: Question,
    pub(crate) output: Output,
}

/// Question that the simulation answers.
pub(crate) enum Question {
    /// Effect of these rules.
    Simulate(NamedRules),
    /// Effect of these rules with each of these algorithms.
    Compare(NamedRules, Vec<AlgorithmChoice>),
    /// Difference between new and old rules.
    Diff { new: NamedRules, old: NamedRules },
    /// Smallest limits that meet a goal.
    Suggest(SuggestionGoal),
}

/// Rules, with the file that they come from.
pub(crate) struct NamedRules {
    pub(crate) name: String,
    pub(crate) rules: Box<Rules>,
}

/// Goal of a search for limits.
pub(crate) struct SuggestionGoal {
    /// Rules to find limits for, each with its windows.
    pub(crate) candidates: Vec<(Rule, Vec<Micros>)>,
    pub(crate) budget: DenialBudget,
}

/// Maximum share of requests or clients that a suggested limit may deny.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DenialBudget {
    Requests(Percent),
    Clients(Percent),
}

impl fmt::Display for DenialBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DenialBudget::Requests(share) => write!(f, "at most {share} of all requests denied"),
            DenialBudget::Clients(share) => write!(f, "at most {share} of all clients ever denied"),
        }
    }
}

/// Files and formats of the results.
pub(crate) struct Output {
    pub(crate) html: Option<PathBuf>,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) json: bool,
    pub(crate) decisions: Option<PathBuf>,
    pub(crate) top: usize,
}

impl SimulateArgs {
    /// Checks the options. `load` reads and checks the rules of a file.
    pub fn plan(self, load: impl Fn(&Path) -> Result<Rules, String>) -> Result<Plan, String> {
        self.check_files()?;
        let load = |path: &PathBuf| {
            load(path).map(|rules| NamedRules { name: path.display().to_string(), rules: Box::new(rules) })
        };
        let rules = self.rules.as_ref().map(load).transpose()?;
        let old = self.against.as_ref().map(load).transpose()?;
        let budget =
            self.suggest.map(DenialBudget::Requests).or(self.suggest_clients.map(DenialBudget::Clients));
        if budget.is_none() && !(self.window.is_empty() && self.key.is_empty()) {
            return Err("--window and --key need --suggest or --suggest-clients".to_owned());
        }
        let rule_set = match &rules {
            Some(named) => Rules::clone(&named.rules),
            None => Rules::new([placeholder_rule(&self.key)?]).map_err(|error| error.to_string())?,
        };
        let traffic = self.traffic(&rule_set, old.as_ref().map(|old| &*old.rules))?;
        if budget.is_some() && traffic.is_read_once() {
            return Err("--suggest reads the trace several times, which is not possible with standard input: use a file".to_owned());
        }
        let question = match (budget, rules, old) {
            (Some(budget), _, _) => {
                Question::Suggest(SuggestionGoal { candidates: self.candidates(&rule_set)?, budget })
            }
            (None, Some(new), Some(old)) => Question::Diff { new, old },
            (None, Some(rules), None) if !self.algorithms.is_empty() => {
                let mut algorithms = Vec::new();
                for algorithm in self.algorithms {
                    if !algorithms.contains(&algorithm) {
                        algorithms.push(algorithm);
                    }
                }
                Question::Compare(rules, algorithms)
            }
            (None, Some(rules), None) => Question::Simulate(rules),
            // Not reachable from the command line: clap requires --rules, --suggest or --suggest-clients.
            (None, None, _) => return Err("no rules: set --rules".to_owned()),
        };
        let top = usize::try_from(self.top).unwrap_or(usize::MAX);
        let output =
            Output { html: self.html, svg: self.svg, json: self.json, decisions: self.decisions, top };
        Ok(Plan { traffic, question, output })
    }

    /// Rejects an output file that is also an input file or another output file.
    fn check_files(&self) -> Result<(), String> {
        let mut seen: Vec<(&str, PathBuf)> = Vec::new();
        let files = [
            ("--rules", &self.rules, false),
            ("--against", &self.against, false),
            ("--trace", &self.trace, false),
            ("--html", &self.html, true),
            ("--decisions", &self.decisions, true),
        ];
        for (flag, path, written) in files {
            let Some(path) = path else { continue };
            let location = resolve(path);
            let overwritten = seen.iter().find(|(_, other)| written && *other == location);
            if let Some((other, _)) = overwritten {
                return Err(format!("{flag} would overwrite the file of {other}: {}", path.display()));
            }
            seen.push((flag, location));
        }
        Ok(())
    }

    fn traffic(&self, rules: &Rules, old: Option<&Rules>) -> Result<Traffic, String> {
        if let Some(path) = &self.trace {
            let mut names = attribute_names(rules);
            names.extend(old.map(attribute_names).unwrap_or_default());
            let mut named: Vec<&str> =
                self.attribute.iter().chain(&self.constant).map(|pair| pair.name.as_str()).collect();
            named.sort_unstable();
            if let Some(duplicate) = named.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(format!("`{}` is given twice by --attribute and --constant", duplicate[0]));
            }
            let fields = Fields::new(&names, &self.attribute, &self.constant);
            let fields = fields.time(self.time.clone()).permits(self.permits.clone());
            return Ok(Traffic::Trace(Trace {
                path: path.clone(),
                format: self.format,
                fields,
                strict: self.strict,
            }));
        }
        let Some(shape) = self.pattern else {
            return Err("no traffic: set --trace or --pattern".to_owned());
        };
        let duration = self.duration.unwrap_or(Micros::from_secs(60));
        if !(Micros::from_millis(1)..=MAX_DURATION).contains(&duration) {
            return Err(format!("--duration must be between 1ms and {MAX_DURATION}, not {duration}"));
        }
        let instants = match (shape, &self.at) {
            (Shape::Timeline, Some(instants)) => instants.clone(),
            (Shape::Timeline, None) => {
                return Err("--pattern timeline needs --at, such as --at 0.99s=100,1.01s=100".to_owned());
            }
            (_, Some(_)) => return Err("--at needs --pattern timeline".to_owned()),
            (Shape::BoundaryBurst, None) => boundary_burst(rules)?,
            (_, None) => Instants::default(),
        };
        if !instants.0.is_empty() && (self.rate.is_some() || self.duration.is_some()) {
            return Err(
                "--rate and --duration cannot be combined with bursts and timelines, which have fixed times"
                    .to_owned(),
            );
        }
        let default_clients = if instants.0.is_empty() { 10 } else { 1 };
        let pattern = Pattern {
            shape,
            rate: self.rate.unwrap_or(100),
            duration,
            clients: self.clients.unwrap_or(default_clients),
            seed: self.seed,
            instants,
            synthetic_clients: SyntheticClients::new(rules, &self.constant),
        };
        if pattern.length() > MAX_REQUESTS {
            return Err(format!(
                "a pattern may have at most {MAX_REQUESTS} requests, not {}",
                pattern.length()
            ));
        }
        Ok(Traffic::Pattern(pattern))
    }

    fn candidates(&self, rules: &Rules) -> Result<Vec<(Rule, Vec<Micros>)>, String> {
        for window in &self.window {
            if !(MIN_WINDOW..=MAX_WINDOW).contains(window) {
                return Err(format!("--window must be between {MIN_WINDOW} and {MAX_WINDOW}, not {window}"));
            }
        }
        let windows = |rule: &Rule| match (&self.window[..], &self.rules) {
            ([], None) => DEFAULT_WINDOWS.to_vec(),
            ([], Some(_)) => vec![rule.quota().window()],
            (windows, _) => windows.to_vec(),
        };
        let limited = rules.iter().filter(|rule| rule.is_limited() && !rule.quota().is_held());
        let candidates: Vec<_> = limited.map(|rule| (rule.clone(), windows(rule))).collect();
        if candidates.is_empty() {
            return Err("no rule has a limit that could be changed".to_owned());
        }
        Ok(candidates)
    }
}

/// Resolves links in the path of a file. The file itself need not exist.
fn resolve(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let in_parent = || Some(parent.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(in_parent).unwrap_or_else(|| path.to_owned())
}

/// Returns a burst as large as the limit of the first rule that has one, a hundredth of its window before the window's boundary,
/// and the same burst again a hundredth after the boundary.
fn boundary_burst(rules: &Rules) -> Result<Instants, String> {
    let rule = rules.iter().find(|rule| rule.is_limited());
    let quota = rule.ok_or("a boundary burst needs a rule with a limit")?.quota();
    let (window, limit) = (quota.window().get(), quota.limit().min(MAX_REQUESTS));
    let margin = (window / 100).max(1);
    Ok(Instants(vec![(Micros::new(window - margin), limit), (Micros::new(window + margin), limit)]))
}

/// Returns a rule to suggest limits for if there is no file of rules: it has the given key, and a limit that is not used.
fn placeholder_rule(key: &[String]) -> Result<Rule, String> {
    let quota = Quota::new(1, DEFAULT_WINDOWS[0].into());
    let name = if key.is_empty() { "all".to_owned() } else { format!("per-{}", key.join("-")) };
    let rule = quota.and_then(|quota| Rule::new(&name, quota));
    rule.and_then(|rule| rule.per(key.iter().map(String::as_str))).map_err(|error| format!("--key: {error}"))
}
