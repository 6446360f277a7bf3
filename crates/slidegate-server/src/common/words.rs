//! Enums whose variants have a word each, such as the values of a metric label.

/// Declares an enum with `ALL`, its variants in their order, and `as_str`, the word of a variant.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            pub(crate) const ALL: [$name; [$($word),+].len()] = [$($name::$variant),+];

            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }
        }
    };
}

pub(crate) use words;
