//! Binary `slidegate`: see `slidegate --help`.

use std::process::ExitCode;

/// The allocator of musl, the C library of the static release binaries, serialises the allocations of all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    slidegate_server::run()
}
