//! Options of `slidegate simulate`. The comments of the fields are the text of `--help`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use slidegate::Micros;

use crate::scenarios::AlgorithmChoice;
use crate::traffic::{Format, Instants, Pair, Shape};

/// Rules, traffic, and the question to answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Every request is decided by the same code as in production, at the time that it has in the trace. A day takes seconds.
If the time of a line is earlier than the time of a line before it, the request is decided at the later time.

A trace is an access log (Common or Combined), JSON lines, a table (CSV), or a recording of `slidegate serve --record`. It may
be compressed with gzip. Each attribute of the rules uses the field of the same name, unless --attribute names another field.
If the trace has no such field, the attribute uses a field with a well-known other name, such as path for api. The output says so.
An access log has the fields ip, user, method, path (without the query), host, referer and user-agent.

Examples:
  slidegate simulate --rules rules.yaml --trace access.log.gz --html report.html
  slidegate simulate --rules rules.yaml --trace access.json --attribute ip=request.headers.client
  slidegate simulate --rules new.yaml --against old.yaml --trace access.log      changed decisions
  slidegate simulate --rules rules.yaml --pattern flash-sale --rate 500 --clients 1000
  slidegate simulate --rules rules.yaml --pattern timeline --at 0.99s=100,1.01s=100 \\
      --algorithms sliding-window,fixed-window,time-slice,token-bucket
  slidegate simulate --trace access.log --suggest 0.1% --key ip --window 1s,1m   suggested limits
  kubectl logs -f web | slidegate simulate --rules rules.yaml --trace - --format json --attribute ip=remote_addr")]
pub struct SimulateArgs {
    /// File with rules. If it is a configuration file, only its rules are used
    #[arg(long, value_name = "FILE", required_unless_present_any = ["suggest", "suggest_clients"])]
    pub(crate) rules: Option<PathBuf>,
    /// File with recorded requests, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) trace: Option<PathBuf>,
    /// Format of the trace [default: detected]
    #[arg(long, value_enum, conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) format: Option<Format>,
    /// Attribute, and the field of the trace that has its value, such as api=path or ip=request.remote_ip [default:
    /// the field with the name of the attribute, or with a well-known other name]
    #[arg(
        long,
        value_name = "NAME=FIELD",
        conflicts_with = "pattern",
        alias = "field",
        help_heading = "Traffic"
    )]
    pub(crate) attribute: Vec<Pair>,
    /// Attribute with the same value in every request, such as plan=free
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Traffic")]
    pub(crate) constant: Vec<Pair>,
    /// Field of JSON lines or CSV with the time [default: time, timestamp, @timestamp, ts, at or date]
    #[arg(long, value_name = "FIELD", conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) time: Option<String>,
    /// Field of JSON lines or CSV with the number of permits [default: 1 permit]
    #[arg(long, value_name = "FIELD", conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) permits: Option<String>,
    /// Stop at the first invalid line, instead of counting and showing invalid lines
    #[arg(long, conflicts_with = "pattern", help_heading = "Traffic")]
    pub(crate) strict: bool,
    /// Generated traffic instead of a trace
    #[arg(long, value_enum, help_heading = "Traffic")]
    pub(crate) pattern: Option<Shape>,
    /// Requests per second of the pattern. For flash-sale and ramp this is the peak, for other patterns the average
    /// [default: 100]
    #[arg(long, conflicts_with = "trace", value_parser = clap::value_parser!(u64).range(1..=10_000_000), help_heading = "Traffic")]
    pub(crate) rate: Option<u64>,
    /// Duration of the pattern [default: 1m]
    #[arg(long, conflicts_with = "trace", help_heading = "Traffic")]
    pub(crate) duration: Option<Micros>,
    /// Number of clients of the pattern [default: 10, or 1 for boundary-burst and timeline]
    #[arg(long, conflicts_with = "trace", value_parser = clap::value_parser!(u64).range(1..=100_000_000), help_heading = "Traffic")]
    pub(crate) clients: Option<u64>,
    /// Times of --pattern timeline, measured from the start, with their numbers of requests, such as
    /// 0.99s=100,1.01s=100
    #[arg(long, value_name = "TIME=COUNT,…", conflicts_with = "trace", help_heading = "Traffic")]
    pub(crate) at: Option<Instants>,
    /// Seed of the pattern. The same seed generates the same traffic
    #[arg(long, default_value_t = 0, conflicts_with = "trace", help_heading = "Traffic")]
    pub(crate) seed: u64,
    /// Compare these algorithms
    #[arg(
        long,
        value_name = "NAME,…",
        value_enum,
        value_delimiter = ',',
        requires = "rules",
        help_heading = "Analysis"
    )]
    pub(crate) algorithms: Vec<AlgorithmChoice>,
    /// File with older rules. The report shows the requests that the rules of --rules decide differently
    #[arg(long, value_name = "FILE", requires = "rules", conflicts_with_all = ["algorithms"], help_heading = "Analysis")]
    pub(crate) against: Option<PathBuf>,
    /// Suggest the smallest limit that would have denied at most this share of the requests, such as 0.1%
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["algorithms", "against", "suggest_clients", "decisions"], help_heading = "Analysis")]
    pub(crate) suggest: Option<Percent>,
    /// Suggest the smallest limit that would have denied at most this share of the clients, such as 1%
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["algorithms", "against", "decisions"], help_heading = "Analysis")]
    pub(crate) suggest_clients: Option<Percent>,
    /// Windows of the suggested limits [default: the windows of the rules, or 1s,1m,1h]
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', help_heading = "Analysis")]
    pub(crate) window: Vec<Micros>,
    /// Key attributes of the suggested limits, such as ip, if --rules is not given [default: one limit for all
    /// requests together]
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        conflicts_with = "rules",
        help_heading = "Analysis"
    )]
    pub(crate) key: Vec<String>,
    /// Write a report with charts into one self-contained file. With --suggest, the charts show the suggested limits
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    /// Write the charts of the report as SVG files into a directory
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) svg: Option<PathBuf>,
    /// Print one JSON object instead of a summary
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write the decisions, one JSON object per request: allowed, denied_by, retry_after_us
    #[arg(long, value_name = "FILE", conflicts_with = "algorithms", help_heading = "Output")]
    pub(crate) decisions: Option<PathBuf>,
    /// Number of keys to show in the list of the most denied keys
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000), help_heading = "Output")]
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
        let invalid = || format!("\"{text}\" is not a percentage such as 0.1% or 5%, up to 100%");
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
