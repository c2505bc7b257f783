//! `sched_setaffinity(2)` for as many CPUs as a kernel can have. rustix's set ends at 1024.
#![expect(unsafe_code, reason = "the C library takes the mask as a pointer and a length")]

use model::CpuSet;
use rustix::io::Errno;

/// Lets a thread run on these CPUs only, as far as its cpuset allows.
pub fn set_affinity(tid: libc::pid_t, cpus: &CpuSet) -> Result<(), Errno> {
    // The kernel's mask is an array of `unsigned long`, CPU 0 in the lowest bit of the first: on the 64-bit
    // machines that this room supports, the words of `CpuSet`.
    const { assert!(size_of::<libc::c_ulong>() == size_of::<u64>(), "mask words have 64 bits") };
    let words = cpus.words();
    // SAFETY: the kernel reads at most the given number of bytes from the words, and keeps no pointer to them.
    let answer =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(words), words.as_ptr()) };
    super::answer::done(answer)
}
