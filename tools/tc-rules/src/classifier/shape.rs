//! Defines classifier kinds whose options are a list: their keywords, each with its argument and attribute.

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
    /// A number to add, or an address whose last 32 bits are that number.
    Addend,
    /// No argument: the keyword itself selects this number, which is sent at the end.
    Choice(u32),
    /// The arguments of `and`, `or` and `xor`: a mask, the bits to set, and the bits to flip. They are sent
    /// as two numbers at the end.
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
    /// The keywords, in the order in which iproute2 checks them.
    pub(super) words: &'static [Word],
    /// The texts of the keywords in `words`.
    pub(super) texts: &'static [&'static str],
    /// Whether the options attribute is sent even if it is empty.
    pub(super) always: bool,
}

/// Creates a [`Shape`] from its name, the word `always` if the options attribute is always sent, and its
/// keywords, each with its attribute and argument.
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

/// A kind of classifier whose options are a list.
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
    /// Marks the position of the rule's actions.
    Actions,
}

/// Values that are collected while a line is parsed, and sent after its other options.
#[derive(Debug)]
pub(super) struct Gathered {
    /// The number selected by the words with [`Takes::Choice`].
    pub(super) choice: u32,
    /// The mask of the result.
    pub(super) mask: u32,
    /// The bits of the result to flip.
    pub(super) xor: u32,
    /// The bits of the named keys, and the number of keys.
    pub(super) keys: (u32, u32),
    /// The part of the handle that the line gives with `order`.
    pub(super) order: u32,
}
