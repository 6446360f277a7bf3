//! Enums whose variants are words in files and replies, declared once: `words!`.

/// Enum whose variants are words in files and replies.
pub trait Words: Copy + PartialEq + 'static {
    /// Name of the type in the JSON Schema.
    const NAME: &'static str;
    /// One line of documentation.
    const DOC: &'static str;
    /// Each word, its meaning, and one line of documentation.
    const WORDS: &'static [(&'static str, Self, &'static str)];
}

/// Declares an enum with a word for each variant. `as_str`, `Default` and [`Words`] derive from the declaration.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    (
        $(#[doc = $doc:literal])*
        $visibility:vis enum $name:ident default $default:ident {
            $( $(#[doc = $word_doc:literal])* $variant:ident = $word:literal, )*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $visibility enum $name {
            $( $(#[doc = $word_doc])* $variant, )*
        }

        impl $name {
            /// Returns the name used in files and replies.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( $name::$variant => $word, )*
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name::$default
            }
        }

        impl $crate::words::Words for $name {
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = concat!("" $(, $doc)*);
            const WORDS: &'static [(&'static str, Self, &'static str)] =
                &[$( ($word, $name::$variant, concat!("" $(, $word_doc)*)) ),*];
        }
    };
}
