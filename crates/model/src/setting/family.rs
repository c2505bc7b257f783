//! What makes the enum of a family of knobs, its table and what its values decide, from one row a knob.

/// A family of knobs: an enum with one variant a knob. The documentation of a variant is that of its knob in the table.
///
/// `Variant(Value) = facts` has facts of its own; `Variant(Word, Value) = [facts table]` has those of its word, by these
/// two functions of the word's type. What depends on the value follows in `where { … }`, in this order; a row without it
/// says that every value can be put back, that none removes the object, that they do not rise and fall, and that tools
/// spell them as people do:
///
/// - `irreversible(PATTERN) if CONDITION => "the values, in words";` values that can be read and not be written back
/// - `removes(PATTERN);` values with which the object of the knob is gone
/// - `weight(PATTERN) => WEIGHT;` the value as something that rises and falls
/// - `tools(PATTERN) => TEXT;` the value as the kernel's files and common tools have it
macro_rules! family {
    (
        $(#[doc = $family_doc:literal])+
        $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $variant:ident($($field:ty),+) = $how:tt $({ $($fact:ident: $value:expr),+ $(,)? })? $(where {
                    $(irreversible($($kept:pat),+) if $lost:expr => $why:literal;)?
                    $(removes($($gone:pat),+);)?
                    $(weight($($weighed:pat),+) => $weight:expr;)?
                    $(tools($($spelt:pat),+) => $spelling:expr;)?
                })?,
            )+
        }
    ) => {
        $(#[doc = $family_doc])+
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name {
            $($(#[doc = $doc])+ $variant($($field),+),)+
        }

        impl $name {
            /// What is known about the knob.
            pub const fn facts(&self) -> &'static $crate::facts::Facts {
                match self {
                    $(crate::setting::family::family!(@pattern $variant $how word) => crate::setting::family::family!(
                        @one $how word [$($doc),+] [$($(irreversible: Some($why))?)?] $({ $($fact: $value),+ })?
                    ),)+
                }
            }

            /// The facts of every knob of the family.
            pub fn table() -> Vec<&'static $crate::facts::Facts> {
                let mut all = Vec::new();
                $(crate::setting::family::family!(
                    @all all $how ($($field),+) [$($doc),+] [$($(irreversible: Some($why))?)?] $({ $($fact: $value),+ })?
                );)+
                all
            }

            /// Whether the kernel takes this value when it is written; [`Facts::irreversible`](crate::facts::Facts) says
            /// of which it does not.
            pub fn restorable(&self) -> bool {
                $($($(if let Self::$variant($($kept),+) = self && $lost { return false; })?)?)+
                true
            }

            /// Whether the object of the knob is gone with this value.
            pub fn removes(&self) -> bool {
                $($($(if matches!(self, Self::$variant($($gone),+)) { return true; })?)?)+
                false
            }

            /// The value as something that rises and falls.
            pub fn weight(&self) -> $crate::setting::Weight {
                $($($(if let Self::$variant($($weighed),+) = self { return $weight; })?)?)+
                $crate::setting::Weight::NONE
            }

            /// The value as the kernel's files and common tools have it.
            pub fn for_tools(&self) -> String {
                $($($(if let Self::$variant($($spelt),+) = self { return $spelling; })?)?)+
                self.value()
            }
        }
    };
    (@pattern $variant:ident [$facts:ident $table:ident] $word:ident) => { Self::$variant($word, ..) };
    (@pattern $variant:ident $base:ident $word:ident) => { Self::$variant(..) };
    (@one [$facts:ident $table:ident] $word:ident [$($doc:literal),+] []) => { $word.$facts() };
    (@one $base:ident $word:ident [$($doc:literal),+] [$($why:tt)*] { $($fact:ident: $value:expr),+ }) => {
        const { &crate::setting::family::family!(@facts $base [$($doc),+] [$($why)*] { $($fact: $value),+ }) }
    };
    (@all $all:ident [$facts:ident $table:ident] ($word:ty, $value:ty) [$($doc:literal),+] []) => {
        $all.extend(<$word>::$table());
    };
    (@all $all:ident $base:ident ($($field:ty),+) [$($doc:literal),+] [$($why:tt)*] { $($fact:ident: $value:expr),+ }) => {
        $all.push(const { &crate::setting::family::family!(@facts $base [$($doc),+] [$($why)*] { $($fact: $value),+ }) });
    };
    (@facts $base:ident [$($doc:literal),+] [$($irreversible:ident: $why:expr)?] { $($fact:ident: $value:expr),+ }) => {
        $crate::facts::Facts {
            $($fact: $value,)+
            $($irreversible: $why,)?
            doc: concat!($($doc, "\n"),+),
            ..$base
        }
    };
}
pub(crate) use family;
