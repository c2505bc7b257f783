//! `gate`: lets packets pass at certain times of a cycle.
//!
//! Kernel: 6.18, `include/uapi/linux/tc_act/tc_gate.h`, `net/sched/act_gate.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Base};
use crate::words::{Read, Words, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const PARMS: u16 = 2;
const PRIORITY: u16 = 4;
const ENTRY_LIST: u16 = 5;
const BASE_TIME: u16 = 6;
const CYCLE_TIME: u16 = 7;
const CYCLE_TIME_EXT: u16 = 8;
const FLAGS: u16 = 9;
const CLOCKID: u16 = 10;

const ONE_ENTRY: u16 = 1;

const ENTRY_GATE: u16 = 2;
const ENTRY_INTERVAL: u16 = 3;
const ENTRY_IPV: u16 = 4;
const ENTRY_MAX_OCTETS: u16 = 5;

/// The clocks by name, and the kernel's number `CLOCK_*`.
const CLOCKS: [(&str, i32); 4] = [("REALTIME", 0), ("TAI", CLOCK_TAI), ("BOOTTIME", 7), ("MONOTONIC", 1)];

/// The default clock.
const CLOCK_TAI: i32 = 11;

/// Stands for any priority, or any number of bytes.
const ANY: i32 = -1;

/// Maximum number of entries in a schedule: more do not fit into a rule of iproute2 6.1.
const ENTRIES_MAX: usize = 64;

keywords! {
    /// The keywords of the action, in iproute2's order.
    enum Word {
        Index = "index",
        Priority = "priority",
        BaseTime = "base-time",
        CycleTime = "cycle-time",
        CycleTimeExt = "cycle-time-ext",
        Clockid = "clockid",
        Flags = "flags",
        SchedEntry = "sched-entry",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The instance and its control action.
    pub instance: Instance,
    /// The priority; [`ANY`] for any.
    pub priority: i32,
    /// Flags; the kernel defines none.
    pub flags: u32,
    /// When the schedule begins, in nanoseconds of the gate's clock.
    pub base_time: i64,
    /// The cycle time, in nanoseconds; 0 for the sum of the entries.
    pub cycle_time: i64,
    /// The cycle time extension, in nanoseconds.
    pub cycle_time_ext: i64,
    /// The clock, by the kernel's number.
    pub clock: Option<i32>,
    /// The schedule.
    pub entries: Vec<Entry>,
}

/// An entry of the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whether the gate is open.
    pub open: bool,
    /// Length, in nanoseconds.
    pub interval: u32,
    /// The priority given to packets; [`ANY`] keeps their own.
    pub priority: i32,
    /// The maximum number of bytes that pass; [`ANY`] for no limit.
    pub octets_max: i32,
}

impl Gate {
    const fn empty() -> Self {
        Self {
            instance: Instance { index: 0, control: Control::PIPE },
            priority: ANY,
            flags: 0,
            base_time: 0,
            cycle_time: 0,
            cycle_time_ext: 0,
            clock: None,
            entries: Vec::new(),
        }
    }

    pub(super) fn parse(words: &mut Words<'_>) -> Read<Self> {
        words.skip();
        let mut action = Self::empty();
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            let time = |words: &mut Words<'_>| words.read("a time, as in 100ns or 2ms", number::nanoseconds);
            match word {
                Word::Index => {
                    action.instance.index = words.read("an index", |word| number::u32(word, Base::Ten))?;
                }
                Word::Priority => action.priority = words.read("a priority, or -1 for any", number::i32)?,
                Word::BaseTime => action.base_time = time(words)?,
                Word::CycleTime => action.cycle_time = time(words)?,
                Word::CycleTimeExt => action.cycle_time_ext = time(words)?,
                Word::Flags => {
                    action.flags = words.read("a 32-bit number", |word| number::u32(word, Base::Prefix))?;
                }
                Word::Clockid => {
                    action.clock = Some(words.read("TAI, REALTIME, MONOTONIC or BOOTTIME", |word| {
                        let name = word.get(..6).filter(|begin| begin.eq_ignore_ascii_case("CLOCK_"));
                        let name = name.map_or(word, |_| &word[6..]);
                        CLOCKS
                            .iter()
                            .find(|(known, _)| known.eq_ignore_ascii_case(name))
                            .map(|(_, clock)| *clock)
                    })?);
                }
                Word::SchedEntry => {
                    if action.entries.len() == ENTRIES_MAX {
                        return Err(words.wrong("a schedule has at most 64 entries"));
                    }
                    action.entries.push(Entry::parse(words)?);
                }
            }
        }
        action.instance.control = Control::optional(words)?.unwrap_or(Control::PIPE);
        if action.entries.is_empty() && action.instance.index == 0 {
            return Err(words
                .wrong_here("a gate needs a sched-entry, or the index of an existing one")
                .expecting(Word::WORDS));
        }
        Ok(action)
    }

    pub(super) fn encode(&self, out: &mut AttrBuf) {
        self.instance.encode(PARMS, &[], out);
        if self.priority != ANY {
            out.bytes(PRIORITY, &self.priority.to_ne_bytes());
        }
        if self.flags != 0 {
            out.u32(FLAGS, self.flags);
        }
        let times = [
            (BASE_TIME, self.base_time),
            (CYCLE_TIME, self.cycle_time),
            (CYCLE_TIME_EXT, self.cycle_time_ext),
        ];
        for (number, time) in times {
            if time != 0 {
                out.bytes(number, &time.to_ne_bytes());
            }
        }
        self.clock.inspect(|clock| _ = out.bytes(CLOCKID, &clock.to_ne_bytes()));
        out.nested(ENTRY_LIST, |out| {
            for entry in &self.entries {
                entry.encode(out);
            }
        });
    }

    pub(super) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let mut action = Self { instance: Instance::decode(attrs, PARMS)?.0, ..Self::empty() };
        for attr in attrs {
            let attr = attr?;
            let time = || attr.u64().map(u64::cast_signed);
            match attr.number {
                PRIORITY => action.priority = attr.i32()?,
                FLAGS => action.flags = attr.u32()?,
                BASE_TIME => action.base_time = time()?,
                CYCLE_TIME => action.cycle_time = time()?,
                CYCLE_TIME_EXT => action.cycle_time_ext = time()?,
                CLOCKID => action.clock = Some(attr.i32()?),
                ENTRY_LIST => {
                    for entry in attr.nested() {
                        if action.entries.len() == ENTRIES_MAX {
                            return Err(Malformed("a schedule has too many entries"));
                        }
                        action.entries.push(Entry::decode(entry?.nested())?);
                    }
                }
                _ => {}
            }
        }
        action.canonicalize();
        Ok(action)
    }

    /// Removes the defaults that the kernel fills in: the clock, and a cycle time equal to the sum of the
    /// entries.
    pub(super) fn canonicalize(&mut self) {
        self.clock = self.clock.filter(|clock| *clock != CLOCK_TAI);
        let sum: i64 = self.entries.iter().map(|entry| i64::from(entry.interval)).sum();
        if self.cycle_time == sum {
            self.cycle_time = 0;
        }
    }

    pub(super) fn words(&self) -> Option<String> {
        if self.entries.is_empty() && self.instance.index == 0 {
            return None;
        }
        let mut words = "gate".to_owned();
        if self.priority != ANY {
            words.push_str(&format!(" priority {}", self.priority));
        }
        let times = [
            ("base-time", self.base_time),
            ("cycle-time", self.cycle_time),
            ("cycle-time-ext", self.cycle_time_ext),
        ];
        for (name, time) in times {
            if time != 0 {
                words.push_str(&format!(" {name} {time}"));
            }
        }
        if let Some(clock) = self.clock {
            let (name, _) = CLOCKS.iter().find(|(_, number)| *number == clock)?;
            words.push_str(&format!(" clockid {name}"));
        }
        if self.flags != 0 {
            words.push_str(&format!(" flags {:#x}", self.flags));
        }
        for entry in &self.entries {
            words.push_str(&entry.words());
        }
        words.push_str(&self.instance.index_words());
        if self.instance.control != Control::PIPE {
            words.push_str(&format!(" {}", self.instance.control.words()?));
        }
        Some(words)
    }
}

impl Entry {
    fn parse(words: &mut Words<'_>) -> Read<Self> {
        let open = words.read("open or close", |word| match word {
            _ if word.eq_ignore_ascii_case("open") => Some(true),
            _ if word.eq_ignore_ascii_case("close") => Some(false),
            _ => None,
        })?;
        let interval = words.read("a time below 4.3 seconds, as in 100ns or 2ms", |word| {
            let number = number::u32(word, Base::Prefix);
            number.or_else(|| number::nanoseconds(word)?.try_into().ok())
        })?;
        let (mut priority, mut octets_max) = (ANY, ANY);
        if let Some(given) = words.peek().and_then(number::i32) {
            words.skip();
            priority = given;
            let size = |word| number::i32(word).or_else(|| number::size(word)?.try_into().ok());
            if let Some(given) = words.peek().and_then(size) {
                words.skip();
                octets_max = given;
            }
        }
        // A closed gate ignores the priority and the maximum number of bytes.
        if !open {
            (priority, octets_max) = (ANY, ANY);
        }
        Ok(Self { open, interval, priority, octets_max })
    }

    fn encode(&self, out: &mut AttrBuf) {
        out.nested(ONE_ENTRY, |out| {
            if self.open {
                out.flag(ENTRY_GATE);
            }
            out.u32(ENTRY_INTERVAL, self.interval);
            out.bytes(ENTRY_IPV, &self.priority.to_ne_bytes());
            out.bytes(ENTRY_MAX_OCTETS, &self.octets_max.to_ne_bytes());
        });
    }

    fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let signed = |number| attrs.find(number)?.map_or(Ok(ANY), |attr| attr.i32());
        Ok(Self {
            open: attrs.find(ENTRY_GATE)?.is_some(),
            interval: attrs.find(ENTRY_INTERVAL)?.map_or(Ok(0), |attr| attr.u32())?,
            priority: signed(ENTRY_IPV)?,
            octets_max: signed(ENTRY_MAX_OCTETS)?,
        })
    }

    fn words(&self) -> String {
        let state = if self.open { "open" } else { "close" };
        format!(" sched-entry {state} {} {} {}", self.interval, self.priority, self.octets_max)
    }
}
