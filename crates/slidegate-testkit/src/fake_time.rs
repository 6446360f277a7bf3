//! A clock for one server, by libfaketime.

use std::path::PathBuf;

use crate::redis_server::{Flavour, RedisServer};

/// A clock that can be set, and that can stand still.
pub struct FakeTime {
    library: PathBuf,
    file: tempfile::NamedTempFile,
}

impl FakeTime {
    pub fn start() -> Self {
        let library = std::fs::read_dir("/usr/lib")
            .unwrap()
            .filter_map(|entry| Some(entry.ok()?.path().join("faketime/libfaketime.so.1")))
            .find(|path| path.exists())
            .expect("libfaketime: run scripts/tools.sh");
        FakeTime { library, file: tempfile::NamedTempFile::new().unwrap() }
    }

    /// So many milliseconds from real time.
    pub fn set(&self, millis: i64) {
        self.write(&format!("{:+}.{:03}\n", millis / 1_000, millis % 1_000));
    }

    /// Stands still, so many microseconds into a day. The half is for what parses it as a double.
    pub fn stop_at(&self, micros: u64) {
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        self.write(&format!("2030-01-01 {hours:02}:{minutes:02}:{seconds:02}.{fraction:06}5\n"));
    }

    /// By rename: half a file would be no time at all.
    fn write(&self, text: &str) {
        let next = self.file.path().with_extension("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(&next, self.file.path()).unwrap();
    }

    /// A server whose clock stands still, to the microsecond. Others put their own fractions of a millisecond to it, or
    /// do not start.
    pub fn stopped(&self) -> RedisServer {
        self.stop_at(1_000_000);
        RedisServer::with(Flavour::Redis62, &[], &self.environment())
    }

    /// For the server.
    pub fn environment(&self) -> [(&str, &str); 5] {
        [
            ("TZ", "UTC"),
            ("LD_PRELOAD", self.library.to_str().unwrap()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.path().to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
    }
}
