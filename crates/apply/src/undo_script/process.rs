//! Settings of objects that belong to processes: epolls, io_urings, sockets, threads, listeners.

use model::{EpollId, ProcessKnob, RingId, SocketId, ThreadId};

use super::call::{Call, Part, ShellWords, quoted};

/// Why the script does not remove a BPF program.
const NO_BPF: &str = "a shell cannot identify the BPF program; netpolicy rollback can, and the kernel frees it with the last listener";

pub(super) fn call(words: &ShellWords, knob: &ProcessKnob) -> Call {
    match knob {
        ProcessKnob::Epoll(EpollId { process, fd }, _) => {
            let of = format!("{} {} {fd}", process.pid, process.started);
            Call::anywhere(&[Part::Held, Part::Epoll], words, "epoll", &of)
        }
        ProcessKnob::IoUring(RingId { process, fd }, _) => {
            let of = format!("{} {} {fd}", process.pid, process.started);
            Call::anywhere(&[Part::Held, Part::Ring], words, "ring", &of)
        }
        ProcessKnob::Socket(SocketId { process, fd, inode }, _) => {
            let of = format!("{} {} {fd} {inode}", process.pid, process.started);
            Call::anywhere(&[Part::Held, Part::Socket], words, "polled", &of)
        }
        ProcessKnob::ThreadAffinity(ThreadId { process, tid, started, .. }, _) => {
            let of = format!("{} {tid} {started}", process.pid);
            Call::anywhere(&[Part::Started, Part::Thread], words, "thread", &of)
        }
        ProcessKnob::Reuseport(..) => {
            Call { needs: Vec::new(), line: format!("stuck {} {}", words.what, quoted(NO_BPF)) }
        }
    }
}
