//! Actions on the packets that a rule matches, one file per kind.
//!
//! Each kind can be parsed from words, encoded exactly as iproute2 6.1 does, decoded from a dump, and
//! formatted as words again.
//!
//! Kernel: 6.18, `include/uapi/linux/pkt_cls.h` `TCA_ACT_*`, `net/sched/act_api.c`.

pub mod bpf;
pub mod connmark;
pub mod control;
pub mod csum;
pub mod ct;
pub mod ctinfo;
pub mod gact;
pub mod gate;
pub mod ife;
mod instance;
pub mod mirred;
pub mod mpls;
pub mod nat;
pub mod pedit;
pub mod police;
pub mod sample;
pub mod simple;
pub mod skbedit;
pub mod skbmod;
pub mod tunnel_key;
pub mod vlan;

use bpf::Bpf;
use connmark::Connmark;
pub use control::Control;
use csum::Csum;
use ct::Ct;
use ctinfo::Ctinfo;
use gact::Gact;
use gate::Gate;
use ife::Ife;
pub use instance::Instance;
use mirred::Mirred;
use mpls::Mpls;
use nat::Nat;
use pedit::Pedit;
use police::Police;
use sample::Sample;
use simple::Simple;
use skbedit::Skbedit;
use skbmod::Skbmod;
use tunnel_key::TunnelKey;
use vlan::Vlan;

use crate::lookup::Lookup;
use crate::number;
use crate::words::{Read, Words, abbreviates};
use netlink::attr::{Attr, AttrBuf, Attrs, Malformed};

const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const COOKIE: u16 = 6;
const FLAGS: u16 = 7;
const HW_STATS: u16 = 8;

/// `TCA_ACT_FLAGS_NO_PERCPU_STATS`.
const NO_PERCPU: u32 = 1;
/// `TCA_ACT_FLAGS_SKIP_HW`.
const SKIP_HW: u32 = 2;
/// `TCA_ACT_FLAGS_SKIP_SW`.
const SKIP_SW: u32 = 4;

/// Maximum length of a cookie: `TC_COOKIE_MAX_SIZE`.
const COOKIE_BYTES_MAX: usize = 16;

/// Maximum number of actions per rule: `TCA_ACT_MAX_PRIO`.
pub const ACTIONS_MAX: usize = 32;

/// Declares the kinds of actions as variants of an enum with forwarding methods. `looks_up` marks kinds that
/// contain names which only the host can resolve, `looks_ahead` those that need the words that can follow an
/// action.
macro_rules! kinds {
    ($($variant:ident = $name:literal $($looks:ident)?,)*) => {
        /// An action of a specific kind.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Kind { $(#[doc = concat!("`", $name, "`")] $variant($variant),)* }

        impl Kind {
            /// The names of all kinds.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// The words that can start an action: a kind, or a control action, which is short for `gact`
            /// with that control action.
            const BEGINNINGS: &'static [&'static str] = &[
                $($name,)* "drop", "pass", "ok", "pipe", "continue", "reclassify", "goto", "jump", "trap",
            ];

            /// The words that can follow an action: options of all kinds, and another action.
            const BEHIND: &'static [&'static str] = &[
                "action", "index", "cookie", "hw_stats", "no_percpu", "skip_sw", "skip_hw", "classid", "flowid",
                $($name,)* "drop", "pass", "pipe", "continue", "goto",
            ];

            fn parse_named(word: &str, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
                match word {
                    $($name => kinds!(@parse $variant(words, lookup) $($looks)?).map(Self::$variant),)*
                    _ => Err(words.unknown_here(Self::BEGINNINGS)),
                }
            }

            /// The kind's name.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* }
            }

            fn encode(&self, out: &mut AttrBuf) {
                match self { $(Self::$variant(action) => action.encode(out),)* }
            }

            fn decode(kind: &str, attrs: Attrs<'_>) -> Result<Option<Self>, Malformed> {
                Ok(Some(match kind {
                    $($name => Self::$variant($variant::decode(attrs)?),)*
                    _ => return Ok(None),
                }))
            }

            /// The instance.
            pub const fn instance(&self) -> Instance {
                match self { $(Self::$variant(action) => action.instance,)* }
            }

            /// The instance, mutable.
            pub const fn instance_mut(&mut self) -> &mut Instance {
                match self { $(Self::$variant(action) => &mut action.instance,)* }
            }

            fn words(&self, lookup: &mut dyn Lookup) -> Option<String> {
                match self { $(Self::$variant(action) => kinds!(@words action(lookup) $($looks)?),)* }
            }
        }
    };
    (@parse $kind:ident($words:ident, $lookup:ident) looks_up) => { $kind::parse($words, $lookup) };
    (@parse $kind:ident($words:ident, $lookup:ident) looks_ahead) => { $kind::parse($words, Self::BEHIND) };
    (@parse $kind:ident($words:ident, $lookup:ident)) => { $kind::parse($words) };
    (@words $action:ident($lookup:ident) looks_up) => { $action.words($lookup) };
    (@words $action:ident($lookup:ident) looks_ahead) => { $action.words() };
    (@words $action:ident($lookup:ident)) => { $action.words() };
}

kinds! {
    Gact = "gact",
    Mirred = "mirred" looks_up,
    TunnelKey = "tunnel_key",
    Skbedit = "skbedit",
    Vlan = "vlan",
    Pedit = "pedit",
    Police = "police",
    Ct = "ct" looks_ahead,
    Csum = "csum",
    Nat = "nat",
    Sample = "sample",
    Mpls = "mpls",
    Connmark = "connmark",
    Ctinfo = "ctinfo",
    Skbmod = "skbmod",
    Simple = "simple",
    Ife = "ife",
    Gate = "gate",
    Bpf = "bpf" looks_up,
}

impl Kind {
    fn parse(word: &str, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
        // iproute2 looks for a control action first: `drop` is short for `gact drop`.
        if Control::begins(word) {
            return Gact::parse(words).map(Self::Gact);
        }
        if word == "police" {
            // After `police`, the syntax is the same as for the police option of a classifier.
            words.skip();
        }
        Self::parse_named(word, words, lookup)
    }
}

/// A user-defined identifier of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    bytes: [u8; COOKIE_BYTES_MAX],
    count: usize,
}

impl Cookie {
    /// Creates a cookie of 16 bytes.
    pub const fn of(bytes: [u8; COOKIE_BYTES_MAX]) -> Self {
        Self { bytes, count: COOKIE_BYTES_MAX }
    }

    /// Returns the cookie's bytes, if it has 16.
    pub const fn whole(&self) -> Option<[u8; COOKIE_BYTES_MAX]> {
        if self.count == COOKIE_BYTES_MAX { Some(self.bytes) } else { None }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// An action with the options of all kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The kind with its parameters.
    pub kind: Kind,
    /// The user-defined cookie.
    pub cookie: Option<Cookie>,
    /// Hardware statistics: `TCA_ACT_HW_STATS_*`; 0 disables them.
    pub hw_stats: Option<u8>,
    /// Whether the action has one counter for all CPUs instead of per-CPU counters.
    pub no_percpu: bool,
    /// Whether the action is not offloaded to hardware.
    pub skip_hw: bool,
    /// Whether the action exists only in hardware.
    pub skip_sw: bool,
}

impl Action {
    /// Parses actions up to the end of the line or a class. The caller adds the actions that it already
    /// knows.
    ///
    /// # Errors
    /// If the words are not actions.
    pub fn parse_list(words: &mut Words<'_>, lookup: &mut dyn Lookup, actions: &mut Vec<Self>) -> Read<()> {
        if words.at_known_actions() {
            return Ok(());
        }
        let (before, first) = (actions.len(), words.place());
        let mut cookie = None;
        while let Some(word) = words.peek() {
            match word {
                "action" => {
                    words.skip();
                    continue;
                }
                "flowid" | "classid" => break,
                _ => {}
            }
            if actions.len() == ACTIONS_MAX {
                return Err(words.wrong_here("a rule has at most 32 actions"));
            }
            let known = Control::begins(word) || Kind::NAMES.contains(&word);
            if actions.len() > before && !known {
                return Err(words.unknown_here(Kind::BEHIND));
            }
            let kind = Kind::parse(word, words, lookup)?;
            actions.push(Self::parse_rest(kind, words, &mut cookie)?);
        }
        if actions.len() == before {
            return Err(words.unknown_here(Kind::BEGINNINGS));
        }
        if before == 0 {
            words.note_actions(first);
        }
        Ok(())
    }

    /// Parses the options that can follow every kind. A cookie also applies to the actions after it, until
    /// another cookie is given, as in `parse_action()` in `tc/m_action.c` of iproute2 6.1.
    fn parse_rest(kind: Kind, words: &mut Words<'_>, cookie: &mut Option<Cookie>) -> Read<Self> {
        let mut action =
            Self { kind, cookie: None, hw_stats: None, no_percpu: false, skip_hw: false, skip_sw: false };
        if words.peek() == Some("cookie") {
            words.skip();
            *cookie = Some(words.read("a cookie of at most 32 hexadecimal digits", |word| {
                let mut bytes = [0; COOKIE_BYTES_MAX];
                let count = number::hex(word, &mut bytes)?;
                Some(Cookie { bytes, count })
            })?);
        }
        action.cookie = cookie.filter(|cookie| cookie.count > 0);
        if words.peek().is_some_and(|word| abbreviates(word, "hw_stats")) {
            words.skip();
            action.hw_stats = Some(words.read("immediate, delayed or disabled", |word| match word {
                _ if abbreviates(word, "immediate") => Some(1),
                _ if abbreviates(word, "delayed") => Some(2),
                _ if abbreviates(word, "disabled") => Some(0),
                _ => None,
            })?);
        }
        if words.peek() == Some("no_percpu") {
            words.skip();
            action.no_percpu = true;
        }
        loop {
            match words.peek() {
                Some("skip_sw") => action.skip_sw = true,
                Some("skip_hw") => action.skip_hw = true,
                _ => return Ok(action),
            }
            words.skip();
        }
    }

    /// Encodes this action at a position of the list.
    pub fn encode(&self, place: u16, out: &mut AttrBuf) {
        out.unmarked(place, |out| {
            out.text(KIND, self.kind.name());
            out.nested(OPTIONS, |out| self.kind.encode(out));
            if let Some(cookie) = &self.cookie {
                out.bytes(COOKIE, cookie.as_bytes());
            }
            if let Some(stats) = self.hw_stats {
                out.bytes(HW_STATS, &bitfield(u32::from(stats)));
            }
            let flags = [(self.no_percpu, NO_PERCPU), (self.skip_hw, SKIP_HW), (self.skip_sw, SKIP_SW)];
            let flags = flags.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit);
            if flags != 0 {
                out.bytes(FLAGS, &bitfield(flags));
            }
        });
    }

    /// Encodes a list of actions as the attribute with this number.
    pub fn encode_list(actions: &[Self], number: u16, out: &mut AttrBuf) {
        out.unmarked(number, |out| {
            for (action, place) in actions.iter().zip(1..) {
                action.encode(place, out);
            }
        });
    }

    /// Decodes a list of actions from a dump; returns `None` if it contains an unknown kind.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn decode_list(list: &Attr<'_>, actions: &mut Vec<Self>) -> Result<Option<()>, Malformed> {
        for attr in list.nested() {
            match Self::decode(&attr?)? {
                Some(action) if actions.len() < ACTIONS_MAX => actions.push(action),
                Some(_) => return Err(Malformed("a rule has too many actions")),
                None => return Ok(None),
            }
        }
        Ok(Some(()))
    }

    fn decode(attr: &Attr<'_>) -> Result<Option<Self>, Malformed> {
        let attrs = attr.nested();
        let kind = attrs.find(KIND)?.ok_or(Malformed("an action without a kind"))?.text()?;
        let options = attrs.find(OPTIONS)?.ok_or(Malformed("an action without options"))?;
        let Some(kind) = Kind::decode(kind, options.nested())? else { return Ok(None) };
        let mut action =
            Self { kind, cookie: None, hw_stats: None, no_percpu: false, skip_hw: false, skip_sw: false };
        action.cookie = Self::decode_cookie(attrs)?;
        if let Some(stats) = attrs.find(HW_STATS)? {
            action.hw_stats = u8::try_from(stats.word_at(0)? & stats.word_at(4)?).ok();
        }
        if let Some(flags) = attrs.find(FLAGS)? {
            let flags = flags.word_at(0)? & flags.word_at(4)?;
            action.no_percpu = flags & NO_PERCPU != 0;
            action.skip_hw = flags & SKIP_HW != 0;
            action.skip_sw = flags & SKIP_SW != 0;
        }
        Ok(Some(action))
    }

    /// Decodes the cookie of an action in a dump.
    pub fn decode_cookie(attrs: Attrs<'_>) -> Result<Option<Cookie>, Malformed> {
        let Some(cookie) = attrs.find(COOKIE)? else { return Ok(None) };
        let mut bytes = [0; COOKIE_BYTES_MAX];
        let count = cookie.payload.len();
        let room = bytes.get_mut(..count).ok_or(Malformed("a cookie is too long"))?;
        room.copy_from_slice(cookie.payload);
        Ok(Some(Cookie { bytes, count }))
    }

    /// Converts the action to the form that the kernel would dump: two equivalent actions are then equal.
    pub fn canonicalize(&mut self) {
        match &mut self.kind {
            Kind::TunnelKey(action) => *action = action.clone().canonical(),
            Kind::Skbedit(action) => *action = action.clone().canonical(),
            Kind::Vlan(action) => *action = action.clone().canonical(),
            Kind::Ct(action) => *action = action.clone().canonical(),
            Kind::Police(action) => *action = action.clone().canonical(),
            Kind::Mpls(action) => action.canonicalize(),
            Kind::Skbmod(action) => action.canonicalize(),
            Kind::Ife(action) => action.canonicalize(),
            Kind::Gate(action) => action.canonicalize(),
            Kind::Bpf(action) => action.program.canonicalize(),
            Kind::Gact(_)
            | Kind::Mirred(_)
            | Kind::Pedit(_)
            | Kind::Csum(_)
            | Kind::Nat(_)
            | Kind::Sample(_)
            | Kind::Connmark(_)
            | Kind::Ctinfo(_)
            | Kind::Simple(_) => {}
        }
        self.kind.instance_mut().index = 0;
    }

    /// Returns the tc syntax, without `action`; `None` if tc has no syntax for the action.
    pub fn words(&self, lookup: &mut dyn Lookup) -> Option<String> {
        let mut words = self.kind.words(lookup)?;
        if let Some(cookie) = &self.cookie {
            words.push_str(&format!(" cookie {}", number::hex_name(cookie.as_bytes())));
        }
        if let Some(stats) = self.hw_stats {
            let name = match stats {
                0 => "disabled",
                1 => "immediate",
                2 => "delayed",
                _ => return None,
            };
            words.push_str(&format!(" hw_stats {name}"));
        }
        for (set, word) in
            [(self.no_percpu, " no_percpu"), (self.skip_sw, " skip_sw"), (self.skip_hw, " skip_hw")]
        {
            if set {
                words.push_str(word);
            }
        }
        Some(words)
    }
}

/// Returns a `struct nla_bitfield32` that selects and sets these bits.
pub fn bitfield(bits: u32) -> [u8; 8] {
    (u64::from(bits) << 32 | u64::from(bits)).to_ne_bytes()
}
