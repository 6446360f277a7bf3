//! Options of `slidegate simulate`. The comments of the fields are the text of `--help`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use slidegate::Micros;

use crate::scenarios::AlgorithmChoice;
use crate::traffic::{Format, Instants, Pair, Shape};

/// Rules, traffic, and what to find out.
#[derive(Debug, Args)]
#[command(after_help = "\
Every request is evaluated by the code that decides in production, at the time it has in the trace: a day takes seconds.
Requests whose time runs backwards are evaluated at the latest time before them.

A trace is an access log (Common or Combined), JSON lines, a table (CSV), or a recording of `slidegate serve --record`; it may
be packed with gzip. The attributes that rules look at are the fields of the same name, unless --attribute names another:
an access log has ip, user, method, path (without its query), host, referer and user-agent.

Examples:
  slidegate simulate --rules rules.yaml --trace access.log --attribute api=path
  slidegate simulate --rules rules.yaml --trace access.log.gz --html report.html
  slidegate simulate --rules new.yaml --against old.yaml --trace access.log      who would notice
  slidegate simulate --rules rules.yaml --pattern flash-sale --rate 500 --clients 1000
  slidegate simulate --rules rules.yaml --pattern timeline --at 0.99s=100,1.01s=100 \\
      --algorithms sliding-window,fixed-window,time-slice,token-bucket
  slidegate simulate --trace access.log --suggest 0.1% --key ip --window 1s,1m   the smallest limits for that
  kubectl logs -f web | slidegate simulate --rules rules.yaml --trace - --format json --attribute ip=remote_addr")]
pub struct SimulateArgs {
    /// The rules, or a whole configuration file, of which only the rules matter
    #[arg(long, value_name = "FILE", required_unless_present_any = ["suggest", "suggest_clients"])]
    pub(crate) rules: Option<PathBuf>,
    /// Requests that happened, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) trace: Option<PathBuf>,
    /// How the trace is written; found out unless given
    #[arg(long, value_enum, conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) format: Option<Format>,
    /// An attribute and the field of the trace that it is, such as api=path or ip=request.remote_ip
    #[arg(
        long,
        value_name = "NAME=FIELD",
        conflicts_with = "pattern",
        alias = "field",
        help_heading = "Traffic"
    )]
    pub(crate) attribute: Vec<Pair>,
    /// An attribute that every request has, such as plan=free
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Traffic")]
    pub(crate) constant: Vec<Pair>,
    /// The field of JSON lines or CSV with the time [default: time, timestamp, @timestamp, ts, at or date]
    #[arg(long, value_name = "FIELD", conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) time: Option<String>,
    /// The field of JSON lines or CSV with the number of permits [default: 1 each]
    #[arg(long, value_name = "FIELD", conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) permits: Option<String>,
    /// Stop at the first line that cannot be read, instead of counting and showing such lines
    #[arg(long, conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) strict: bool,
    /// Traffic that is made up
    #[arg(long, value_enum, help_heading = "Traffic")]
    pub(crate) pattern: Option<Shape>,
    /// Requests a second of the pattern: on average, or at its height [default: 100]
    #[arg(long, conflicts_with = "trace", value_parser = clap::value_parser!(u64).range(1..=10_000_000), help_heading = "Traffic")]
    pub(crate) rate: Option<u64>,
    /// How long the pattern lasts [default: 1m]
    #[arg(long, conflicts_with = "trace", help_heading = "Traffic")]
    pub(crate) duration: Option<Micros>,
    /// How many clients there are in the pattern; those of a timeline take turns [default: 10, or 1 for bursts and timelines]
    #[arg(long, conflicts_with = "trace", value_parser = clap::value_parser!(u64).range(1..=100_000_000), help_heading = "Traffic")]
    pub(crate) clients: Option<u64>,
    /// How many requests at which time after the beginning, for --pattern timeline, such as 0.99s=100,1.01s=100
    #[arg(long, value_name = "TIME=COUNT,…", conflicts_with = "trace", help_heading = "Traffic")]
    pub(crate) at: Option<Instants>,
    /// Another seed makes other traffic of the same kind; the same one the same
    #[arg(long, default_value_t = 0, conflicts_with = "trace", help_heading = "Traffic")]
    pub(crate) seed: u64,
    /// Count by each of these, side by side
    #[arg(
        long,
        value_name = "NAME,…",
        value_enum,
        value_delimiter = ',',
        requires = "rules",
        help_heading = "Questions"
    )]
    pub(crate) algorithms: Vec<AlgorithmChoice>,
    /// Older rules: who would be denied or allowed by --rules, and was not by these?
    #[arg(long, value_name = "FILE", requires = "rules", conflicts_with_all = ["algorithms"], help_heading = "Questions")]
    pub(crate) against: Option<PathBuf>,
    /// The smallest limits that would have denied at most so much of all requests, such as 0.1%
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["algorithms", "against", "suggest_clients", "decisions", "html", "svg"], help_heading = "Questions")]
    pub(crate) suggest: Option<Percent>,
    /// The smallest limits that would ever have denied at most so many of all clients, such as 1%
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["algorithms", "against", "decisions", "html", "svg"], help_heading = "Questions")]
    pub(crate) suggest_clients: Option<Percent>,
    /// The windows to suggest limits for [default: those of the rules, or 1s,1m,1h]
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', help_heading = "Questions")]
    pub(crate) window: Vec<Micros>,
    /// What to count by when limits are suggested without --rules, such as ip [default: all requests together]
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        conflicts_with = "rules",
        help_heading = "Questions"
    )]
    pub(crate) key: Vec<String>,
    /// Write a report with pictures, one file that needs nothing else
    #[arg(long, value_name = "FILE", help_heading = "Answers")]
    pub(crate) html: Option<PathBuf>,
    /// Write the pictures of that report as SVG files into a directory
    #[arg(long, value_name = "DIR", help_heading = "Answers")]
    pub(crate) svg: Option<PathBuf>,
    /// Print one JSON object instead of a summary
    #[arg(long, help_heading = "Answers")]
    pub(crate) json: bool,
    /// Write what was decided, one JSON object a request: allowed, denied_by, retry_after_us
    #[arg(long, value_name = "FILE", conflicts_with = "algorithms", help_heading = "Answers")]
    pub(crate) decisions: Option<PathBuf>,
    /// How many of the keys that were denied most to show
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000), help_heading = "Answers")]
    pub(crate) top: u64,
}

/// Percentage, exact to a ten-thousandth of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percent(u64);

impl Percent {
    /// Returns this percentage of `n`, rounded down.
    pub(crate) fn of(self, n: u64) -> u64 {
        u64::try_from(u128::from(n) * u128::from(self.0) / 1_000_000).unwrap_or(n)
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("\"{text}\" is not a share such as 0.1% or 5%, up to 100%");
        let number = text.strip_suffix('%').unwrap_or(text).trim();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit());
        if !digits || whole.is_empty() || whole.len() > 3 || fraction.len() > 4 {
            return Err(invalid());
        }
        let parts: u64 = format!("{whole}{fraction:0<4}").parse().map_err(|_| invalid())?;
        if parts <= 1_000_000 { Ok(Percent(parts)) } else { Err(invalid()) }
    }
}

impl std::fmt::Display for Percent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} %", self.0 as f64 / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::Percent;

    #[test]
    fn percent_of_is_exact() {
        let of = |text: &str, n| text.parse::<Percent>().map(|percent| percent.of(n));
        assert_eq!(of("0.1%", 10_000), Ok(10));
        assert_eq!(of("0.1", 9_999), Ok(9));
        assert_eq!(of("100%", u64::MAX), Ok(u64::MAX));
        assert_eq!(of("0.0001%", 1_000_000), Ok(1));
        assert_eq!(of("0%", 5), Ok(0));
        for text in ["", "%", "-1%", "101%", "1e2%", "0.00001%", "one", "1.2.3%"] {
            assert!(of(text, 1).is_err(), "{text}");
        }
    }
}
