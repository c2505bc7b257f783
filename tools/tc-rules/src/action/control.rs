//! What becomes of a packet after an action.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TC_ACT_*`.

use crate::number::{self, Base};
use crate::words::{Read, Words, keywords};

keywords! {
    /// The words for a control, in iproute2's order.
    pub enum Word {
        Continue = "continue",
        Drop = "drop",
        Shot = "shot",
        Pass = "pass",
        Ok = "ok",
        Reclassify = "reclassify",
        Pipe = "pipe",
        Goto = "goto",
        Jump = "jump",
        Trap = "trap",
    }
}

/// What becomes of the packet, as the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control(pub u32);

impl Control {
    /// The next rule is tried: `TC_ACT_UNSPEC`.
    pub const CONTINUE: Self = Self(u32::MAX);
    /// The packet passes: `TC_ACT_OK`.
    pub const PASS: Self = Self(0);
    /// Classification begins again: `TC_ACT_RECLASSIFY`.
    pub const RECLASSIFY: Self = Self(1);
    /// The packet is dropped: `TC_ACT_SHOT`.
    pub const DROP: Self = Self(2);
    /// The next action has its turn: `TC_ACT_PIPE`.
    pub const PIPE: Self = Self(3);
    /// Another consumer took the packet: `TC_ACT_STOLEN`.
    pub const STOLEN: Self = Self(4);
    /// The packet goes up to the CPU: `TC_ACT_TRAP`.
    pub const TRAP: Self = Self(8);

    /// Jump this many actions ahead: the operand is in the lower bits.
    const JUMP: u32 = 1 << 28;
    /// Go on in another chain: the operand is in the lower bits.
    const GOTO_CHAIN: u32 = 2 << 28;
    /// The operand's bits: `TC_ACT_EXT_VAL_MASK`.
    const OPERAND: u32 = (1 << 28) - 1;

    /// The highest number of a chain that a control can name.
    pub const CHAIN_MAX: u32 = Self::OPERAND;

    /// Whether a word begins a control.
    pub fn begins(word: &str) -> bool {
        Word::find(word).is_some()
    }

    /// The control that comes next, if one does.
    ///
    /// # Errors
    /// If its operand is wrong.
    pub fn optional(words: &mut Words<'_>) -> Read<Option<Self>> {
        let Some(word) = words.peek().and_then(Word::find) else { return Ok(None) };
        words.skip();
        let operand = |word: &str| number::u32(word, Base::Ten).filter(|number| *number <= Self::OPERAND);
        Ok(Some(match word {
            Word::Continue => Self::CONTINUE,
            Word::Drop | Word::Shot => Self::DROP,
            Word::Pass | Word::Ok => Self::PASS,
            Word::Reclassify => Self::RECLASSIFY,
            Word::Pipe => Self::PIPE,
            Word::Trap => Self::TRAP,
            Word::Goto => {
                words.read("`chain`", |word| crate::words::abbreviates(word, "chain").then_some(()))?;
                Self(Self::GOTO_CHAIN | words.read("a chain: 0 to 268435455", operand)?)
            }
            Word::Jump => Self(Self::JUMP | words.read("a count of actions: 0 to 268435455", operand)?),
        }))
    }

    /// The control that comes next.
    ///
    /// # Errors
    /// If something else does.
    pub fn required(words: &mut Words<'_>) -> Read<Self> {
        Self::optional(words)?.ok_or_else(|| words.unknown_here(Word::WORDS))
    }

    /// The control that a word means without a further one, or that is a number, as `conform-exceed` has them.
    pub(super) fn simple_or_number(word: &str) -> Option<Self> {
        Some(match Word::find(word) {
            Some(Word::Continue) => Self::CONTINUE,
            Some(Word::Drop | Word::Shot) => Self::DROP,
            Some(Word::Pass | Word::Ok) => Self::PASS,
            Some(Word::Reclassify) => Self::RECLASSIFY,
            Some(Word::Pipe) => Self::PIPE,
            Some(Word::Trap) => Self::TRAP,
            Some(Word::Goto | Word::Jump) => return None,
            None => Self(word.parse::<i32>().ok()?.cast_unsigned()),
        })
    }

    /// The control that comes next, which may be a number.
    ///
    /// # Errors
    /// If something else does.
    pub(super) fn required_or_number(words: &mut Words<'_>) -> Read<Self> {
        match words.peek().and_then(|word| word.parse::<i32>().ok()) {
            Some(number) => {
                words.skip();
                Ok(Self(number.cast_unsigned()))
            }
            None => Self::required(words),
        }
    }

    /// The words for it, or its number.
    pub(super) fn words_or_number(self) -> String {
        self.words().unwrap_or_else(|| self.0.cast_signed().to_string())
    }

    /// The chain that it goes to.
    pub const fn chain(self) -> Option<u32> {
        if self.0 & !Self::OPERAND == Self::GOTO_CHAIN { Some(self.0 & Self::OPERAND) } else { None }
    }

    /// The words for it; `None` for a number that has none.
    pub fn words(self) -> Option<String> {
        Some(match self {
            Self::CONTINUE => "continue".to_owned(),
            Self::PASS => "pass".to_owned(),
            Self::RECLASSIFY => "reclassify".to_owned(),
            Self::DROP => "drop".to_owned(),
            Self::PIPE => "pipe".to_owned(),
            Self::TRAP => "trap".to_owned(),
            Self(number) if number & !Self::OPERAND == Self::JUMP => {
                format!("jump {}", number & Self::OPERAND)
            }
            control => format!("goto chain {}", control.chain()?),
        })
    }
}
