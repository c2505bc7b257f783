//! Extended matches: expressions used by the classifiers basic, cgroup and flow.
//!
//! `not cmp(u8 at 0 eq 1) and (u32(u16 1 0xffff at 4) or meta(fwmark eq 7))`: matches combined with `and`,
//! `or`, `not` and parentheses, evaluated from left to right without precedence. There is one file per kind
//! of match.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `struct tcf_ematch_hdr`, `net/sched/ematch.c`.

mod canid;
mod cmp;
mod layer;
mod meta;
mod nbyte;
mod token;
mod u32;

use canid::Canid;
use cmp::Cmp;
use meta::Meta;
use nbyte::Nbyte;
use token::{Args, Token, Tokens, What};
use u32::U32;

use crate::words::{Read, Words};
use netlink::attr::{Attr, AttrBuf, Malformed};

const TREE_HDR: u16 = 1;
const TREE_LIST: u16 = 2;

/// Parentheses: `TCF_EM_CONTAINER`.
const CONTAINER: u16 = 0;

/// The bits of a relation, and that of `not`: `TCF_EM_REL_*`, `TCF_EM_INVERT`.
const RELATION: u16 = 3;
const AND: u16 = 1;
const OR: u16 = 2;
const INVERT: u16 = 4;

/// Size of the header before the data of a match: `struct tcf_ematch_hdr`.
const HEADER_BYTES: usize = 8;

/// Maximum number of matches per rule. The kernel's own limit is that of 16 bits; no hand-written rule comes
/// near the maximum.
const MATCHES_MAX: usize = 256;

/// Maximum nesting of parentheses: `CONFIG_NET_EMATCH_STACK`, 32 by default.
const DEPTH_MAX: usize = 32;

/// Declares the kinds of matches as variants of an enum with forwarding methods.
macro_rules! match_kinds {
    ($($variant:ident = $name:literal $number:literal,)*) => {
        /// A match of a specific kind.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Match {
            /// Parentheses, with the list index of the first match inside them.
            Group(usize),
            $(#[doc = concat!("`", $name, "`")] $variant($variant),)*
        }

        impl Match {
            /// The words that can start a match.
            const BEGINNINGS: &'static [&'static str] = &[$($name,)* "not", "("];

            fn parse(kind: &Token, args: &mut Args<'_>) -> Read<Self> {
                match kind.text() {
                    $(Some($name) => $variant::parse(args).map(Self::$variant),)*
                    Some("ipset" | "ipt") => Err(kind.wrong(
                        "matches of ipset and ipt depend on the host's sets and on libraries of iptables, and are not supported",
                    )),
                    _ => Err(kind.unknown(Self::BEGINNINGS)),
                }
            }

            /// Returns the kernel's number of the kind: `TCF_EM_*`.
            const fn number(&self) -> u16 {
                match self { Self::Group(_) => CONTAINER, $(Self::$variant(_) => $number,)* }
            }

            fn encode(&self, out: &mut AttrBuf) {
                match self {
                    // The index does not overflow, because a list has at most `MATCHES_MAX` entries.
                    Self::Group(first) => _ = out.raw(&u32::try_from(*first).unwrap_or(u32::MAX).to_ne_bytes()),
                    $(Self::$variant(of) => of.encode(out),)*
                }
            }

            /// Decodes the data of a match; returns `None` for an unknown kind.
            fn decode(number: u16, data: &Attr<'_>) -> Result<Option<Self>, Malformed> {
                Ok(Some(match number {
                    CONTAINER => Self::Group(usize::try_from(data.word_at(0)?).unwrap_or(usize::MAX)),
                    $($number => Self::$variant($variant::decode(data)?),)*
                    _ => return Ok(None),
                }))
            }

            /// Converts the match to the form that the kernel would dump.
            fn canonicalize(&mut self) {
                if let Self::Canid(ids) = self {
                    ids.canonicalize();
                }
            }

            /// Formats the match in tc syntax. Returns `None` for a group, or if tc has no syntax for the
            /// match.
            fn words(&self) -> Option<String> {
                match self {
                    Self::Group(_) => None,
                    $(Self::$variant(of) => of.words().map(|words| format!("{}({words})", $name)),)*
                }
            }
        }
    };
}

match_kinds! {
    Cmp = "cmp" 1,
    Nbyte = "nbyte" 2,
    U32 = "u32" 3,
    Meta = "meta" 4,
    Canid = "canid" 7,
}

/// A match in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The relation to the next match: `AND`, `OR`, or 0 for the last one in its parentheses.
    pub relation: u16,
    /// Whether the match is negated.
    pub inverted: bool,
    /// The match.
    pub what: Match,
}

/// An expression as a list. The contents of parentheses follow all matches of the enclosing level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The matches.
    pub nodes: Vec<Node>,
}

/// A match with the contents of its parentheses.
struct Parsed {
    node: Node,
    inner: Vec<Parsed>,
}

impl Tree {
    /// Parses an expression from the next words.
    ///
    /// # Errors
    /// If the words are not an expression.
    pub(crate) fn parse(words: &mut Words<'_>) -> Read<Self> {
        let mut tokens = Tokens::new(words.clone());
        let mut count = 0;
        let expression = Self::expression(&mut tokens, &mut count, 0)?;
        *words = tokens.end()?;
        let mut nodes = Vec::with_capacity(count);
        Self::append(expression, &mut nodes);
        Ok(Self { nodes })
    }

    fn expression(tokens: &mut Tokens<'_>, count: &mut usize, depth: usize) -> Read<Vec<Parsed>> {
        let mut all = Vec::new();
        loop {
            let mut token = tokens.next()?;
            let inverted = token.what == What::Not;
            if inverted {
                token = tokens.next()?;
            }
            *count += 1;
            if *count > MATCHES_MAX {
                return Err(token.wrong("a rule has at most 256 matches"));
            }
            let (what, inner) = if token.what == What::Open {
                if depth == DEPTH_MAX {
                    return Err(token.wrong("parentheses are at most 32 deep"));
                }
                let inner = Self::expression(tokens, count, depth + 1)?;
                tokens.close()?;
                (Match::Group(0), inner)
            } else {
                if token.text().is_none() {
                    return Err(token.unknown(Match::BEGINNINGS));
                }
                let (args, end) = tokens.arguments()?;
                let mut args = Args::new(&args, end);
                let what = Match::parse(&token, &mut args)?;
                args.at_end()?;
                (what, Vec::new())
            };
            let relation = match tokens.peek() {
                Some(What::And) => AND,
                Some(What::Or) => OR,
                _ => 0,
            };
            all.push(Parsed { node: Node { relation, inverted, what }, inner });
            if relation == 0 {
                return Ok(all);
            }
            tokens.next()?;
        }
    }

    /// Appends the matches of a level to `nodes`, then the contents of their parentheses. Returns the index
    /// of the level's first match.
    fn append(beside: Vec<Parsed>, nodes: &mut Vec<Node>) -> usize {
        let first = nodes.len();
        let mut groups = Vec::new();
        for Parsed { node, inner } in beside {
            if !inner.is_empty() {
                groups.push((nodes.len(), inner));
            }
            nodes.push(node);
        }
        for (place, inner) in groups {
            nodes[place].what = Match::Group(Self::append(inner, nodes));
        }
        first
    }

    /// Encodes the tree as the attribute with this number.
    pub(crate) fn encode(&self, number: u16, out: &mut AttrBuf) {
        out.unmarked(number, |out| {
            // The count does not overflow, because a list has at most `MATCHES_MAX` entries.
            let count = u16::try_from(self.nodes.len()).unwrap_or(u16::MAX);
            out.bytes(TREE_HDR, &u32::from(count).to_le_bytes());
            out.unmarked(TREE_LIST, |out| {
                for (node, place) in self.nodes.iter().zip(1..) {
                    out.unmarked(place, |out| {
                        let flags = node.relation | if node.inverted { INVERT } else { 0 };
                        let header = [0, node.what.number(), flags, 0].map(u16::to_ne_bytes);
                        out.raw(header.as_flattened());
                        node.what.encode(out);
                    });
                }
            });
        });
    }

    /// Decodes a tree from a dump; returns `None` if it contains unknown matches.
    pub(crate) fn decode(attr: &Attr<'_>) -> Result<Option<Self>, Malformed> {
        let mut tree = Self::default();
        let Some(list) = attr.nested().find(TREE_LIST)? else { return Ok(Some(tree)) };
        for attr in list.nested() {
            let attr = attr?;
            let word = |at| attr.word_at(at).map(u32::to_ne_bytes);
            let ([_, _, a, b], [c, d, ..]) = (word(0)?, word(4)?);
            let (kind, flags) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
            let data = Attr { number: attr.number, payload: &attr.payload[HEADER_BYTES..] };
            let Some(what) = Match::decode(kind, &data)? else { return Ok(None) };
            let known = flags & !(RELATION | INVERT) == 0 && flags & RELATION != RELATION;
            if !known || tree.nodes.len() == MATCHES_MAX {
                return Ok(None);
            }
            tree.nodes.push(Node { relation: flags & RELATION, inverted: flags & INVERT != 0, what });
        }
        Ok(Some(tree))
    }

    /// Converts the expression to the form that the kernel would dump.
    pub(crate) fn canonicalize(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.what.canonicalize());
    }

    /// Formats the expression in tc syntax, as a single word of a line. Returns `None` if tc has no syntax
    /// for it.
    pub(crate) fn words(&self) -> Option<String> {
        let mut words = String::new();
        let mut left = MATCHES_MAX;
        self.chain(0, DEPTH_MAX, &mut left, &mut words)?;
        crate::words::quoted(&words)
    }

    /// Formats the matches from index `first` to the last one in the same parentheses. `depth` and `left`
    /// limit the nesting and the number of matches, because a dump need not be a tree.
    fn chain(&self, first: usize, depth: usize, left: &mut usize, words: &mut String) -> Option<()> {
        for node in self.nodes.get(first..)? {
            *left = left.checked_sub(1)?;
            words.push_str(if node.inverted { "not " } else { "" });
            match &node.what {
                Match::Group(inner) => {
                    words.push('(');
                    self.chain(*inner, depth.checked_sub(1)?, left, words)?;
                    words.push(')');
                }
                what => words.push_str(&what.words()?),
            }
            match node.relation {
                AND => words.push_str(" and "),
                OR => words.push_str(" or "),
                _ => return Some(()),
            }
        }
        None
    }
}
