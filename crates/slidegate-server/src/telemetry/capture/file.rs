//! Recording into a file, written by its own thread.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::runtime::Handle;

use super::buffer::Summary;
use super::{Bounds, ClientSampler, EndReason, LineReceiver, Recorder};
use crate::common::console::warn;

/// Interval between two writes.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);

/// Opened file of a recording that has not started.
pub(crate) struct FileRecording {
    path: PathBuf,
    file: File,
    pub(super) sampler: ClientSampler,
    pub(super) bounds: Bounds,
}

impl FileRecording {
    /// Creates the file. An existing file is an error, unless `replace` is set.
    pub(super) fn create(
        path: &Path,
        replace: bool,
        sampler: ClientSampler,
        bounds: Bounds,
    ) -> Result<Self, String> {
        let mut options = OpenOptions::new();
        options.write(true);
        if replace {
            options.create(true).truncate(true)
        } else {
            options.create_new(true)
        };
        let file = options.open(path).map_err(|error| {
            let name = path.display();
            match error.kind() {
                ErrorKind::AlreadyExists => {
                    format!(
                        "{name} already exists: record to another file, or replace it with --record-force"
                    )
                }
                _ => format!("cannot record to {name}: {error}"),
            }
        })?;
        Ok(FileRecording { path: path.to_owned(), file, sampler, bounds })
    }

    /// Starts the recording. The file is complete after joining the returned thread.
    pub(crate) fn start(self, recorder: &Arc<Recorder>) -> Result<JoinHandle<()>, String> {
        let FileRecording { path, file, sampler, bounds } = self;
        let name = path.display().to_string();
        let receiver = recorder.start(sampler, bounds).ok_or("too many recordings are in progress")?;
        let runtime = Handle::current();
        let write = move || match write(&runtime, receiver, &path, file) {
            Ok(summary) => log_summary(&name, &summary),
            Err(error) => warn(&format!("the recording has ended: cannot write to {name}: {error}")),
        };
        let thread = std::thread::Builder::new().name("recording".to_owned()).spawn(write);
        thread.map_err(|error| format!("cannot record: {error}"))
    }
}

fn write(runtime: &Handle, mut receiver: LineReceiver, path: &Path, mut file: File) -> io::Result<Summary> {
    let compressed = path.extension().is_some_and(|extension| extension == "gz");
    if compressed {
        let mut encoder = GzEncoder::new(file, Compression::fast());
        write_lines(runtime, &mut receiver, &mut encoder)?;
        encoder.finish()?;
    } else {
        write_lines(runtime, &mut receiver, &mut file)?;
    }
    Ok(receiver.summary())
}

fn write_lines(runtime: &Handle, receiver: &mut LineReceiver, to: &mut impl Write) -> io::Result<()> {
    while let Some(lines) = runtime.block_on(receiver.next()) {
        to.write_all(&lines)?;
        // The file is flushed, so that its compressed part can be unpacked even if this process is killed.
        to.flush()?;
        std::thread::sleep(WRITE_INTERVAL);
    }
    Ok(())
}

fn log_summary(name: &str, summary: &Summary) {
    let Summary { lines, dropped, end } = summary;
    let reason = match end {
        Some(EndReason::Full) => "the size limit is reached",
        Some(EndReason::Time) => "the time is over",
        _ => "the server stops",
    };
    let text = format!("recorded {lines} requests in {name}: {reason}");
    if *dropped == 0 {
        tracing::info!("{text}");
    } else {
        warn(&format!("{text}; {dropped} requests were lost, because writing was too slow"));
    }
}
