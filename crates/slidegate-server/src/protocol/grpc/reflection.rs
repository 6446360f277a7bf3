//! gRPC server reflection, for tools such as grpcurl.

use tonic::service::Routes;
use tonic_reflection::server::Builder;

/// Descriptors of the service and of all messages that it refers to, as Envoy publishes them: the output of
/// `protoc --include_imports --descriptor_set_out` for `envoy/service/ratelimit/v3/rls.proto`.
pub(super) const RATE_LIMIT_SERVICE: &[u8] = include_bytes!("rate_limit_service.bin");

/// Adds both versions of the reflection service to `routes`.
pub(super) fn add_to(mut routes: Routes) -> Routes {
    let describe = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(RATE_LIMIT_SERVICE)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // The embedded descriptors are valid: the tests request them.
    if let Ok(v1) = describe().build_v1() {
        routes = routes.add_service(v1.max_decoding_message_size(super::MAX_MESSAGE));
    }
    if let Ok(v1alpha) = describe().build_v1alpha() {
        routes = routes.add_service(v1alpha.max_decoding_message_size(super::MAX_MESSAGE));
    }
    routes
}
