//! Compares descriptors of two processes with `kcmp(2)`.
#![expect(unsafe_code, reason = "kcmp(2) has no wrapper")]

use rustix::io::Errno;

/// Kernel: 3.5, `include/uapi/linux/kcmp.h` `KCMP_FILE`.
const KCMP_FILE: libc::c_int = 0;

/// Returns whether descriptor `a.1` of process `a.0` and descriptor `b.1` of process `b.0` refer to the same
/// open file. Fails with ENOSYS on kernels without `CONFIG_KCMP`.
pub fn same_file(a: (u32, u32), b: (u32, u32)) -> Result<bool, Errno> {
    let [(pid_a, fd_a), (pid_b, fd_b)] =
        [a, b].map(|(pid, fd)| (libc::c_long::from(pid), libc::c_ulong::from(fd)));
    // SAFETY: kcmp takes five numbers and no pointer; it only compares what the processes have open.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, pid_a, pid_b, KCMP_FILE, fd_a, fd_b) };
    super::answer::done(answer)?;
    Ok(answer == 0)
}
