//! Files that change: written in place, renamed over, or behind a link that is swapped, it is the same to a look.
//! Nothing is asked of the file system that a network or a container could lack.
//!
//! A look blocks for as long as the file system does, such as a network mount whose server is gone. So all of this is
//! called on blocking threads, except before the server starts.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How often files are looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// What a file looks like from outside; none if it is not there.
type Look = Option<(u64, SystemTime, u64, i64, i64)>;

/// Tells when files have changed, and have stopped changing: what is half-written is not read.
pub(crate) struct Watch {
    known: Vec<(PathBuf, Look)>,
    before: Vec<(PathBuf, Look)>,
}

impl Watch {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let known = look(paths);
        Watch { before: known.clone(), known }
    }

    /// Whether they differ from what is known, and are as they were at the last look.
    pub(crate) fn changed(&mut self, paths: Vec<PathBuf>) -> bool {
        let now = look(paths);
        let settled = now == self.before;
        self.before = now;
        settled && self.before != self.known
    }

    /// After they were read: whether they are still as they were at the last look. Then they are known; what was not is
    /// looked at again.
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
