//! Detection of changed files by polling their metadata.
//!
//! Polling sees files that are written in place, renamed over, or behind a link that is swapped. It needs nothing that
//! a network file system or a container could lack.
//!
//! Reading metadata blocks as long as the file system does, such as a network mount whose server is gone. So all
//! functions here are called on blocking threads, except before the server starts.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Interval between two polls.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Metadata that changes with the content of a file. None if the file does not exist.
type FileStamp = Option<(u64, SystemTime, u64, i64, i64)>;

/// Detects that files have changed and are stable again, so that no half-written file is read.
pub(crate) struct FileWatch {
    confirmed: Vec<(PathBuf, FileStamp)>,
    last_seen: Vec<(PathBuf, FileStamp)>,
}

impl FileWatch {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let confirmed = stamps(paths);
        FileWatch { last_seen: confirmed.clone(), confirmed }
    }

    /// Returns true if the files differ from the confirmed version, and have not changed since the last poll.
    pub(crate) fn changed(&mut self, paths: Vec<PathBuf>) -> bool {
        let now = stamps(paths);
        let settled = now == self.last_seen;
        self.last_seen = now;
        settled && self.last_seen != self.confirmed
    }

    /// Must be called after the files were read. Returns true if they have not changed since the last poll; then this
    /// is the confirmed version. Otherwise they are reported as changed again.
    pub(crate) fn confirm(&mut self, paths: Vec<PathBuf>) -> bool {
        let same = stamps(paths) == self.last_seen;
        if same {
            self.confirmed.clone_from(&self.last_seen);
        }
        same
    }
}

fn stamps(paths: Vec<PathBuf>) -> Vec<(PathBuf, FileStamp)> {
    paths.into_iter().map(|path| (path.clone(), stamp(&path))).collect()
}

fn stamp(path: &Path) -> FileStamp {
    let file = std::fs::metadata(path).ok()?;
    let modified = file.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        Some((file.len(), modified, file.ino(), file.ctime(), file.ctime_nsec()))
    }
    #[cfg(not(unix))]
    Some((file.len(), modified, 0, 0, 0))
}
