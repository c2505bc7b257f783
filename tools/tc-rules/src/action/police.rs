//! `police`: applies another control action to packets that exceed a rate.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `struct tc_police`, `net/sched/act_police.c`.

use super::control::Control;
use super::instance::Instance;
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates, keywords};
use netlink::attr::{AttrBuf, Attrs, Malformed};

const TBF: u16 = 1;
const RATE: u16 = 2;
const PEAKRATE: u16 = 3;
const AVRATE: u16 = 4;
const RESULT: u16 = 5;
const RATE64: u16 = 8;
const PEAKRATE64: u16 = 9;
const PKTRATE64: u16 = 10;
const PKTBURST64: u16 = 11;

/// Ticks per microsecond: the value in `/proc/net/psched` since Linux 2.6.32 (`PSCHED_SHIFT` 6, 64 ns per
/// tick).
const TICKS_PER_MICROSECOND: f64 = 15.625;

/// The last cell of a rate table.
const LAST_CELL: u32 = 255;

/// The default maximum packet size of the rate table.
const MTU_DEFAULT: u32 = 2047;

/// `TC_LINKLAYER_ETHERNET`, `TC_LINKLAYER_ATM`.
const ETHERNET: u8 = 1;
const ATM: u8 = 2;

keywords! {
    /// The keywords of the action, in iproute2's order.
    enum Word {
        Index = "index",
        Burst = "burst",
        Buffer = "buffer" exact,
        Maxburst = "maxburst" exact,
        Mtu = "mtu" exact,
        Minburst = "minburst" exact,
        Mpu = "mpu" exact,
        Rate = "rate" exact,
        Avrate = "avrate" exact,
        Peakrate = "peakrate",
        Reclassify = "reclassify",
        Drop = "drop",
        Shot = "shot",
        Continue = "continue",
        Pass = "pass",
        Ok = "ok",
        Pipe = "pipe",
        Goto = "goto",
        ConformExceed = "conform-exceed" exact,
        Overhead = "overhead",
        Linklayer = "linklayer",
        PktsRate = "pkts_rate",
        PktsBurst = "pkts_burst",
    }
}

/// The action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Police {
    /// The instance, and the control action for packets that exceed the rate.
    pub instance: Instance,
    /// Bytes per second.
    pub rate: u64,
    /// The burst, in bytes; from a dump, the smallest burst with the same number of ticks.
    pub burst: u32,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// The size, in bytes, that smaller packets count as.
    pub mpu: u16,
    /// Bytes added to every packet.
    pub overhead: u16,
    /// The link layer: `TC_LINKLAYER_*`.
    pub linklayer: u8,
    /// The peak rate, in bytes per second.
    pub peakrate: u64,
    /// The estimated average rate, in bytes per second.
    pub avrate: u32,
    /// The control action for packets that conform.
    pub conform: Control,
    /// Packets per second.
    pub packet_rate: u64,
    /// The burst, in packets.
    pub packet_burst: u64,
    /// The cell size of the rate table, as a power of two; `None` for the size that suits the largest packet.
    pub cell_log: Option<u8>,
    /// The cell size of the peak rate's table, as a power of two; `None` for the size that suits the largest
    /// packet.
    pub peak_cell_log: Option<u8>,
}

impl Police {
    const fn empty() -> Self {
        Self {
            instance: Instance { index: 0, control: Control::RECLASSIFY },
            rate: 0,
            burst: 0,
            mtu: 0,
            mpu: 0,
            overhead: 0,
            linklayer: ETHERNET,
            peakrate: 0,
            avrate: 0,
            conform: Control(0),
            packet_rate: 0,
            packet_burst: 0,
            cell_log: None,
            peak_cell_log: None,
        }
    }

    /// Parses the arguments of `police`.
    pub(crate) fn parse(words: &mut Words<'_>) -> Read<Self> {
        let mut police = Self::empty();
        while let Some(word) = words.peek().and_then(Word::find) {
            words.skip();
            if police.says(word) {
                return Err(words.wrong("the action already has this option"));
            }
            match word {
                Word::Index => {
                    police.instance.index = words.read("an index", |w| number::u32(w, Base::Ten))?
                }
                Word::Burst | Word::Buffer | Word::Maxburst => {
                    (police.burst, police.cell_log) =
                        words.read("a size, as in 10k or 10k/8", size_and_cell)?;
                }
                Word::Mtu | Word::Minburst => {
                    (police.mtu, police.peak_cell_log) = words.read("a size", size_and_cell)?;
                }
                Word::Mpu => {
                    police.mpu = words.read("a size", |w| number::size(w)?.try_into().ok())?;
                }
                Word::Rate => police.rate = words.read("a rate, as in 10mbit", number::rate)?,
                Word::Avrate => {
                    police.avrate =
                        words.read("a rate, as in 10mbit", |w| number::rate(w)?.try_into().ok())?;
                }
                Word::Peakrate => police.peakrate = words.read("a rate, as in 10mbit", number::rate)?,
                Word::Reclassify
                | Word::Drop
                | Word::Shot
                | Word::Continue
                | Word::Pass
                | Word::Ok
                | Word::Pipe
                | Word::Goto => {
                    words.back();
                    police.instance.control = Control::required(words)?;
                }
                Word::ConformExceed => police.conform_exceed(words)?,
                Word::Overhead => {
                    police.overhead = words.read("a number of bytes", |w| number::u16(w, Base::Ten))?
                }
                Word::Linklayer => {
                    police.linklayer = words.read("ethernet, atm or adsl", |word| match word {
                        _ if abbreviates(word, "ethernet") => Some(ETHERNET),
                        _ if abbreviates(word, "atm") || abbreviates(word, "adsl") => Some(ATM),
                        _ => None,
                    })?;
                }
                Word::PktsRate => {
                    police.packet_rate =
                        words.read("packets per second", |w| number::unsigned(w, Base::Ten))?
                }
                Word::PktsBurst => {
                    police.packet_burst = words.read("packets", |w| number::unsigned(w, Base::Ten))?
                }
            }
        }
        if let Some(lacks) = police.lacks() {
            return Err(words.wrong_here(lacks).expecting(Word::WORDS));
        }
        Ok(police)
    }

    /// Returns whether the value of this word, which a line may have only once, is already set.
    const fn says(&self, word: Word) -> bool {
        match word {
            Word::Burst | Word::Buffer | Word::Maxburst => self.burst != 0,
            Word::Mtu | Word::Minburst => self.mtu != 0,
            Word::Mpu => self.mpu != 0,
            Word::Rate => self.rate != 0,
            Word::Avrate => self.avrate != 0,
            Word::Peakrate => self.peakrate != 0,
            Word::PktsRate => self.packet_rate != 0,
            Word::PktsBurst => self.packet_burst != 0,
            Word::Index
            | Word::Reclassify
            | Word::Drop
            | Word::Shot
            | Word::Continue
            | Word::Pass
            | Word::Ok
            | Word::Pipe
            | Word::Goto
            | Word::ConformExceed
            | Word::Overhead
            | Word::Linklayer => false,
        }
    }

    /// Parses `EXCEED[/CONFORM]`, with or without blanks around the slash.
    fn conform_exceed(&mut self, words: &mut Words<'_>) -> Read<()> {
        if let Some((exceed, conform)) =
            words.peek().and_then(|word| word.split_once('/')).filter(|(a, _)| !a.is_empty())
        {
            let (Some(exceed), Some(conform)) =
                (Control::simple_or_number(exceed), Control::simple_or_number(conform))
            else {
                return Err(words.wrong_here("expected EXCEED/CONFORM").expecting(control_words()));
            };
            words.skip();
            (self.instance.control, self.conform) = (exceed, conform);
            return Ok(());
        }
        self.instance.control = Control::required_or_number(words)?;
        if words.peek() == Some("/") {
            words.skip();
            self.conform = Control::required_or_number(words)?;
        }
        Ok(())
    }

    /// Returns which value is missing or contradictory, if any.
    fn lacks(&self) -> Option<&'static str> {
        let limited = self.rate != 0 || self.avrate != 0 || self.mtu != 0 || self.packet_rate != 0;
        match self {
            _ if !limited && self.instance.index == 0 => {
                Some("police needs rate, avrate, mtu, pkts_rate or index")
            }
            _ if self.rate != 0 && self.avrate != 0 => Some("rate and avrate exclude each other"),
            _ if self.rate != 0 && self.burst == 0 => Some("rate needs burst"),
            _ if self.packet_rate != 0 && self.packet_burst == 0 => Some("pkts_rate needs pkts_burst"),
            _ if self.packet_rate != 0 && self.rate != 0 => Some("rate and pkts_rate exclude each other"),
            _ if self.peakrate != 0 && self.rate == 0 => Some("peakrate needs rate"),
            _ if self.peakrate != 0 && self.mtu == 0 => Some("peakrate needs mtu"),
            _ => None,
        }
    }

    /// Encodes the attributes of the action.
    pub(crate) fn encode(&self, out: &mut AttrBuf) {
        let mut bytes = [0_u8; 56];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &self.instance.index.to_ne_bytes());
        put(4, &self.instance.control.0.to_ne_bytes());
        put(12, &ticks(self.rate, u64::from(self.burst)).to_ne_bytes());
        put(16, &self.mtu.to_ne_bytes());
        let (log, peak_log) = (self.cell(self.cell_log), self.cell(self.peak_cell_log));
        for (at, rate, log) in [(20, self.rate, log), (32, self.peakrate, peak_log)] {
            if rate == 0 {
                continue;
            }
            put(at, &[log, self.linklayer]);
            put(at + 2, &self.overhead.to_ne_bytes());
            put(at + 4, &(-1_i16).to_ne_bytes());
            put(at + 6, &self.mpu.to_ne_bytes());
            put(at + 8, &u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
        }
        out.bytes(TBF, &bytes);
        for (table, wide, rate, log) in
            [(RATE, RATE64, self.rate, log), (PEAKRATE, PEAKRATE64, self.peakrate, peak_log)]
        {
            if rate == 0 {
                continue;
            }
            out.bytes(table, &self.table(rate, log));
            if rate > u64::from(u32::MAX) {
                out.u64(wide, rate);
            }
        }
        if self.avrate != 0 {
            out.u32(AVRATE, self.avrate);
        }
        if self.conform.0 != 0 {
            out.u32(RESULT, self.conform.0);
        }
        if self.packet_rate != 0 {
            out.u64(PKTRATE64, self.packet_rate);
            out.u64(PKTBURST64, u64::from(ticks(self.packet_rate, self.packet_burst)));
        }
    }

    /// Returns the cell size as a power of two, so that 256 cells cover the largest packet.
    fn cell(&self, given: Option<u8>) -> u8 {
        let mtu = if self.mtu == 0 { MTU_DEFAULT } else { self.mtu };
        given.unwrap_or_else(|| (0..31).find(|log| mtu >> log <= 255).unwrap_or(31))
    }

    /// Returns the rate table: the transmission time of a packet of each size, in ticks.
    fn table(&self, rate: u64, log: u8) -> [u8; 1024] {
        let mut table = [0; 1024];
        for (cell, bytes) in table.as_chunks_mut::<4>().0.iter_mut().zip(1_u32..) {
            let size = bytes.checked_shl(u32::from(log)).unwrap_or(0).max(u32::from(self.mpu));
            let size = if self.linklayer == ATM { size.div_ceil(48).saturating_mul(53) } else { size };
            *cell = ticks(rate, u64::from(size)).to_ne_bytes();
        }
        table
    }

    /// Whether the burst exceeds the kernel's field and is sent as its maximum: 2^32 ticks of 64 ns, which
    /// are 274 seconds. (iproute2 sends the value modulo 2^32.)
    pub fn is_cut(&self) -> bool {
        let cut = |rate, burst: u64| rate != 0 && ticks(rate, burst) == u32::MAX;
        cut(self.rate, u64::from(self.burst)) || cut(self.packet_rate, self.packet_burst)
    }

    /// Decodes the action from a dump.
    pub(crate) fn decode(attrs: Attrs<'_>) -> Result<Self, Malformed> {
        let parms = attrs.find(TBF)?.ok_or(Malformed("police without parameters"))?;
        let mut police = Self::empty();
        let shared = parms.word_at(48)? > 1;
        police.instance.index = if shared { parms.word_at(0)? } else { 0 };
        police.instance.control = Control(parms.word_at(4)?);
        police.mtu = parms.word_at(16)?;
        let wide = |number| attrs.find(number)?.map_or(Ok(0), |attr| attr.u64());
        let halves =
            |word: u32| (u16::try_from(word & 0xffff).unwrap_or(0), u16::try_from(word >> 16).unwrap_or(0));
        police.rate = wide(RATE64)?.max(u64::from(parms.word_at(28)?));
        police.peakrate = wide(PEAKRATE64)?.max(u64::from(parms.word_at(40)?));
        if police.rate != 0 {
            let (cell_and_layer, overhead) = halves(parms.word_at(20)?);
            let [cell, layer] = cell_and_layer.to_ne_bytes();
            (police.overhead, police.mpu) = (overhead, halves(parms.word_at(24)?).1);
            police.linklayer = if layer & 0xf == ATM { ATM } else { ETHERNET };
            police.cell_log = Some(cell);
            police.burst = u32::try_from(amount(police.rate, parms.word_at(12)?)).unwrap_or(u32::MAX);
        }
        police.avrate = attrs.find(AVRATE)?.map_or(Ok(0), |attr| attr.u32())?;
        police.conform = Control(attrs.find(RESULT)?.map_or(Ok(0), |attr| attr.u32())?);
        police.packet_rate = wide(PKTRATE64)?;
        if police.packet_rate != 0 {
            police.packet_burst =
                amount(police.packet_rate, u32::try_from(wide(PKTBURST64)?).unwrap_or(u32::MAX));
        }
        Ok(police.canonical())
    }

    /// Converts the action to the form of a dump.
    pub(crate) fn canonical(mut self) -> Self {
        // Without a maximum packet size, the kernel uses that of the rate table, or none.
        self.mtu = match self.mtu {
            0 if self.rate != 0 => LAST_CELL.wrapping_shl(u32::from(self.cell(self.cell_log))),
            u32::MAX if self.rate == 0 => 0,
            mtu => mtu,
        };
        self.cell_log = None;
        self.peak_cell_log = None;
        if self.rate != 0 {
            self.burst =
                u32::try_from(amount(self.rate, ticks(self.rate, u64::from(self.burst)))).unwrap_or(u32::MAX);
        }
        if self.packet_rate != 0 {
            self.packet_burst = amount(self.packet_rate, ticks(self.packet_rate, self.packet_burst));
        }
        self
    }

    /// Returns the tc syntax; `None` if tc would not accept it: at a high rate, the kernel may round a short
    /// burst to zero in a dump.
    pub(crate) fn words(&self) -> Option<String> {
        if self.lacks().is_some() {
            return None;
        }
        let mut words = "police".to_owned();
        let mut put = |name: &str, value: u64, unit: &str| {
            if value != 0 {
                words.push_str(&format!(" {name} {value}{unit}"));
            }
        };
        put("rate", self.rate, "bps");
        put("burst", u64::from(self.burst), "");
        put("mtu", u64::from(self.mtu), "");
        put("mpu", u64::from(self.mpu), "");
        put("overhead", u64::from(self.overhead), "");
        put("peakrate", self.peakrate, "bps");
        put("avrate", u64::from(self.avrate), "bps");
        put("pkts_rate", self.packet_rate, "");
        put("pkts_burst", self.packet_burst, "");
        put("index", u64::from(self.instance.index), "");
        if self.linklayer == ATM {
            words.push_str(" linklayer atm");
        }
        words.push_str(&format!(" conform-exceed {}", self.instance.control.words_or_number()));
        if self.conform.0 != 0 {
            words.push_str(&format!(" / {}", self.conform.words_or_number()));
        }
        Some(words)
    }
}

const fn control_words() -> &'static [&'static str] {
    &["drop", "pass", "ok", "reclassify", "pipe", "continue", "trap"]
}

/// Returns the transmission time of `amount` bytes at a rate, in ticks; computed in whole microseconds first,
/// as iproute2 does.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the same arithmetic as iproute2's tc/tc_core.c tc_calc_xmittime(); a cast of a float saturates"
)]
fn ticks(rate: u64, amount: u64) -> u32 {
    if rate == 0 {
        return 0;
    }
    let microseconds = (1e6 * (amount as f64 / rate as f64)) as u32;
    (f64::from(microseconds) * TICKS_PER_MICROSECOND) as u32
}

/// Returns the smallest amount with this number of ticks at a rate.
fn amount(rate: u64, wanted: u32) -> u64 {
    let (mut low, mut high) = (0_u64, u64::from(u32::MAX).max(rate.saturating_mul(300)));
    while low < high {
        let middle = low + (high - low) / 2;
        if ticks(rate, middle) < wanted { low = middle + 1 } else { high = middle }
    }
    low
}

/// Parses `SIZE[/CELL]`, where the cell is a power of two.
fn size_and_cell(word: &str) -> Option<(u32, Option<u8>)> {
    let (size, cell) = word.split_once('/').map_or((word, None), |(size, cell)| (size, Some(cell)));
    let log = match cell {
        None => None,
        Some(cell) => {
            let cell = number::u32(cell, Base::Prefix).filter(|cell| cell.is_power_of_two())?;
            Some(u8::try_from(cell.trailing_zeros()).ok()?)
        }
    };
    Some((number::size(size)?, log))
}
