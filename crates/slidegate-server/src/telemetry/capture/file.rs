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
use super::{Bounds, End, Recorder, Reel, Sample};
use crate::common::console::warn;

/// Interval between two writes.
const PAUSE: Duration = Duration::from_millis(100);

/// Opened file of a recording that has not started.
pub(crate) struct FileRecording {
    path: PathBuf,
    file: File,
    pub(super) sample: Sample,
    pub(super) bounds: Bounds,
}

impl FileRecording {
    /// Creates the file. An existing file is an error, unless `replace` is set.
    pub(super) fn create(path: &Path, replace: bool, sample: Sample, bounds: Bounds) -> Result<Self, String> {
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
                        "{name} is there already: record to another file, or replace it with --record-force"
                    )
                }
                _ => format!("cannot record to {name}: {error}"),
            }
        })?;
        Ok(FileRecording { path: path.to_owned(), file, sample, bounds })
    }

    /// Starts the recording. The file is complete after joining the returned thread.
    pub(crate) fn start(self, recorder: &Arc<Recorder>) -> Result<JoinHandle<()>, String> {
        let FileRecording { path, file, sample, bounds } = self;
        let name = path.display().to_string();
        let reel = recorder.start(sample, bounds).ok_or("as much is recorded as may be")?;
        let runtime = Handle::current();
        let write = move || match write(&runtime, reel, &path, file) {
            Ok(summary) => tell(&name, &summary),
            Err(error) => warn(&format!("the recording is over: cannot write to {name}: {error}")),
        };
        let thread = std::thread::Builder::new().name("recording".to_owned()).spawn(write);
        thread.map_err(|error| format!("cannot record: {error}"))
    }
}

fn write(runtime: &Handle, mut reel: Reel, path: &Path, mut file: File) -> io::Result<Summary> {
    let compressed = path.extension().is_some_and(|extension| extension == "gz");
    if compressed {
        let mut packed = GzEncoder::new(file, Compression::fast());
        take(runtime, &mut reel, &mut packed)?;
        packed.finish()?;
    } else {
        take(runtime, &mut reel, &mut file)?;
    }
    Ok(reel.summary())
}

fn take(runtime: &Handle, reel: &mut Reel, to: &mut impl Write) -> io::Result<()> {
    while let Some(lines) = runtime.block_on(reel.next()) {
        to.write_all(&lines)?;
        // Flushed, so that a compressed file can be unpacked up to here, even if this process is killed.
        to.flush()?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn tell(name: &str, summary: &Summary) {
    let Summary { lines, dropped, end } = summary;
    let why = match end {
        Some(End::Full) => "it has as many bytes as it may",
        Some(End::Time) => "its time is over",
        _ => "the server stops",
    };
    let text = format!("recorded {lines} requests in {name}: {why}");
    if *dropped == 0 {
        tracing::info!("{text}");
    } else {
        warn(&format!("{text}; {dropped} were lost, because they could not be written fast enough"));
    }
}
