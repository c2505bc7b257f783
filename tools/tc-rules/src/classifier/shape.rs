//! Defines kinds of classifiers whose options are a list, by their keywords with argument and attribute.

use crate::action::police::Police;
use crate::ematch::Tree;

/// The argument of a keyword, and how it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// A class.
    Class,
    /// A class with a nonzero lower half.
    Minor,
    /// A 32-bit number; the kernel does not dump it if it is 0.
    Number,
    /// A routing realm: 0 to 255.
    Realm,
    /// A device, by its index.
    Device,
    /// A device, by its name.
    DeviceName,
    /// Keys of the packet; see `flow`.
    Keys,
    /// A number to add, or an address that represents one.
    Addend,
    /// No argument: the keyword itself selects this number, which is sent at the end.
    Choice(u32),
    /// A mask, and the bits to set and to flip; sent as two numbers at the end.
    And,
    Or,
    Xor,
    /// A number that is part of the handle.
    Order,
    /// An expression of ematches.
    Matches,
    /// A police action.
    Police,
    /// Actions.
    Actions,
}

/// A keyword of a classifier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) text: &'static str,
    /// Whether the word cannot be abbreviated.
    pub(super) whole: bool,
    pub(super) takes: Takes,
    /// The number of the netlink attribute.
    pub(super) number: u16,
}

/// A kind of classifier.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// In the order of iproute2's checks.
    pub(super) words: &'static [Word],
    /// The texts of these words.
    pub(super) texts: &'static [&'static str],
    /// Whether the options attribute is sent even if it is empty.
    pub(super) always: bool,
}

/// Creates a [`Shape`] from its name, `always` if the options attribute is always sent, and its keywords with
/// attribute and argument.
macro_rules! shape {
    ($name:literal $($always:ident)?; $($text:literal $($whole:ident)? = $number:literal $takes:expr,)*) => {
        $crate::classifier::shape::Shape {
            name: $name,
            words: &[$($crate::classifier::shape::Word {
                text: $text,
                whole: shape!(@is $($whole)?),
                takes: $takes,
                number: $number,
            },)*],
            texts: &[$($text,)*],
            always: shape!(@is $($always)?),
        }
    };
    (@is $mark:ident) => { true };
    (@is) => { false };
}
pub(super) use shape;

/// The kinds of classifiers of this sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is the kind that its name says")]
pub enum ListedKind {
    Basic,
    Cgroup,
    Flow,
    Fw,
    Route,
}

/// An option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, a class, a realm, or a device index.
    Number(u32),
    /// The name of a device.
    Name(String),
    /// An expression of ematches.
    Matches(Box<Tree>),
    /// A police action.
    Police(Box<Police>),
    /// The position of the rule's actions.
    Actions,
}

/// Values collected while a line is parsed, sent at its end.
#[derive(Debug)]
pub(super) struct Gathered {
    /// The value of the words with [`Takes::Choice`].
    pub(super) choice: u32,
    /// The mask of the result.
    pub(super) mask: u32,
    /// The bits of the result to flip.
    pub(super) xor: u32,
    /// The named keys, as bits, and their number.
    pub(super) keys: (u32, u32),
    /// The part of the handle given by the line.
    pub(super) order: u32,
}
