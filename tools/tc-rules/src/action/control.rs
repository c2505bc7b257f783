//! Control actions: how a packet is processed after an action.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TC_ACT_*`.

use crate::number::{self, Base};
use crate::words::{Read, Words, keywords};

keywords! {
    /// The keywords of control actions, in iproute2's order.
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

/// A control action, as the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control(pub u32);

impl Control {
    /// Try the next rule: `TC_ACT_UNSPEC`.
    pub const CONTINUE: Self = Self(u32::MAX);
    /// Pass the packet: `TC_ACT_OK`.
    pub const PASS: Self = Self(0);
    /// Restart classification: `TC_ACT_RECLASSIFY`.
    pub const RECLASSIFY: Self = Self(1);
    /// Drop the packet: `TC_ACT_SHOT`.
    pub const DROP: Self = Self(2);
    /// Continue with the next action: `TC_ACT_PIPE`.
    pub const PIPE: Self = Self(3);
    /// Treat the packet as consumed: `TC_ACT_STOLEN`.
    pub const STOLEN: Self = Self(4);
    /// Trap the packet to the CPU: `TC_ACT_TRAP`.
    pub const TRAP: Self = Self(8);

    /// Marks a jump over actions, whose number is in the lower bits.
    const JUMP: u32 = 1 << 28;
    /// Marks a jump to a chain, whose number is in the lower bits.
    const GOTO_CHAIN: u32 = 2 << 28;
    /// Mask of the operand's bits: `TC_ACT_EXT_VAL_MASK`.
    const OPERAND: u32 = (1 << 28) - 1;

    /// The highest chain number that a control action can encode.
    pub const CHAIN_MAX: u32 = Self::OPERAND;

    /// Whether a word starts a control action.
    pub fn begins(word: &str) -> bool {
        Word::find(word).is_some()
    }

    /// Reads the control action that comes next, if any.
    ///
    /// # Errors
    /// If its operand is invalid.
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

    /// Reads the control action that comes next.
    ///
    /// # Errors
    /// If the next word is not a control action.
    pub fn required(words: &mut Words<'_>) -> Read<Self> {
        Self::optional(words)?.ok_or_else(|| words.unknown_here(Word::WORDS))
    }

    /// Parses a control action without operand, or given as a number, as in `conform-exceed`.
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

    /// Reads the control action that comes next, which may be given as a number.
    ///
    /// # Errors
    /// If the next word is neither a control action nor a number.
    pub(super) fn required_or_number(words: &mut Words<'_>) -> Read<Self> {
        match words.peek().and_then(|word| word.parse::<i32>().ok()) {
            Some(number) => {
                words.skip();
                Ok(Self(number.cast_unsigned()))
            }
            None => Self::required(words),
        }
    }

    /// Returns the tc syntax; the number if tc has no word for it.
    pub(super) fn words_or_number(self) -> String {
        self.words().unwrap_or_else(|| self.0.cast_signed().to_string())
    }

    /// Returns the chain to which the control action jumps, if any.
    pub const fn chain(self) -> Option<u32> {
        if self.0 & !Self::OPERAND == Self::GOTO_CHAIN { Some(self.0 & Self::OPERAND) } else { None }
    }

    /// Returns the tc syntax; `None` for a number that has none.
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
