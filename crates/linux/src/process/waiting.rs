//! Determines the system call in which a thread sleeps, from `/proc/PID/task/TID/syscall`.

use model::Fd;

/// The system call numbers of `epoll_wait`, `epoll_pwait` and `epoll_pwait2`.
#[cfg(target_arch = "x86_64")]
const EPOLL_WAITS: [u64; 3] = [232, 281, 441];
/// The system call numbers of `epoll_pwait` and `epoll_pwait2`; this architecture has no `epoll_wait`.
#[cfg(target_arch = "aarch64")]
const EPOLL_WAITS: [u64; 2] = [22, 441];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("system call numbers of this architecture are unknown");

/// Returns the descriptor of the epoll that the thread waits on; `None` while the thread runs or sleeps in
/// another system call.
///
/// The system call numbers are those of 64-bit programs: a thread of a 32-bit program may wrongly appear to
/// wait, so the caller must compare the descriptor with the process's epolls.
///
/// Kernel: 6.18, `fs/proc/base.c` `proc_pid_syscall()`: `running`, or the number and then the arguments in
/// hexadecimal.
pub(crate) fn epoll_waited_on(text: &[u8]) -> Option<Fd> {
    let mut fields = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let number: u64 = fields.next()?.parse().ok()?;
    if !EPOLL_WAITS.contains(&number) {
        return None;
    }
    let argument = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    // The argument is an int: the kernel ignores the upper half of the register.
    u32::try_from(argument & u64::from(u32::MAX)).ok().map(Fd)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_thread_in_epoll_wait_names_its_epoll() {
        let line =
            |number| format!("{number} 0x5 0x7f0c2c000b70 0x20 0xffffffff 0x0 0x8 0x7f0c33ffe 0x7f0c352a\n");
        for number in EPOLL_WAITS {
            assert_eq!(epoll_waited_on(line(number).as_bytes()), Some(Fd(5)));
        }
        assert_eq!(epoll_waited_on(line(0).as_bytes()), None, "read(2) is not an epoll");
    }

    #[test]
    fn a_thread_that_does_not_sleep_in_a_system_call_waits_on_nothing() {
        for text in ["running\n", "-1 0x7ffc3f065008 0x7f9255d162ad\n", "", "232", "232 5", "232 0xzz"] {
            assert_eq!(epoll_waited_on(text.as_bytes()), None, "{text}");
        }
    }
}
