//! The macro that generates a family's enum, its table of facts and the properties of its values, from one
//! row per knob.

/// Defines a family of knobs: an enum with one variant per knob. A variant's documentation is also the
/// documentation of its knob in the table.
///
/// A row is `Variant(Value) = facts`, or `Variant(Word, Value) = [facts table]`, which uses the functions
/// `facts` and `table` of the word's type. `where { … }` adds properties that depend on the value, in the
/// order of the list below. By default, every value can be restored, none removes the object, values have no
/// order, and tools use the display format:
///
/// - `irreversible(PATTERN) if CONDITION => "the values, in words";` values that can be read but not written
///   back
/// - `removes(PATTERN);` values for which the knob's object does not exist
/// - `weight(PATTERN) => WEIGHT;` the value as a weight
/// - `tools(PATTERN) => TEXT;` the value in the format of the kernel's files and common tools
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
            /// The knob's facts.
            pub const fn facts(&self) -> &'static $crate::facts::Facts {
                match self {
                    $(crate::setting::family::family!(@pattern $variant $how word) => crate::setting::family::family!(
                        @one $how word [$($doc),+] [$($(irreversible: Some($why))?)?] $({ $($fact: $value),+ })?
                    ),)+
                }
            }

            /// Returns the facts about every knob of the family.
            pub fn table() -> Vec<&'static $crate::facts::Facts> {
                let mut all = Vec::new();
                $(crate::setting::family::family!(
                    @all all $how ($($field),+) [$($doc),+] [$($(irreversible: Some($why))?)?] $({ $($fact: $value),+ })?
                );)+
                all
            }

            /// Whether the kernel accepts this value; [`Facts::irreversible`](crate::facts::Facts) describes
            /// the values that it rejects.
            pub fn restorable(&self) -> bool {
                $($($(if let Self::$variant($($kept),+) = self && $lost { return false; })?)?)+
                true
            }

            /// Whether this value means that the knob's object does not exist.
            pub fn removes(&self) -> bool {
                $($($(if matches!(self, Self::$variant($($gone),+)) { return true; })?)?)+
                false
            }

            /// Returns the weight of the value.
            pub fn weight(&self) -> $crate::setting::Weight {
                $($($(if let Self::$variant($($weighed),+) = self { return $weight; })?)?)+
                $crate::setting::Weight::NONE
            }

            /// Formats the value as the kernel's files and common tools do.
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
