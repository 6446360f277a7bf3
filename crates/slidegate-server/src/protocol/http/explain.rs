//! `POST /v1/explain`: explains rule by rule why a request would be allowed or denied. Charges nothing.

use super::acquire::{AD_HOC_EXAMPLE, AcquireBody, LOGIN_EXAMPLE};
use super::call::CallRequest;
use super::dto::read_json;
use super::error::{ApiError, BODY_ERRORS, Code};
use super::operation::{Access, Operation};
use super::response::{BufferedResponse, ok};
use crate::app::explain;
use crate::app::explain::dto::ExplanationBody;

const EXPLANATION_EXAMPLE: &str = r#"{"allowed":false,"code":10007,"denied_by":"login-per-ip","never":false,"retry_after_ms":4986,"permits":1,"source":"store","rules":[{"rule":"login-per-ip","mode":"enforce","verdict":"denies","counted":{"key":"login-per-ip:ip=1.2.3.4","algorithm":"sliding-window","count":"attempts","limit":3,"limit_now":3,"window_ms":5000,"overridden":false,"used":3,"remaining":0,"retry_after_ms":4986,"reset_after_ms":4995,"entries":[{"permits":1,"age_ms":14,"leaves_after_ms":4986}],"more_entries":0}},{"rule":"search","mode":"enforce","verdict":"does-not-apply","reason":{"kind":"match","attribute":"api","wanted":["/search"],"found":"/login"},"why":"`match` needs `api` to be /search, but it is /login"}],"left_out":0}"#;

pub(super) fn operation() -> Operation {
    Operation::new(
        Access::Api,
        "explain",
        "Explain why a request would be allowed or denied, and charge nothing",
    )
    .takes::<AcquireBody<'_>>(&[LOGIN_EXAMPLE, AD_HOC_EXAMPLE])
    .answers::<ExplanationBody>("200", "The decision, and the result of each rule", &[EXPLANATION_EXAMPLE])
    .fails(&BODY_ERRORS)
    .fails(&[Code::PermitsExceedLimit])
}

pub(super) async fn explain(call: CallRequest<'_>) -> Result<BufferedResponse, ApiError> {
    let body: AcquireBody<'_> = read_json(call.body)?;
    Ok(ok(&explain::explain(call.instrumented.limiter, &body.request()?).await?))
}
