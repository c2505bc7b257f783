//! The ids of the objects in a run. Each kind counts from 0 and has its own type.
//!
//! Passing a CPU instead of a NAPI does not compile:
//!
//! ```compile_fail,E0308
//! use sim::ids::{CpuId, NapiId};
//! let (cpu, napi) = (CpuId::new(0), NapiId::new(1));
//! sim::watch::Fact::Timer { napi: cpu, cpu: napi };
//! ```
//!
//! ```
//! use sim::ids::{CpuId, NapiId};
//! let (cpu, napi) = (CpuId::new(0), NapiId::new(1));
//! sim::watch::Fact::Timer { napi, cpu };
//! ```

use std::fmt;
use std::marker::PhantomData;

/// An id: a number from 0.
pub(crate) trait Id: Copy {
    /// The id with this number.
    fn new(index: usize) -> Self;

    /// The number.
    fn index(self) -> usize;
}

/// An id in two bytes, for objects that a run has millions of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compact<I>(u16, PhantomData<fn() -> I>);

impl<I: Id> Compact<I> {
    /// Compresses an id.
    ///
    /// # Panics
    /// If the number is above 65535: a scenario has at most 1024 threads, and fewer CPUs and queues.
    #[inline]
    pub(crate) fn new(id: I) -> Self {
        Self(u16::try_from(id.index()).expect("at most 1024 threads, fewer CPUs and queues"), PhantomData)
    }

    /// The original id.
    #[inline]
    pub(crate) fn get(self) -> I {
        I::new(usize::from(self.0))
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $vis:vis $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis struct $name($inner);

        impl $name {
            /// The id with this number.
            #[inline]
            $vis const fn new(index: usize) -> Self {
                #[allow(clippy::cast_possible_truncation, reason = "a scenario's limits are far below the type's")]
                let id = Self(index as $inner);
                debug_assert!(id.index() == index, "a number beyond its type");
                id
            }

            /// The number.
            #[inline]
            $vis const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl Id for $name {
            #[inline]
            fn new(index: usize) -> Self {
                Self::new(index)
            }

            #[inline]
            fn index(self) -> usize {
                self.index()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A CPU of the machine.
    pub CpuId(usize)
}
id! {
    /// A group of CPUs that share a last-level cache.
    pub(crate) LlcId(usize)
}
id! {
    /// A NUMA node.
    pub(crate) NodeId(usize)
}
id! {
    /// An RX queue of the NIC, with the TX queue of the same channel.
    pub QueueId(usize)
}
id! {
    /// A NAPI. Each queue has one with the same number.
    pub NapiId(usize)
}
id! {
    /// A thread of the application.
    pub ThreadId(usize)
}
id! {
    /// A schedulable entity: a thread of the application or of the kernel.
    pub(crate) TaskId(usize)
}
id! {
    /// A client's connection.
    pub ConnectionId(u32)
}
id! {
    /// An RX queue of the clients' host.
    pub(crate) ClientQueueId(usize)
}
id! {
    /// A thread of the clients' host.
    pub(crate) ClientThreadId(usize)
}
id! {
    /// A source of events; it has at most one pending event.
    pub(crate) SourceId(usize)
}

impl QueueId {
    /// Returns the NAPI that polls this queue.
    #[inline]
    pub const fn napi(self) -> NapiId {
        NapiId(self.0)
    }
}

impl NapiId {
    /// Returns the queue that this NAPI polls.
    #[inline]
    pub const fn queue(self) -> QueueId {
        QueueId(self.0)
    }
}
