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
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// Metadata that changes with the content of a file. None if the file does not exist.
type Look = Option<(u64, SystemTime, u64, i64, i64)>;

/// Detects that files have changed and are stable again, so that no half-written file is read.
pub(crate) struct Watch {
    known: Vec<(PathBuf, Look)>,
    before: Vec<(PathBuf, Look)>,
}

impl Watch {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let known = look(paths);
        Watch { before: known.clone(), known }
    }

    /// Returns true if the files differ from the confirmed version, and have not changed since the last poll.
    pub(crate) fn changed(&mut self, paths: Vec<PathBuf>) -> bool {
        let now = look(paths);
        let settled = now == self.before;
        self.before = now;
        settled && self.before != self.known
    }

    /// Must be called after the files were read. Returns true if they have not changed since the last poll; then this
    /// is the confirmed version. Otherwise they are reported as changed again.
    pub(crate) fn know(&mut self, paths: Vec<PathBuf>) -> bool {
        let same = look(paths) == self.before;
        if same {
            self.known.clone_from(&self.before);
        }
        same
    }
}

fn look(paths: Vec<PathBuf>) -> Vec<(PathBuf, Look)> {
    paths.into_iter().map(|path| (path.clone(), look_at(&path))).collect()
}

fn look_at(path: &Path) -> Look {
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
