//! `io_uring_register(2)` on a ring of another process.
#![expect(unsafe_code, reason = "io_uring_register takes a pointer whose type its opcode decides")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Kernel: 5.6, `include/uapi/linux/io_uring.h` `IORING_REGISTER_PROBE`.
const IORING_REGISTER_PROBE: libc::c_uint = 8;
/// Kernel: 6.9, `include/uapi/linux/io_uring.h` `IORING_REGISTER_NAPI`.
const IORING_REGISTER_NAPI: libc::c_uint = 27;
/// Kernel: 6.9, `include/uapi/linux/io_uring.h` `IORING_UNREGISTER_NAPI`.
const IORING_UNREGISTER_NAPI: libc::c_uint = 28;

/// `struct io_uring_napi`. Before 6.12, the fields after `prefer_busy_poll` are padding and must be zero.
/// Since then, zeros mean `IO_URING_NAPI_REGISTER_OP` with `IO_URING_NAPI_TRACKING_DYNAMIC`, the behaviour of
/// older kernels.
///
/// Kernel: 6.13, `include/uapi/linux/io_uring.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawNapi {
    busy_poll_to: u32,
    prefer_busy_poll: u8,
    opcode: u8,
    zero: [u8; 2],
    op_param: u32,
    zero_too: u32,
}

/// Kernel: 6.13, `include/uapi/linux/io_uring.h` `IO_URING_NAPI_STATIC_DEL_ID`.
const IO_URING_NAPI_STATIC_DEL_ID: u8 = 2;
/// Kernel: 6.13, `include/uapi/linux/io_uring.h` `IO_URING_NAPI_TRACKING_STATIC`.
const IO_URING_NAPI_TRACKING_STATIC: u32 = 1;

const _: () = assert!(size_of::<RawNapi>() == 16, "mirrors struct io_uring_napi");

/// `struct io_uring_probe` without operations.
///
/// Kernel: 5.6, `include/uapi/linux/io_uring.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawProbe {
    last_op: u8,
    ops_len: u8,
    zero: [u16; 7],
}

const _: () = assert!(size_of::<RawProbe>() == 16, "mirrors struct io_uring_probe");

/// Makes the ring busy-poll the NAPIs that its sockets receive from, for `usecs` microseconds per wait.
pub fn register_napi(ring: impl AsFd, usecs: u32, prefer_busy_poll: bool) -> Result<(), Errno> {
    let mut napi =
        RawNapi { busy_poll_to: usecs, prefer_busy_poll: u8::from(prefer_busy_poll), ..RawNapi::default() };
    register(ring, IORING_REGISTER_NAPI, &mut napi, 1)
}

/// Clears the ring's list of NAPIs, so that it polls none until its application registers one.
pub fn register_no_napi(ring: impl AsFd) -> Result<(), Errno> {
    let mut napi = RawNapi { op_param: IO_URING_NAPI_TRACKING_STATIC, ..RawNapi::default() };
    register(ring, IORING_REGISTER_NAPI, &mut napi, 1)
}

/// Returns whether the kernel supports [`register_no_napi`]. Sends a request that never changes anything, to
/// which only a kernel with that support writes a reply.
///
/// Kernel: 6.13, `io_uring/napi.c` `io_register_napi()` writes the current values back before it checks
/// `opcode`, and no NAPI has the id 0 that the request removes. 6.12 rejects non-zero padding before it
/// writes anything.
pub fn tracks_by_name(ring: impl AsFd) -> Result<bool, Errno> {
    /// Longer than any value in a reply: the kernel limits them to 10 ms.
    const UNANSWERED: u32 = u32::MAX;
    let mut napi =
        RawNapi { busy_poll_to: UNANSWERED, opcode: IO_URING_NAPI_STATIC_DEL_ID, ..RawNapi::default() };
    match register(ring, IORING_REGISTER_NAPI, &mut napi, 1) {
        Ok(()) | Err(Errno::INVAL) => Ok(napi.busy_poll_to != UNANSWERED),
        Err(errno) => Err(errno),
    }
}

/// Disables the ring's busy polling. NAPIs that it already knows may stay in its list.
pub fn unregister_napi(ring: impl AsFd) -> Result<(), Errno> {
    register(ring, IORING_UNREGISTER_NAPI, &mut RawNapi::default(), 1)
}

/// Checks whether the ring accepts requests from other processes (`EEXIST` if it belongs to one task): asks
/// which operations it supports, and ignores the reply. Changes nothing.
pub fn probe(ring: impl AsFd) -> Result<(), Errno> {
    register(ring, IORING_REGISTER_PROBE, &mut RawProbe::default(), 0)
}

/// Sends one request with one `argument` of the type that `opcode` requires.
fn register<T>(
    ring: impl AsFd,
    opcode: libc::c_uint,
    argument: &mut T,
    count: libc::c_uint,
) -> Result<(), Errno> {
    // SAFETY: the callers pair the opcode with the structure that it reads and writes; the kernel accesses no
    // more than that structure (a probe with count 0 has no trailing operations) and keeps no pointer to it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_fd().as_raw_fd(),
            opcode,
            std::ptr::from_mut(argument),
            count,
        )
    };
    super::answer::done(answer)
}
