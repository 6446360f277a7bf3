//! Command-line options of a recording.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use slidegate::Micros;
use slidegate::yaml::hundredths;

use super::sampler::ALL_CLIENTS;
use super::{Bounds, ClientSampler, FileRecording};

/// Options of `serve --record`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub(crate) struct RecordArgs {
    /// Write a JSON line for every decided request to this file, for `slidegate simulate`. If the name ends in .gz,
    /// the file is compressed. Attributes may be personal data: see --record-digest
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Record only a part of the clients, such as 10% or 0.5%, but all requests of each recorded client
    #[arg(long, value_name = "SHARE", default_value = "100%", requires = "record", value_parser = read_share)]
    record_sample: u32,
    /// Attributes that identify a client, such as ip [default: all attributes of a request]
    #[arg(long, value_name = "NAMES", requires = "record", value_delimiter = ',')]
    record_by: Vec<String>,
    /// Attributes that are recorded only as a digest, such as ip,user. Each recording uses its own digest key
    #[arg(long, value_name = "NAMES", requires = "record", value_delimiter = ',')]
    record_digest: Vec<String>,
    /// Stop after this many bytes, such as 64MiB, measured before compression
    #[arg(long, value_name = "BYTES", default_value = "1GiB", requires = "record", value_parser = read_bytes)]
    record_size: u64,
    /// Stop after this time, such as 10m [default: stop when --record-size is reached, or when the server stops]
    #[arg(long, value_name = "TIME", requires = "record", value_parser = read_time)]
    record_for: Option<Duration>,
    /// Replace an existing file
    #[arg(long, requires = "record")]
    record_force: bool,
}

impl RecordArgs {
    /// Creates the file, if a recording is requested.
    pub(crate) fn create(self) -> Result<Option<FileRecording>, String> {
        let Some(path) = self.record else { return Ok(None) };
        let sampler = ClientSampler::new(self.record_sample, self.record_by, self.record_digest);
        let bounds = Bounds { bytes: self.record_size, time: self.record_for, streamed: false };
        FileRecording::create(&path, self.record_force, sampler, bounds).map(Some)
    }
}

/// Parses a share such as `10%`, from 0.01% to 100%, into hundredths of a percent.
pub(crate) fn read_share(text: &str) -> Result<u32, String> {
    let share = hundredths(text).filter(|share| (1..=ALL_CLIENTS).contains(share));
    share.ok_or_else(|| "must be a percentage from 0.01% to 100%".to_owned())
}

/// Parses a number of bytes such as `500`, `64KiB`, `100MiB` or `1GiB`.
fn read_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_start() {
        "" | "B" => Some(1),
        "KiB" => Some(1u64 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        "TiB" => Some(1 << 40),
        _ => None,
    };
    let bytes = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "must be a number of bytes such as 500, 64KiB, 100MiB or 1GiB".to_owned())
}

fn read_time(text: &str) -> Result<Duration, String> {
    let time: Micros =
        text.parse().map_err(|_| "must be a length of time such as 30s, 10m or 1h".to_owned())?;
    if time == Micros::ZERO { Err("must be greater than zero".to_owned()) } else { Ok(time.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [("1", 1), ("500B", 500), ("64KiB", 65_536), ("1 GiB", 1 << 30)] {
            assert_eq!(read_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "-1", "KiB", "1kb", "1.5GiB", "99999999999999999999", "16777216TiB"] {
            assert!(read_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_parsed() {
        assert_eq!([read_share("100%"), read_share("0.01%")], [Ok(10_000), Ok(1)]);
        for text in ["0%", "100.01%", "10", "ten%", ""] {
            assert!(read_share(text).is_err(), "{text}");
        }
    }
}
