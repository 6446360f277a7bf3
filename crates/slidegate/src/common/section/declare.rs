//! Macros that declare sections and field types: `section!` and `field_type!`.

/// Length of the name of a field in a file.
#[doc(hidden)]
pub const fn name_len(ident: &str) -> usize {
    if matches!(ident.as_bytes(), [b'r', b'#', ..]) { ident.len() - 2 } else { ident.len() }
}

/// Returns the name of a field in a file: `warm-up` for `warm_up`, `match` for `r#match`.
#[doc(hidden)]
pub const fn name_bytes<const N: usize>(ident: &str) -> [u8; N] {
    let (mut name, mut i) = ([0; N], 0);
    while i < N {
        let byte = ident.as_bytes()[ident.len() - N + i];
        name[i] = if byte == b'_' { b'-' } else { byte };
        i += 1;
    }
    name
}

/// Implements [`FieldType`] for a type, given the type of its value.
#[doc(hidden)]
#[macro_export]
macro_rules! field_type {
    (
        $name:ty => $value:ty,
        kind: |$kind_terms:pat_param| $kind:expr,
        read: |$node:pat_param, $reader:pat_param, $what:pat_param, $terms:pat_param| $read:expr,
        shown: |$shown_value:pat_param| $shown:expr,
    ) => {
        impl $crate::section::FieldType for $name {
            type Value = $value;

            fn kind($kind_terms: &$crate::section::Terms) -> $crate::section::Kind {
                $kind
            }

            fn read(
                $node: &$crate::yaml::Node,
                $reader: &mut $crate::yaml::Reader,
                $what: &str,
                $terms: &$crate::section::Terms,
            ) -> Option<$value> {
                $read
            }

            fn shown($shown_value: &$value) -> $crate::section::Shown {
                $shown
            }
        }
    };
}

/// Declares the fields of a section, either of a new struct with defaults, or of another struct:
///
/// ```text
/// section! {
///     /// Permits that a node may take in advance.
///     pub struct Lease("Lease") {
///         /// The most permits that one node takes at once.
///         permits: u32 { required().between(2, 10_000) },
///     }
/// }
/// section! {
///     /// Failover when Redis does not answer.
///     struct Guard("Guard", base: FailoverOptions::default(), check: FailoverOptions::check) for FailoverOptions {
///         /// Longest time that a decision waits for Redis.
///         deadline: Duration,
///     }
/// }
/// ```
///
/// `field: Type as OtherType` reads and shows the field by another [`FieldType`]. `[owner] field` is a field of `target.owner`.
#[doc(hidden)]
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident (
            $title:literal $(, dotted: $dotted:literal)? $(, one_of: $one_of:expr)? $(, check: $check:path)?
        ) {
            $(
                $(#[doc = $field_doc:literal])*
                $field:ident : $type:ty $(as $field_type:ty)? $({ $($option:tt)+ })? $(= $default:expr)?,
            )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug)]
        #[allow(unreachable_pub, reason = "the section itself may be private")]
        $visibility struct $name {
            $( $(#[doc = $field_doc])* pub $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $crate::section!(@default $($default)?), )* }
            }
        }

        $crate::section! {
            @section $name, $name, [$name::default()], [$($doc)*], $title, [$($dotted)?], [$($one_of)?], [$($check)?],
            $( [$($field_doc)*] [] $field [$type $(, $field_type)?] [$(. $($option)+)?], )*
        }
    };
    (
        $(#[doc = $doc:literal])*
        $visibility:vis struct $name:ident (
            $title:literal $(, dotted: $dotted:literal)?, base: $base:expr $(, check: $check:path)?
        ) for $target:ty {
            $(
                $(#[doc = $field_doc:literal])*
                $([$($owner:ident).+])? $field:ident : $type:ty $({ $($option:tt)+ })?,
            )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug)]
        $visibility struct $name;

        $crate::section! {
            @section $name, $target, [$base], [$($doc)*], $title, [$($dotted)?], [], [$($check)?],
            $( [$($field_doc)*] [$($($owner)+)?] $field [$type] [$(. $($option)+)?], )*
        }
    };
    (
        @section $name:ident, $target:ty, [$base:expr], [$($doc:literal)*], $title:literal,
        [$($dotted:literal)?], [$($one_of:expr)?], [$($check:path)?],
        $(
            [$($field_doc:literal)*] [$($owner:ident)*] $field:ident [$($type:ty),+] [$($option:tt)*],
        )*
    ) => {
        impl $crate::section::Section for $name {
            type Target = $target;
            const TITLE: &'static str = $title;
            const DOC: &'static str = concat!("" $(, $doc)*);
            const TERMS: &'static [$crate::section::Terms] = &[$(
                $crate::section::Terms::new(
                    {
                        const IDENT: &str = stringify!($field);
                        const NAME: [u8; $crate::section::name_len(IDENT)] = $crate::section::name_bytes(IDENT);
                        match ::core::str::from_utf8(&NAME) {
                            Ok(name) => name,
                            Err(_) => IDENT,
                        }
                    },
                    concat!("" $(, $field_doc)*),
                ) $($option)*,
            )*];
            const DOTTED: bool = false $(|| $dotted)?;
            const ONE_OF: &'static [&'static [&'static str]] = $crate::section!(@one_of $($one_of)?);

            fn base() -> $target {
                $base
            }

            fn read_into(target: &mut $target, values: &mut $crate::section::Values<'_, '_>) {
                $(
                    if let Some(value) = values.read_next::<$crate::section!(@type $($type),+)>() {
                        target $(.$owner)* .$field = value;
                    }
                )*
            }

            fn kinds() -> Vec<$crate::section::Kind> {
                use $crate::section::{FieldType, Section};
                let mut terms = <$name as Section>::TERMS.iter();
                let mut kinds = Vec::new();
                $( kinds.extend(terms.next().map(<$crate::section!(@type $($type),+) as FieldType>::kind)); )*
                kinds
            }

            fn values(target: &$target) -> Vec<$crate::section::Shown> {
                vec![$(
                    <$crate::section!(@type $($type),+) as $crate::section::FieldType>::shown(
                        &target $(.$owner)* .$field
                    ),
                )*]
            }

            fn check(target: &$target) -> Result<(), $crate::Error> {
                let _ = target;
                $( $check(target)?; )?
                Ok(())
            }
        }

        $crate::field_type! {
            $name => $target,
            kind: |_| $crate::section::Kind::Section(<$name as $crate::section::Section>::describe()),
            read: |node, reader, what, _| <$name as $crate::section::Section>::read_whole(node, reader, what),
            shown: |value| <$name as $crate::section::Section>::show(value),
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@one_of) => { &[] };
    (@one_of $one_of:expr) => { $one_of };
    (@type $type:ty) => { $type };
    (@type $type:ty, $field_type:ty) => { $field_type };
}
