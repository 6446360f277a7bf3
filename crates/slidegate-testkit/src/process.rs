//! Child processes with a time limit: a test that waits too long fails with the command line, and never hangs.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time limit of a command: far more than any command needs on a busy machine, and less than the limit of nextest.
const LIMIT: Duration = Duration::from_secs(240);
const STEP: Duration = Duration::from_millis(5);

/// Runs `command` to its end, as [`Command::output`] does.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    let what = format!("{command:?}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}; run scripts/tools.sh"));
    finish(child, &what)
}

/// Waits for `child` to exit and returns what it wrote to its pipes, as [`Child::wait_with_output`] does.
#[track_caller]
pub fn finish(mut child: Child, what: &str) -> Output {
    drop(child.stdin.take());
    let stdout = child.stdout.take().map(read);
    let stderr = child.stderr.take().map(read);
    let status = exit(&mut child, what);
    let text = |pipe: Option<JoinHandle<Vec<u8>>>| pipe.map_or_else(Vec::new, |pipe| pipe.join().unwrap());
    Output { status, stdout: text(stdout), stderr: text(stderr) }
}

/// Waits for `child` to exit; kills it and panics if it does not.
#[track_caller]
pub fn exit(child: &mut Child, what: &str) -> ExitStatus {
    for _ in 0..LIMIT.as_millis() / STEP.as_millis() {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(STEP);
    }
    let _ = child.kill();
    let _ = child.wait();
    panic!("{what} does not exit within {LIMIT:?}");
}

/// Lines of a pipe as they arrive. A thread reads to the end, so that the child can always write.
pub struct Lines(Receiver<String>);

impl Lines {
    /// Starts the thread that reads the pipe.
    pub fn of(pipe: impl Read + Send + 'static) -> Self {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Lines(lines)
    }

    /// Returns the next line, or `None` at the end of the pipe. Panics if neither comes in time.
    #[track_caller]
    pub fn next(&self, what: &str) -> Option<String> {
        match self.0.recv_timeout(LIMIT) {
            Ok(line) => Some(line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("not within {LIMIT:?}: {what}"),
        }
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}
