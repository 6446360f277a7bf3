//! Binary `slidegate`: see `slidegate --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    slidegate_server::run()
}
