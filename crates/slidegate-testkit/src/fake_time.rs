//! Separate clock for one server, with libfaketime.

use std::path::PathBuf;

use crate::redis_server::{Flavour, RedisServer};

/// Clock of a server that a test can set and stop.
pub struct FakeTime {
    library: PathBuf,
    file: tempfile::NamedTempFile,
}

impl FakeTime {
    /// Finds libfaketime and creates the file that holds the time.
    pub fn start() -> Self {
        let library = std::fs::read_dir("/usr/lib")
            .unwrap()
            .filter_map(|entry| Some(entry.ok()?.path().join("faketime/libfaketime.so.1")))
            .find(|path| path.exists())
            .expect("libfaketime: run scripts/tools.sh");
        FakeTime { library, file: tempfile::NamedTempFile::new().unwrap() }
    }

    /// Sets the clock to an offset from real time, in milliseconds.
    pub fn set(&self, millis: i64) {
        self.write(&format!("{:+}.{:03}\n", millis / 1_000, millis % 1_000));
    }

    /// Stops the clock at a number of microseconds after midnight. The half microsecond at the end makes the text exact for
    /// a parser that reads it as a double.
    pub fn stop_at(&self, micros: u64) {
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        self.write(&format!("2030-01-01 {hours:02}:{minutes:02}:{seconds:02}.{fraction:06}5\n"));
    }

    /// Replaces the file by rename, because the library cannot parse half a file.
    fn write(&self, text: &str) {
        let next = self.file.path().with_extension("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(&next, self.file.path()).unwrap();
    }

    /// Starts a Redis 6.2 whose clock is stopped, exact to the microsecond. Newer servers add fractions of a
    /// millisecond themselves, or do not start.
    pub fn stopped(&self) -> RedisServer {
        self.stop_at(1_000_000);
        RedisServer::with(Flavour::Redis62, &[], &self.environment())
    }

    /// Returns the environment variables for the server.
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
