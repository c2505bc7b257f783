//! Policy-file keys that schedule the kernel threads of NAPIs: how the value of each key is spelled and
//! parsed. The table of knobs has the keys' meaning and range.

use std::fmt;

use crate::cpu_set::CpuSet;
use crate::facts::Facts;
use crate::scheduling::{KthreadCpus, KthreadRequest, NotScheduling, Scheduling, Slice, UtilClamp};
use crate::setting::KthreadKnob;

/// One value of a [`KthreadRequest`], as a policy file gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KthreadValue {
    /// `kthread.cpus`
    Cpus(KthreadCpus),
    /// `kthread.class`
    Class(Scheduling),
    /// `kthread.util-clamp`
    UtilClamp(UtilClamp),
    /// `kthread.slice`
    Slice(Slice),
}

/// A policy-file key whose value is a [`KthreadValue`].
#[derive(Debug)]
pub struct KthreadKey {
    /// An example value, which identifies the knob.
    like: KthreadValue,
    /// An example for error messages, with `{least}` and `{most}` for the knob's range.
    example: &'static str,
    /// The pattern that the key's text must match: a regular expression of JSON Schema.
    pub pattern: &'static str,
    /// Parses the text.
    pub read: fn(&str) -> Result<KthreadValue, NotScheduling>,
}

impl KthreadKey {
    /// Returns the key's full name, including its table.
    pub const fn path(&self) -> &'static str {
        self.like.path()
    }

    /// Returns the example for error messages, with the knob's range filled in.
    pub fn example(&self) -> String {
        let mut text = self.example.to_owned();
        let facts = self.like.facts();
        if let Some((least, most)) = facts.range {
            text = text.replace("{least}", &facts.written(least)).replace("{most}", &facts.written(most));
        }
        text
    }
}

impl KthreadValue {
    /// All keys.
    pub const KEYS: &'static [KthreadKey] = &[
        KthreadKey {
            like: Self::Cpus(KthreadCpus::Any),
            example: "any, irq, sibling or a list of CPUs in quotes, as in \"irq\"",
            pattern: "^(any|irq|sibling|[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)$",
            read: |text| text.parse().map(Self::Cpus),
        },
        KthreadKey {
            like: Self::Class(Scheduling::Other(0)),
            example: "a scheduling class in quotes, as in \"fifo:50\" or \"other:-5\"",
            pattern: "^((other|batch)(:-?[0-9]{1,2})?|(fifo|rr):[0-9]{1,2})$",
            read: |text| text.parse().map(Self::Class),
        },
        KthreadKey {
            like: Self::UtilClamp(UtilClamp::NONE),
            example: "two numbers up to {most} in quotes, as in \"512-1024\"",
            pattern: "^[0-9]{1,4}-[0-9]{1,4}$",
            read: |text| text.parse().map(Self::UtilClamp),
        },
        KthreadKey {
            like: Self::Slice(Slice::Default),
            example: "a span of time from {least} to {most} in quotes, as in \"500us\", or \"default\"",
            pattern: "^(default|[0-9]+(\\.[0-9]+)? *(ns|us|µs|ms))$",
            read: |text| text.parse().map(Self::Slice),
        },
    ];

    /// Returns the facts about the key's knob.
    pub const fn facts(&self) -> &'static Facts {
        match self {
            Self::Cpus(_) => const { &KthreadKnob::Affinity(CpuSet::new()) }.facts(),
            Self::Class(class) => KthreadKnob::Scheduling(*class).facts(),
            Self::UtilClamp(clamp) => KthreadKnob::UtilClamp(*clamp).facts(),
            Self::Slice(slice) => KthreadKnob::Slice(*slice).facts(),
        }
    }

    /// The knob's key.
    pub const fn path(&self) -> &'static str {
        self.facts().key.expect("each knob of kernel threads has a key")
    }
}

impl fmt::Display for KthreadValue {
    /// Formats the value as in a policy file, without quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(cpus) => cpus.fmt(f),
            Self::Class(class) => class.fmt(f),
            Self::UtilClamp(clamp) => clamp.fmt(f),
            Self::Slice(slice) => slice.fmt(f),
        }
    }
}

impl FromIterator<KthreadValue> for KthreadRequest {
    fn from_iter<I: IntoIterator<Item = KthreadValue>>(values: I) -> Self {
        let mut request = Self::default();
        values.into_iter().for_each(|value| request.set(value));
        request
    }
}

impl KthreadRequest {
    /// Sets a value and replaces an earlier value of the same knob.
    pub fn set(&mut self, value: KthreadValue) {
        match value {
            KthreadValue::Cpus(cpus) => self.cpus = Some(cpus),
            KthreadValue::Class(class) => self.scheduling = Some(class),
            KthreadValue::UtilClamp(clamp) => self.util_clamp = Some(clamp),
            KthreadValue::Slice(slice) => self.slice = Some(slice),
        }
    }
}
