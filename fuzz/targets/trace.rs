//! Lines of traces, the first of which is a table's header: each is read or rejected with a message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::bounded;
use slidegate_simulator::fuzz_line;

fuzz_target!(|text: &str| {
    let (header, lines) = text.split_once('\n').unwrap_or(("time,ip,api", text));
    for line in lines.lines() {
        let taken = bounded(header.len() + line.len(), 4 << 20, 256, || fuzz_line(header, line));
        assert!(taken <= 4, "one request a format: {taken}");
    }
});
