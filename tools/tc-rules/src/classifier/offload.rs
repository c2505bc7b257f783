//! The offload flags and state of a rule: in software, in hardware, or both.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_CLS_FLAGS_*`.

use crate::words::{Read, Words};

const SKIP_HW: u32 = 1;
const SKIP_SW: u32 = 2;
const IN_HW: u32 = 4;
const NOT_IN_HW: u32 = 8;
const VERBOSE: u32 = 16;

/// The offload flags and state of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Not in hardware.
    pub skip_hw: bool,
    /// Only in hardware.
    pub skip_sw: bool,
    /// Whether the driver should report details when it refuses to offload the rule.
    pub verbose: bool,
    /// From a dump: whether the rule is in hardware; `None` if the kernel does not report it.
    pub in_hw: Option<bool>,
}

impl Offload {
    /// Decodes the kernel's bits.
    pub fn of(flags: u32) -> Self {
        Self {
            skip_hw: flags & SKIP_HW != 0,
            skip_sw: flags & SKIP_SW != 0,
            verbose: flags & VERBOSE != 0,
            in_hw: (flags & (IN_HW | NOT_IN_HW) != 0).then_some(flags & IN_HW != 0),
        }
    }

    /// Returns the requested flags as the kernel's bits.
    pub fn flags(&self) -> u32 {
        let bits = [(self.skip_hw, SKIP_HW), (self.skip_sw, SKIP_SW), (self.verbose, VERBOSE)];
        bits.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit)
    }

    /// Returns the requested flags without the state and `verbose`.
    pub const fn canonical(&self) -> Self {
        Self { verbose: false, in_hw: None, ..*self }
    }

    pub(super) fn skip_hw(&mut self, words: &Words<'_>) -> Read<()> {
        self.skip_hw = true;
        self.checked(words)
    }

    pub(super) fn skip_sw(&mut self, words: &Words<'_>) -> Read<()> {
        self.skip_sw = true;
        self.checked(words)
    }

    fn checked(self, words: &Words<'_>) -> Read<()> {
        if self.skip_hw && self.skip_sw {
            return Err(
                words.wrong("skip_hw and skip_sw exclude each other: the rule would be installed nowhere")
            );
        }
        Ok(())
    }

    /// Formats the requested flags, each with a leading blank.
    pub fn words(&self) -> String {
        let words = [(self.skip_hw, " skip_hw"), (self.skip_sw, " skip_sw"), (self.verbose, " verbose")];
        words.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect()
    }
}
