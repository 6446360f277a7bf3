//! A recording in a file, written by a thread of its own.

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

/// Lines are taken together that come within this time.
const PAUSE: Duration = Duration::from_millis(100);

/// A file that nothing is written to yet.
pub(crate) struct FileRecording {
    path: PathBuf,
    file: File,
    pub(super) sample: Sample,
    pub(super) bounds: Bounds,
}

impl FileRecording {
    /// Makes the file; what is there already stays, unless it is to be replaced.
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

    /// Records from now on. Who joins the thread has it all in the file.
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
        // So that what is packed can be unpacked this far, whatever becomes of this process.
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
