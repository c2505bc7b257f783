//! Parts of `bpf(2)` that libbpf-rs does not offer.
#![expect(unsafe_code, reason = "libbpf's functions take pointers")]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::RingBuffer;
use libbpf_sys::{
    BPF_STATS_RUN_TIME, BPF_TRACE_ITER, bpf_enable_stats, bpf_iter_create, bpf_iter_link_info,
    bpf_iter_link_info__bindgen_ty_1, bpf_iter_link_info__bindgen_ty_3, bpf_link_create,
    bpf_link_create_opts, bpf_prog_bind_map, bpf_prog_get_info_by_fd, bpf_prog_get_next_id, bpf_prog_info,
};
use rustix::io::Errno;

/// Run statistics of a BPF program.
#[derive(Clone, Copy, Debug)]
pub struct RunStatistics {
    /// How often the program ran.
    pub runs: u64,
    /// The total run time, in nanoseconds.
    pub time_ns: u64,
    /// How often the kernel skipped the program because it was already running on that CPU.
    pub recursion_misses: u64,
}

/// Converts libbpf's return value: a descriptor, or a negative error code.
fn descriptor(answer: i32) -> Result<OwnedFd, Errno> {
    if answer < 0 {
        return Err(Errno::from_raw_os_error(-answer));
    }
    // SAFETY: every caller passes the return value of a call that creates a descriptor and keeps no copy of
    // it.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

/// Enables run-time statistics of BPF programs for as long as the descriptor is open.
pub fn enable_run_time_statistics() -> Result<OwnedFd, Errno> {
    // SAFETY: takes no pointers; the descriptor is new.
    descriptor(unsafe { bpf_enable_stats(BPF_STATS_RUN_TIME) })
}

/// Counts the loaded BPF programs of all users, up to `max`.
///
/// Kernel: 4.13, `BPF_PROG_GET_NEXT_ID`; EPERM without CAP_SYS_ADMIN.
pub fn count_programs(max: u32) -> Result<u32, Errno> {
    let mut id = 0;
    for counted in 0..max {
        // SAFETY: the kernel writes the next id to `id`, which outlives the call.
        let answer = unsafe { bpf_prog_get_next_id(id, &raw mut id) };
        match answer {
            0 => {}
            _ if -answer == Errno::NOENT.raw_os_error() => return Ok(counted),
            _ => return Err(Errno::from_raw_os_error(-answer)),
        }
    }
    Ok(max)
}

/// Returns the run statistics of a program.
pub fn run_statistics(program: BorrowedFd<'_>) -> Result<RunStatistics, Errno> {
    let mut info = bpf_prog_info::default();
    let mut length = u32::try_from(size_of::<bpf_prog_info>()).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: `info` is zeroed, so it requests no arrays, and `length` is its size; the kernel writes no
    // more.
    let answer = unsafe { bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length) };
    if answer < 0 {
        return Err(Errno::from_raw_os_error(-answer));
    }
    Ok(RunStatistics {
        runs: info.run_cnt,
        time_ns: info.run_time_ns,
        recursion_misses: info.recursion_misses,
    })
}

/// Starts an `iter/task_file` program on the files of one thread. Reading the descriptor returns the
/// program's output.
///
/// Kernel: 6.1, `kernel/bpf/task_iter.c` `bpf_iter_attach_task()`; the tid is that in the reader's pid
/// namespace.
pub fn iterate_files_of(program: BorrowedFd<'_>, tid: u32) -> Result<OwnedFd, Errno> {
    iterate(
        program,
        bpf_iter_link_info { task: bpf_iter_link_info__bindgen_ty_3 { tid, ..Default::default() } },
    )
}

/// Like [`iterate_files_of`], for the files of all processes.
///
/// Kernel: 5.8, `kernel/bpf/task_iter.c`; covers only processes of the reader's pid namespace.
pub fn iterate_all_files(program: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    iterate(program, bpf_iter_link_info::default())
}

/// Starts an `iter/task` program on all threads. Reading the descriptor returns the program's output.
///
/// Kernel: 5.8, `kernel/bpf/task_iter.c`; covers only threads of the reader's pid namespace.
pub fn iterate_all_tasks(program: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    iterate(program, bpf_iter_link_info::default())
}

/// Makes a program hold a reference to a map that it does not use.
///
/// Kernel: 5.10, `kernel/bpf/syscall.c` `bpf_prog_bind_map()`.
pub fn bind_map(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: takes two descriptors, and no options.
    let answer = unsafe { bpf_prog_bind_map(program.as_raw_fd(), map.as_raw_fd(), std::ptr::null()) };
    if answer < 0 { Err(Errno::from_raw_os_error(-answer)) } else { Ok(()) }
}

/// Returns a program's name, and the ids of its maps.
pub fn name_and_maps(program: BorrowedFd<'_>) -> Result<(String, Vec<u32>), Errno> {
    /// More maps than any program of netpolicy has.
    const MAPS_MAX: usize = 16;
    let mut maps = [0_u32; MAPS_MAX];
    let mut info = bpf_prog_info {
        nr_map_ids: u32::try_from(MAPS_MAX).map_err(|_| Errno::OVERFLOW)?,
        map_ids: u64::try_from((&raw mut maps).addr()).map_err(|_| Errno::OVERFLOW)?,
        ..Default::default()
    };
    let mut length = u32::try_from(size_of::<bpf_prog_info>()).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: `info` requests one array, `maps`, with its length; `length` is the size of `info`.
    let answer = unsafe { bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length) };
    if answer < 0 {
        return Err(Errno::from_raw_os_error(-answer));
    }
    let known = usize::try_from(info.nr_map_ids).unwrap_or(MAPS_MAX).min(MAPS_MAX);
    let name = info.name.iter().map(|&byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0);
    Ok((String::from_utf8_lossy(&name.collect::<Vec<u8>>()).into_owned(), maps[..known].to_vec()))
}

/// Starts an `iter/bpf_sk_storage_map` program on the sockets in a map. Reading the descriptor returns the
/// program's output.
///
/// Kernel: 5.9, `net/core/bpf_sk_storage.c` `bpf_iter_attach_map()`.
pub fn iterate_sockets_in(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let map_fd = u32::try_from(map.as_raw_fd()).map_err(|_| Errno::BADF)?;
    iterate(program, bpf_iter_link_info { map: bpf_iter_link_info__bindgen_ty_1 { map_fd } })
}

fn iterate(program: BorrowedFd<'_>, mut which: bpf_iter_link_info) -> Result<OwnedFd, Errno> {
    let size = |bytes: usize| u32::try_from(bytes).map_err(|_| Errno::OVERFLOW);
    let options = bpf_link_create_opts {
        sz: size(size_of::<bpf_link_create_opts>())?.into(),
        iter_info: &raw mut which,
        iter_info_len: size(size_of::<bpf_iter_link_info>())?,
        ..Default::default()
    };
    // SAFETY: the options and what they point to live until the call returns; the descriptor is new.
    let link =
        descriptor(unsafe { bpf_link_create(program.as_raw_fd(), 0, BPF_TRACE_ITER, &raw const options) })?;
    // SAFETY: takes no pointers; the descriptor is new, and holds a reference to the link.
    descriptor(unsafe { bpf_iter_create(link.as_raw_fd()) })
}

/// Returns the descriptor that becomes readable when a ring buffer has data.
pub fn ring_descriptor<'ring>(ring: &'ring RingBuffer<'_>) -> BorrowedFd<'ring> {
    // SAFETY: libbpf's descriptor stays open for as long as the ring buffer, which is borrowed for as long as the result.
    unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) }
}
