//! Knobs of objects that processes own: epolls, io_urings, threads, listeners.

use super::family::family;
use super::{EpollParams, Object, RingNapi, SocketPolling, Weight};
use crate::cpu_set::CpuSet;
use crate::facts::{Facts, Interface, KnobUnit, WritePhase};
use crate::ids::{EpollId, RingId, SocketId, ThreadId};
use crate::reuseport::{ListenerGroup, Spread};
use crate::since;

const EPOLL: Facts = Facts {
    since: since::EPOLL_PARAMS,
    phase_down: WritePhase::EpollFalls,
    ..Facts::at(Interface::Epoll, WritePhase::EpollRises)
};
const IO_URING: Facts = Facts {
    since: since::RING_NAPI,
    phase_down: WritePhase::RingFalls,
    ..Facts::at(Interface::IoUring, WritePhase::RingRises)
};
const SOCKET: Facts = Facts {
    since: since::SOCKET_PREFER_BUSY_POLL,
    phase_down: WritePhase::RingFalls,
    ..Facts::at(Interface::Socket, WritePhase::RingRises)
};
const THREAD: Facts = Facts::at(Interface::ThreadAffinity, WritePhase::Thread);
const LISTENERS: Facts =
    Facts { since: since::REUSEPORT_BY_QUEUE, ..Facts::at(Interface::Reuseport, WritePhase::Reuseport) };

family! {
    /// A knob of an object that a process owns, with a value.
    ProcessKnob {
        /// How `epoll_wait` on one epoll busy-polls the NAPI that its sockets receive from.
        ///
        /// Kernel: 6.9, `fs/eventpoll.c` `ep_eventpoll_bp_ioctl()` (`EPIOCSPARAMS`, `EPIOCGPARAMS`).
        Epoll(EpollId, EpollParams) = EPOLL { name: "busy_poll usecs/budget/prefer" } where {
            // Busy-waiting for events never polls the NAPI, so it has a lower weight than `prefer_busy_poll`.
            weight(_, params) => Weight(
                u8::from(params.prefer_busy_poll),
                u64::from(params.busy_poll_usecs),
                u64::from(params.busy_poll_budget),
            );
            tools(_, params) => format!(
                "{}/{}/{}{}",
                params.busy_poll_usecs,
                params.busy_poll_budget,
                u8::from(params.prefer_busy_poll),
                if params.events_only { "/1" } else { "" }
            );
        },

        /// How an io_uring busy-polls the NAPIs that its sockets receive from, if it busy-polls at all.
        ///
        /// Kernel: 6.9, `io_uring/napi.c` `io_register_napi()` (`IORING_REGISTER_NAPI`).
        IoUring(RingId, Option<RingNapi>) = IO_URING { name: "napi busy_poll usecs/prefer" } where {
            weight(_, Some(RingNapi { busy_poll_usecs, prefer_busy_poll })) =>
                Weight(1 + u8::from(*prefer_busy_poll), u64::from(*busy_poll_usecs), 0);
            tools(_, Some(napi)) => format!("{}/{}", napi.busy_poll_usecs, u8::from(napi.prefer_busy_poll));
        },

        /// How a receive call on one socket busy-polls the NAPI of its last packet, if no epoll watches the
        /// socket: a blocking `recv`, and `poll` or `select` if `net.core.busy_poll` is not 0.
        ///
        /// The budget is read with BPF, because `getsockopt` does not report it; without BPF it is not
        /// changed. In a plan it counts as 0 for a socket that does not busy-poll, and the commit reads it
        /// before it writes.
        ///
        /// Kernel: 5.11, `net/core/sock.c` `sk_setsockopt()` (`SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL`,
        /// `SO_BUSY_POLL_BUDGET`); `include/net/busy_poll.h` `sk_busy_loop()`, `net/socket.c` `sock_poll()`.
        Socket(SocketId, SocketPolling) = SOCKET { name: "so_busy_poll usecs/budget/prefer" } where {
            weight(_, polling) => Weight(
                u8::from(polling.prefer_busy_poll),
                u64::from(polling.busy_poll_usecs),
                u64::from(polling.busy_poll_budget.unwrap_or(0)),
            );
            tools(_, polling) => format!(
                "{}/{}{}",
                polling.busy_poll_usecs,
                u8::from(polling.prefer_busy_poll),
                polling.busy_poll_budget.map_or_else(String::new, |budget| format!("/{budget}"))
            );
        },

        /// The CPUs that a thread may run on.
        ///
        /// Kernel: 2.5.8, `kernel/sched/syscalls.c` `sched_setaffinity()`; cut to the thread's cpuset.
        ThreadAffinity(ThreadId, CpuSet) = THREAD {
            name: "cpus_allowed",
            unit: KnobUnit::Cpus,
        } where {
            // `sched_setaffinity()` returns EINVAL if the set has no CPU. Kernel: 6.18,
            // `kernel/sched/syscalls.c`.
            irreversible(_, cpus) if cpus.is_empty() => "an empty set, which sched_setaffinity() rejects";
        },

        /// Which of the listeners at one address gets a new connection.
        ///
        /// netpolicy's program is attached through one socket of the group and freed with the last one. A
        /// foreign program is never replaced, because it could not be restored.
        ///
        /// Kernel: 6.2 (`bpf_cast_to_kern_ctx()`), 5.3 (`SO_DETACH_REUSEPORT_BPF`), 4.19
        /// (`SO_ATTACH_REUSEPORT_EBPF` with `BPF_PROG_TYPE_SK_REUSEPORT`); `net/core/sock_reuseport.c`
        /// `reuseport_select_sock()`.
        Reuseport(ListenerGroup, Spread) = LISTENERS {
            name: "reuseport",
        } where {
            irreversible(_, spread) if *spread == Spread::Foreign => "a BPF program that another process attached";
        },
    }
}

impl ProcessKnob {
    /// Returns the object to which the knob belongs.
    pub const fn object(&self) -> Object {
        match self {
            Self::Epoll(epoll, _) => Object::Epoll(*epoll),
            Self::IoUring(ring, _) => Object::Ring(*ring),
            Self::Socket(socket, _) => Object::Socket(*socket),
            Self::ThreadAffinity(thread, _) => Object::Thread(*thread),
            Self::Reuseport(group, _) => Object::Listeners(*group),
        }
    }

    /// Formats the value as policy files and output show it.
    pub fn value(&self) -> String {
        match self {
            Self::Epoll(_, params) => params.to_string(),
            Self::IoUring(_, Some(napi)) => napi.to_string(),
            Self::IoUring(_, None) => "off".to_owned(),
            Self::Socket(_, polling) => polling.to_string(),
            Self::ThreadAffinity(_, cpus) => cpus.to_string(),
            Self::Reuseport(_, spread) => spread.to_string(),
        }
    }
}
