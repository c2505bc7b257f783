//! Reads the output of a BPF iterator.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use sys::error::KernelError;

/// The buffer size for each `read(2)`, in bytes. Kernel: 6.18, `kernel/bpf/bpf_iter.c` `bpf_seq_read()` fills
/// at most eight pages.
const READ_BYTES: usize = 32 << 10;

/// Reads an iterator's whole output, which may have at most `bytes_max` bytes.
pub(super) fn bytes(iterator: OwnedFd, bytes_max: u64) -> Result<Vec<u8>, KernelError> {
    let what = "BPF iterator";
    let mut file = File::from(iterator);
    let mut bytes = Vec::with_capacity(READ_BYTES);
    loop {
        // Do not use `read_to_end`: it starts with small buffers, and the kernel would start over for each of
        // them.
        let have = bytes.len();
        bytes.resize(have + READ_BYTES, 0);
        let more = match file.read(&mut bytes[have..]) {
            Ok(more) => more,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {
                bytes.truncate(have);
                continue;
            }
            Err(error) => return Err(KernelError::io(what, &error)),
        };
        bytes.truncate(have + more);
        if more == 0 {
            return Ok(bytes);
        }
        if u64::try_from(bytes.len()).is_ok_and(|length| length > bytes_max) {
            return Err(KernelError::malformed(what, "the iterator wrote more than the limit"));
        }
    }
}
