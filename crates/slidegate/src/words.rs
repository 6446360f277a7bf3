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

/// Declares an enum with a word for each variant. `ALL`, the variants in their order, and `as_str` derive from the
/// declaration; with `default`, also `Default` and [`Words`].
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    (
        $(#[doc = $doc:literal])*
        $visibility:vis enum $name:ident default $default:ident {
            $( $(#[doc = $word_doc:literal])* $variant:ident = $word:literal, )*
        }
    ) => {
        $crate::words! {
            $(#[doc = $doc])*
            #[derive(Hash)]
            $visibility enum $name {
                $( $(#[doc = $word_doc])* $variant = $word, )*
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
    (
        $(#[$meta:meta])*
        $visibility:vis enum $name:ident { $( $(#[$word_meta:meta])* $variant:ident = $word:literal, )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name {
            $( $(#[$word_meta])* $variant, )*
        }

        impl $name {
            /// All variants, in the order of their declaration.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$variant),*];

            /// Returns the word used in files, replies and metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( $name::$variant => $word, )*
                }
            }
        }
    };
}
