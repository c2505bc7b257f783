//! Layouts: how a device's queues, interrupts and CPUs are grouped into objects.
//!
//! An object is a set of receive and transmit queues, their NAPIs and interrupts, and the CPUs assigned to
//! them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::cpu_set::CpuSet;
use crate::ids::{Cpu, QueueIndex};

/// How a device's queues are assigned to CPUs.
///
/// Written `one-to-one`, `rx-per-core`, `local-numa`, `shared:2`, or object by object as in
/// `rx 0 tx 0-1 cpus 0,24; rx 1 tx 2-3 cpus 1,25`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each queue pair has a dedicated CPU; CPUs nearest to the NIC are used first.
    OneToOne,
    /// There is one receive queue for each physical core, and one transmit queue for each logical CPU.
    RxPerCore,
    /// Each queue pair has a dedicated CPU; only CPUs of the NIC's NUMA node are used.
    LocalNuma,
    /// All queues share this many CPUs, the nearest to the NIC.
    Shared(u32),
    /// The policy lists the objects.
    Explicit(Vec<ObjectSpec>),
}

/// One object of an explicit layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSpec {
    /// The receive queues of the object, at least one.
    pub rx: Vec<QueueIndex>,
    /// The transmit queues.
    pub tx: Vec<QueueIndex>,
    /// The CPUs of the object, at least one.
    pub cpus: CpuSet,
}

impl Layout {
    /// The maximum number of objects in an explicit layout, which equals the maximum number of queues of a
    /// device.
    ///
    /// Kernel: 6.18, `include/uapi/linux/ethtool.h` `MAX_NUM_QUEUE`.
    pub const OBJECTS_MAX: usize = 4096;
}

impl fmt::Display for ObjectSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rx {}", queues(&self.rx))?;
        if !self.tx.is_empty() {
            write!(f, " tx {}", queues(&self.tx))?;
        }
        write!(f, " cpus {}", self.cpus)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneToOne => f.pad("one-to-one"),
            Self::RxPerCore => f.pad("rx-per-core"),
            Self::LocalNuma => f.pad("local-numa"),
            Self::Shared(cpus) => f.pad(&format!("shared:{cpus}")),
            Self::Explicit(objects) => {
                let objects: Vec<String> = objects.iter().map(ToString::to_string).collect();
                f.pad(&objects.join("; "))
            }
        }
    }
}

/// Converts queues to a set that is formatted as a cpulist, such as `0-3,8`.
fn queues(queues: &[QueueIndex]) -> CpuSet {
    queues.iter().map(|queue| Cpu(queue.0)).collect()
}

/// The error for text that is not a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotALayout(pub String);

impl fmt::Display for NotALayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotALayout {}

impl FromStr for Layout {
    type Err = NotALayout;

    fn from_str(text: &str) -> Result<Self, NotALayout> {
        match text {
            "one-to-one" => return Ok(Self::OneToOne),
            "rx-per-core" => return Ok(Self::RxPerCore),
            "local-numa" => return Ok(Self::LocalNuma),
            _ => {}
        }
        if let Some(count) = text.strip_prefix("shared:") {
            let cpus = count.parse().ok().filter(|cpus| (1..=CpuSet::CPUS_MAX).contains(cpus));
            return cpus
                .map(Self::Shared)
                .ok_or_else(|| NotALayout(format!("`{text}` has no number of CPUs: write shared:2")));
        }
        if !text.starts_with("rx ") {
            return Err(NotALayout(format!(
                "`{text}` is not a layout: expected one-to-one, rx-per-core, local-numa, shared:N, or objects \
                 as in `rx 0 tx 0-1 cpus 0,24; rx 1 cpus 1`"
            )));
        }
        let (mut rx, mut tx) = (BTreeSet::new(), BTreeSet::new());
        let mut objects = Vec::new();
        for object in text.split(';').take(Self::OBJECTS_MAX + 1) {
            let object = object_spec(object.trim())?;
            for (queues, kind, seen) in [(&object.rx, "rx", &mut rx), (&object.tx, "tx", &mut tx)] {
                if let Some(twice) = queues.iter().find(|queue| !seen.insert(**queue)) {
                    return Err(NotALayout(format!("{kind} queue {twice} is in two objects")));
                }
            }
            objects.push(object);
        }
        if objects.len() > Self::OBJECTS_MAX {
            return Err(NotALayout(format!("more than {} objects", Self::OBJECTS_MAX)));
        }
        Ok(Self::Explicit(objects))
    }
}

/// Parses one object, such as `rx 0 tx 0-1 cpus 0,24`.
fn object_spec(text: &str) -> Result<ObjectSpec, NotALayout> {
    let (mut rx, mut tx, mut cpus) = (CpuSet::new(), CpuSet::new(), CpuSet::new());
    let words: Vec<&str> = text.split_whitespace().collect();
    for pair in words.chunks(2) {
        let [word, list] = pair else {
            return Err(NotALayout(format!("`{text}`: `{}` has no list after it", pair.concat())));
        };
        let set = match *word {
            "rx" => &mut rx,
            "tx" => &mut tx,
            "cpus" => &mut cpus,
            other => return Err(NotALayout(format!("`{other}` is neither rx, tx nor cpus"))),
        };
        if !set.is_empty() {
            return Err(NotALayout(format!("`{text}` gives {word} twice")));
        }
        *set = list.parse().map_err(|_| {
            NotALayout(format!(
                "`{list}` is not a list of {word}: write it in the kernel's format, as in 0-3,8"
            ))
        })?;
    }
    if rx.is_empty() || cpus.is_empty() {
        return Err(NotALayout(format!("`{text}` needs receive queues and CPUs, as in rx 0 cpus 0,24")));
    }
    let indices = |set: &CpuSet| set.iter().map(|queue| QueueIndex(queue.0)).collect();
    Ok(ObjectSpec { rx: indices(&rx), tx: indices(&tx), cpus })
}

crate::as_text! { Layout: "which CPUs serve which queues: a name, or a list of rx, tx and cpus" }

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_layout_survives_being_written_and_read() {
        for text in [
            "one-to-one",
            "rx-per-core",
            "local-numa",
            "shared:2",
            "rx 0 cpus 3",
            "rx 0 tx 0-1 cpus 0,24; rx 1-2 cpus 1",
        ] {
            assert_eq!(text.parse::<Layout>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn an_invalid_layout_is_refused_with_its_mistake() {
        for (text, words) in [
            ("1:1", "is not a layout"),
            ("shared:0", "no number of CPUs"),
            ("rx 0", "needs receive queues and CPUs"),
            ("rx 0 cpus 0; rx 0 cpus 1", "rx queue 0 is in two objects"),
            ("rx 0 tx 1 cpus 0; rx 1 tx 0-1 cpus 1", "tx queue 1 is in two objects"),
            ("rx 0 cpu 0", "neither rx, tx nor cpus"),
            ("rx 0 rx 1 cpus 0", "gives rx twice"),
            ("rx 0 cpus", "has no list after it"),
            ("rx 3-1 cpus 0", "is not a list of rx"),
        ] {
            let wrong = text.parse::<Layout>().expect_err(text);
            assert!(wrong.to_string().contains(words), "{wrong}");
        }
        let many = vec!["rx 0 cpus 0"; Layout::OBJECTS_MAX + 1].join(";");
        assert!(many.parse::<Layout>().is_err());
    }
}
