//! Macros for enums whose variants are the kernel's words.

/// Implements serialisation as text for types with `Display` and `FromStr`, with a description of each for
/// the schema.
#[macro_export]
macro_rules! as_text {
    ($($name:ident: $what:literal),+ $(,)?) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        $crate::text_schema! { $name: $what }
    )+};
}

/// Implements the schema of types that are serialised as text, each with a description.
#[macro_export]
macro_rules! text_schema {
    ($($name:ident: $what:literal),+ $(,)?) => {$(
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "description": $what })
            }
        }
    )+};
}

/// Defines an enum whose variants are the kernel's words, and a list of all variants.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, schemars::JsonSchema, serde::Serialize, serde::Deserialize,
        )]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All words, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The kernel's word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// Returns the variant with this word.
            pub fn named(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Defines an enum of knobs, one for each word. The facts about each knob are based on those of its kind.
macro_rules! knob_words {
    (
        $(#[doc = $doc:literal])+
        $name:ident of $base:ident {
            $($(#[doc = $variant_doc:literal])+ $variant:ident = $word:literal $({ $($fact:ident: $value:expr),+ $(,)? })?,)+
        }
    ) => {
        crate::words::words! {
            $(#[doc = $doc])+
            $name { $($(#[doc = $variant_doc])+ $variant = $word,)+ }
        }

        impl $name {
            /// The knob's facts.
            pub const fn facts(self) -> &'static crate::facts::Facts {
                match self {
                    $(Self::$variant => const { &crate::facts::Facts {
                        $($($fact: $value,)+)?
                        name: $word,
                        key: Some(concat!("settings.", $word)),
                        doc: concat!($($variant_doc, "\n"),+),
                        ..$base
                    } },)+
                }
            }

            /// Returns the facts about all knobs of the enum.
            pub fn table() -> Vec<&'static crate::facts::Facts> {
                Self::ALL.iter().map(|one| one.facts()).collect()
            }

            /// Returns the policy-file key that sets the knob.
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!("settings.", $word),)+
                }
            }
        }
    };
}

pub(crate) use {knob_words, words};
