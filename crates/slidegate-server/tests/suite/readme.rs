//! Tests that the commands of the README print the output that it shows.

use std::process::Command;

use slidegate_testkit::process;

use crate::server::Server;

const README: &str = include_str!("../../../../README.md");

/// Every `$` line of the console blocks of the README, with its expected output.
fn console_lines() -> Vec<(&'static str, &'static str)> {
    let blocks = README.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.map(|block| block.trim_end().strip_prefix("$ ").unwrap().split_once('\n').unwrap()).collect()
}

/// Waits and reservations differ from run to run; everything else must not.
fn without_times(answer: &str) -> String {
    let mut plain = String::new();
    let mut rest = answer;
    while let Some(found) =
        ["_after_ms\":", "\"reservation\":\""].iter().filter_map(|m| rest.find(m).map(|i| i + m.len())).min()
    {
        plain += &rest[..found];
        plain.push('…');
        let is_reservation = plain.ends_with("\"reservation\":\"…");
        rest = rest[found..].trim_start_matches(|c: char| match is_reservation {
            true => c != '"',
            false => c.is_ascii_digit() || c == '.',
        });
    }
    plain + rest
}

#[test]
fn console_blocks_answer_as_printed() {
    let server = Server::demo();
    let lines = console_lines();
    assert_eq!(lines.len(), 4);
    for (n, (line, printed)) in lines.iter().enumerate() {
        let line = line.replace("127.0.0.1:8080", &server.address);
        let run =
            || String::from_utf8(process::output(Command::new("sh").args(["-c", &line])).stdout).unwrap();
        if n == 1 {
            // The README shows the first login and the fourth.
            run();
            run();
        }
        assert_eq!(without_times(&run()), without_times(printed), "{line}");
    }
}

/// The YAML in the README is a file that is accepted.
#[test]
fn rules_are_accepted() {
    let yaml = README.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    slidegate_server::Config::parse(yaml).unwrap();
}
