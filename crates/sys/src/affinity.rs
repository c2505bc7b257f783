//! `sched_setaffinity(2)` for any number of CPUs; the CPU set of rustix is limited to 1024 CPUs.
#![expect(unsafe_code, reason = "the C library takes the mask as a pointer and a length")]

use model::CpuSet;
use rustix::io::Errno;

/// Restricts a thread to these CPUs, except those that its cpuset does not allow.
pub fn set_affinity(tid: libc::pid_t, cpus: &CpuSet) -> Result<(), Errno> {
    // The kernel's mask is an array of `unsigned long`; CPU 0 is the lowest bit of the first one. On 64-bit
    // machines, the only ones that netpolicy supports, the words of `CpuSet` have this format.
    const { assert!(size_of::<libc::c_ulong>() == size_of::<u64>(), "mask words have 64 bits") };
    let words = cpus.words();
    // SAFETY: the kernel reads at most the given number of bytes from the words, and keeps no pointer to
    // them.
    let answer =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(words), words.as_ptr()) };
    super::answer::done(answer)
}
