//! Keys of policy files that schedule the kernel threads of NAPIs: how each is spelled and read. What it means and its bounds
//! stand in the table of knobs.

use std::fmt;

use crate::keys;
use crate::scheduling::{KthreadCpus, KthreadRequest, NotScheduling, Scheduling, Slice, UtilClamp};
use crate::setting::Setting;

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

/// A key of policy files that gives a [`KthreadValue`].
#[derive(Debug)]
pub struct KthreadKey {
    /// Its name, with the table it stands in.
    pub path: &'static str,
    /// What to write, by example, with `{least}` and `{most}` for the bounds of its knob.
    example: &'static str,
    /// What the text matches, as a regular expression of JSON Schema.
    pub pattern: &'static str,
    /// Reads it.
    pub read: fn(&str) -> Result<KthreadValue, NotScheduling>,
}

impl KthreadKey {
    /// What to write, by example.
    pub fn example(&self) -> String {
        let mut text = self.example.to_owned();
        if let Some((facts, (least, most))) =
            Setting::facts_of_key(self.path).and_then(|facts| Some((facts, facts.range?)))
        {
            text = text.replace("{least}", &facts.written(least)).replace("{most}", &facts.written(most));
        }
        text
    }
}

impl KthreadValue {
    /// Every key.
    pub const KEYS: &'static [KthreadKey] = &[
        KthreadKey {
            path: keys::KTHREAD_CPUS,
            example: "any, irq, sibling or a list of CPUs in quotes, as in \"irq\"",
            pattern: "^(any|irq|sibling|[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)$",
            read: |text| text.parse().map(Self::Cpus),
        },
        KthreadKey {
            path: keys::KTHREAD_CLASS,
            example: "a scheduling class in quotes, as in \"fifo:50\" or \"other:-5\"",
            pattern: "^((other|batch)(:-?[0-9]{1,2})?|(fifo|rr):[0-9]{1,2})$",
            read: |text| text.parse().map(Self::Class),
        },
        KthreadKey {
            path: keys::KTHREAD_UTIL_CLAMP,
            example: "two numbers up to {most} in quotes, as in \"512-1024\"",
            pattern: "^[0-9]{1,4}-[0-9]{1,4}$",
            read: |text| text.parse().map(Self::UtilClamp),
        },
        KthreadKey {
            path: keys::KTHREAD_SLICE,
            example: "a span of time from {least} to {most} in quotes, as in \"500us\", or \"default\"",
            pattern: "^(default|[0-9]+(\\.[0-9]+)? *(ns|us|µs|ms))$",
            read: |text| text.parse().map(Self::Slice),
        },
    ];

    /// Its key.
    pub const fn path(&self) -> &'static str {
        match self {
            Self::Cpus(_) => keys::KTHREAD_CPUS,
            Self::Class(_) => keys::KTHREAD_CLASS,
            Self::UtilClamp(_) => keys::KTHREAD_UTIL_CLAMP,
            Self::Slice(_) => keys::KTHREAD_SLICE,
        }
    }
}

impl fmt::Display for KthreadValue {
    /// As a policy file has it, without quotes.
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
    /// Sets a value, in place of an earlier one of the same knob.
    pub fn set(&mut self, value: KthreadValue) {
        match value {
            KthreadValue::Cpus(cpus) => self.cpus = Some(cpus),
            KthreadValue::Class(class) => self.scheduling = Some(class),
            KthreadValue::UtilClamp(clamp) => self.util_clamp = Some(clamp),
            KthreadValue::Slice(slice) => self.slice = Some(slice),
        }
    }
}
