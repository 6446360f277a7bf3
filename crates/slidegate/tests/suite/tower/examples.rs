//! Tests that the examples of the layer print the decisions that they describe.

#[path = "../../../examples/axum_layer.rs"]
#[expect(dead_code, reason = "its main")]
mod axum_layer;
#[path = "../../../examples/tonic_layer.rs"]
#[expect(dead_code, reason = "its main")]
mod tonic_layer;

#[tokio::test]
async fn axum_example_prints_its_decisions() {
    let lines = axum_layer::show().await.unwrap();
    let statuses: Vec<_> = lines.iter().map(|line| line.split_whitespace().nth(3).unwrap()).collect();
    assert_eq!(statuses, ["200", "200", "200", "429", "429"], "{lines:?}");
    assert!(lines[3..].iter().all(|line| line.contains("retry-after: ")), "{lines:?}");
}

#[tokio::test]
async fn tonic_example_prints_its_decisions() {
    let lines = tonic_layer::show().await.unwrap();
    let denied = "ResourceExhausted: denied by per-client, again in ";
    let answers: Vec<_> =
        lines.iter().map(|line| if line.starts_with(denied) { denied } else { line.as_str() }).collect();
    assert_eq!(answers, ["Serving", "Serving", "Serving", denied, denied]);
}
