//! Tests that the examples of the layer print the decisions that they describe.

use crate::examples;

#[test]
fn axum_example_prints_its_decisions() {
    let lines = examples::lines("axum_layer");
    let statuses: Vec<_> = lines.iter().map(|line| line.split_whitespace().nth(3).unwrap()).collect();
    assert_eq!(statuses, ["200", "200", "200", "429", "429"], "{lines:?}");
    assert!(lines[3..].iter().all(|line| line.contains("retry-after: ")), "{lines:?}");
}

#[test]
fn tonic_example_prints_its_decisions() {
    let lines = examples::lines("tonic_layer");
    let denied = "ResourceExhausted: denied by per-client, retry in ";
    let answers: Vec<_> =
        lines.iter().map(|line| if line.starts_with(denied) { denied } else { line.as_str() }).collect();
    assert_eq!(answers, ["Serving", "Serving", "Serving", denied, denied]);
}
