//! Protobuf messages of Envoy's rate limit service, `envoy.service.ratelimit.v3.RateLimitService`.
//!
//! Only the messages and fields that Slidegate reads or writes are declared; protobuf decoders skip the
//! others. A crate with all of Envoy's API would take half a minute to compile. A test compares names,
//! numbers and types with the published descriptors in `rate_limit_service.bin`.
//!
//! The strings of a request are `bytes` here and `string` in the published messages. Both look the same on the wire.
//! Envoy copies them from the headers of its clients, so they need not be UTF-8. A decoder of `string` would reject the
//! whole message, and Envoy lets a request pass if its check fails. Bytes that are not UTF-8 become U+FFFD, as they do
//! over HTTP.

use prost::{Enumeration, Message};

/// Request of `ShouldRateLimit`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// Namespace of the descriptors.
    #[prost(bytes = "vec", tag = "1")]
    pub domain: Vec<u8>,
    /// Descriptors to check, all or nothing.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Cost of each descriptor that has no cost of its own; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// List of entries that one limit applies to.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// Ordered keys and values.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// Limit that replaces the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// Cost of this descriptor (`google.protobuf.UInt64Value`).
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// True if the cost is refunded instead of charged.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// One key and its value in a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// Name of the attribute.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Value of the attribute.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// Limit that a descriptor carries itself.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct RateLimitOverride {
    /// Limit per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// Length of the window.
    #[prost(enumeration = "RateLimitUnit", tag = "2")]
    pub unit: i32,
}

/// Window of a [`RateLimitOverride`]: `envoy.type.v3.RateLimitUnit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
#[expect(missing_docs, reason = "the names say it")]
pub enum RateLimitUnit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
}

/// Response of `ShouldRateLimit`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// `Ok` if every descriptor is below its limit.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One status per descriptor, in the order of the request.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers that Envoy adds to the response to its client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
}

/// Verdict on a descriptor or on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

/// Status of one descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    /// Verdict on this descriptor.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// Limit with the fewest permits left.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// Permits left of `current_limit`.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Time until `current_limit` has more permits.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<prost_types::Duration>,
}

/// Limit as Envoy reports it.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimit {
    /// Limit per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// Length of the window, if Envoy has a name for it.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// Name of the rule.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Window of a [`RateLimit`]: `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// Header to add to a message: `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    /// Name of the header.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value of the header, as text.
    #[prost(string, tag = "2")]
    pub value: String,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost_types::field_descriptor_proto::Type;
    use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

    use super::*;
    use crate::protocol::grpc::reflection::RATE_LIMIT_SERVICE;

    /// Published messages and enums by their full names.
    #[derive(Default)]
    struct Published {
        messages: BTreeMap<String, DescriptorProto>,
        enums: BTreeMap<String, EnumDescriptorProto>,
    }

    impl Published {
        fn read() -> Self {
            let mut published = Published::default();
            for file in FileDescriptorSet::decode(RATE_LIMIT_SERVICE).unwrap().file {
                let package = file.package().to_owned();
                for message in file.message_type {
                    published.add(&package, message);
                }
                for one in file.enum_type {
                    published.enums.insert(format!("{package}.{}", one.name()), one);
                }
            }
            published
        }

        fn add(&mut self, scope: &str, message: DescriptorProto) {
            let name = format!("{scope}.{}", message.name());
            for nested in message.nested_type.clone() {
                self.add(&name, nested);
            }
            for one in message.enum_type.clone() {
                self.enums.insert(format!("{name}.{}", one.name()), one);
            }
            self.messages.insert(name, message);
        }

        /// Asserts that a field has this type, and that `encoded`, our message with only that field set, uses
        /// the field's number and wire type.
        fn assert_field(&self, message: &str, field: &str, kind: Type, encoded: &[u8]) {
            let fields = &self.messages[message].field;
            let field = fields.iter().find(|one| one.name() == field).unwrap();
            assert_eq!(field.r#type(), kind, "{message}.{}", field.name());
            let wire_type = match kind {
                Type::String | Type::Message | Type::Bytes => 2,
                _ => 0,
            };
            let tag = u8::try_from(field.number() << 3 | wire_type).unwrap();
            assert_eq!(encoded.first(), Some(&tag), "{message}.{}", field.name());
        }

        fn assert_enum<E: TryFrom<i32> + std::fmt::Debug>(&self, name: &str) {
            for value in &self.enums[name].value {
                let ours = E::try_from(value.number()).unwrap_or_else(|_| panic!("{name}.{}", value.name()));
                let word = format!("{ours:?}").to_lowercase();
                assert_eq!(word, value.name().replace('_', "").to_lowercase(), "{name}");
            }
        }
    }

    #[test]
    fn messages_match_the_published_descriptors() {
        let published = Published::read();
        let text = || "x".to_owned();
        let bytes = |message: &dyn Fn() -> Vec<u8>| message();
        macro_rules! fields {
            ($name:literal, $message:ident { $($field:ident: $kind:ident = $value:expr),+ $(,)? }) => {$(
                let encoded = bytes(&|| $message { $field: $value, ..$message::default() }.encode_to_vec());
                published.assert_field($name, stringify!($field), Type::$kind, &encoded);
            )+};
        }
        fields!(
            "envoy.service.ratelimit.v3.RateLimitRequest",
            RateLimitRequest {
                domain: String = text().into(),
                descriptors: Message = vec![RateLimitDescriptor::default()],
                hits_addend: Uint32 = 1,
            }
        );
        fields!(
            "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
            RateLimitDescriptor {
                entries: Message = vec![Entry::default()],
                limit: Message = Some(RateLimitOverride::default()),
                hits_addend: Message = Some(1),
                is_negative_hits: Bool = true,
            }
        );
        fields!(
            "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
            Entry { key: String = text().into(), value: String = text().into() }
        );
        fields!(
            "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride",
            RateLimitOverride { requests_per_unit: Uint32 = 1, unit: Enum = 1 }
        );
        fields!(
            "envoy.service.ratelimit.v3.RateLimitResponse",
            RateLimitResponse {
                overall_code: Enum = 1,
                statuses: Message = vec![DescriptorStatus::default()],
                response_headers_to_add: Message = vec![HeaderValue::default()],
            }
        );
        fields!(
            "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
            DescriptorStatus {
                code: Enum = 1,
                current_limit: Message = Some(RateLimit::default()),
                limit_remaining: Uint32 = 1,
                duration_until_reset: Message = Some(prost_types::Duration::default()),
            }
        );
        fields!(
            "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit",
            RateLimit { requests_per_unit: Uint32 = 1, unit: Enum = 1, name: String = text() }
        );
        fields!(
            "envoy.config.core.v3.HeaderValue",
            HeaderValue { key: String = text(), value: String = text() }
        );
        published.assert_enum::<RateLimitUnit>("envoy.type.v3.RateLimitUnit");
        published.assert_enum::<Code>("envoy.service.ratelimit.v3.RateLimitResponse.Code");
        published.assert_enum::<Unit>("envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit");
    }
}
