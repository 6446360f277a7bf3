//! Files with secrets, which are read again when they change.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use super::console::warn;
use super::file_watch::{FileWatch, POLL_INTERVAL};

/// Upper bound on the size of a file, in bytes.
const MAX_BYTES: u64 = 64 << 10;

/// Reads a file with one secret, without the line break at its end.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let (mut text, name) = (String::new(), path.display());
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    read.map_err(|error| format!("cannot read {name}: {error}"))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("{name} has more than {MAX_BYTES} bytes"));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        return Err(format!("{name} is empty"));
    }
    Ok(line.to_owned())
}

/// Reads secrets again whenever one of their files changes, and applies them. Files with mistakes change nothing, and the mistake
/// is logged once. `what` names the secrets in messages. Never returns, unless there are no files.
///
/// The files are read on a blocking thread: a file system that does not answer delays only this task.
pub(crate) async fn follow<T: Send + 'static>(
    what: &str,
    paths: Vec<PathBuf>,
    read: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    apply: impl Fn(T),
) {
    if paths.is_empty() {
        return;
    }
    let (read, watch) = (Arc::new(read), Arc::new(Mutex::new(FileWatch::new(paths.clone()))));
    // A file may have changed since the server read it and before this call.
    let (mut is_first, mut reported) = (true, None);
    loop {
        let (paths, read, watch) = (paths.clone(), Arc::clone(&read), Arc::clone(&watch));
        let found = spawn_blocking(move || {
            let mut watch = watch.lock();
            if !watch.changed(paths.clone()) && !is_first {
                return None;
            }
            Some(read().map(|secrets| (secrets, watch.confirm(paths))))
        });
        match found.await.unwrap_or_else(|_| Some(Err("reading the files failed".to_owned()))) {
            None => {}
            // The files changed while they were read.
            Some(Ok((_, false))) => {}
            Some(Ok((secrets, true))) => {
                apply(secrets);
                if !is_first {
                    tracing::info!(event = "secrets_reloaded", "reloaded: {what}");
                }
                (is_first, reported) = (false, None);
            }
            Some(Err(message)) => {
                if reported.as_ref() != Some(&message) {
                    warn(&format!("{what} stay as they were: {message}"));
                }
                reported = Some(message);
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
