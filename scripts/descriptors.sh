#!/usr/bin/env bash
# Writes what gRPC reflection tells of Envoy's rate-limit service, from the files that the crate envoy-types is made
# of: after an update of that crate, if its service has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/need.sh
need protoc protobuf-compiler
need jq jq

crate=$(cargo metadata --format-version 1 --offline |
    jq -r '.packages[] | select(.name == "envoy-types") | .manifest_path | rtrimstr("/Cargo.toml")')
protoc --include_imports --descriptor_set_out=crates/slidegate-server/src/grpc/rate_limit_service.bin \
    -I "$crate/proto/data-plane-api" -I "$crate/proto/xds" -I "$crate/proto/protoc-gen-validate" \
    envoy/service/ratelimit/v3/rls.proto
