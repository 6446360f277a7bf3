//! `slidegate simulate`: loads the rules, runs the simulator and prints its report.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slidegate::Rules;
use slidegate_simulator::{Finished, SimulateArgs};

use crate::common::console::{fail, say};
use crate::common::signals;
use crate::config::{self, Inputs};

/// Exit code of a process that a signal interrupted, by the convention of shells: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// Runs the simulation and prints its report. Returns exit code 0, or 2 if the simulation failed.
pub(super) fn run(args: SimulateArgs) -> ExitCode {
    // Signals are handled only after the rules are loaded: until then Ctrl-C ends the process at once.
    let report = args.plan(load_rules).and_then(|plan| plan.run(&interrupt_flag()));
    match report {
        Ok(Finished { text, written }) => {
            say(text.trim_end());
            // Not on standard output, which may be JSON.
            for message in written {
                tracing::info!("{message}");
            }
            ExitCode::SUCCESS
        }
        Err(message) => fail(&message),
    }
}

/// Loads the rules of a configuration file. The rest of the file is checked and then ignored; sections that refer to
/// variables or files are not checked, because those may be on another machine.
fn load_rules(path: &Path) -> Result<Rules, String> {
    let config = config::load(path, &Inputs::default())?;
    if !config.rules.is_known() {
        return Err(format!(
            "{} has its rules in Redis: `curl …/v1/rules?format=yaml` prints them",
            path.display()
        ));
    }
    Ok(config.rules)
}

/// Returns a flag that becomes true on the first Ctrl-C or SIGTERM from now on. The second signal ends the process.
fn interrupt_flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    // Without a runtime the signals keep their default effect: they end the process.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return stop };
    let signalled = {
        let _inside = runtime.enter();
        signals::signalled()
    };
    let flag = Arc::clone(&stop);
    let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(signalled);
        flag.store(true, Ordering::Relaxed);
        // A thread that blocks on standard input does not see the flag.
        runtime.block_on(async { signals::signalled().await });
        std::process::exit(INTERRUPTED);
    });
    stop
}
