//! What of `ethtool` is an ioctl only: the receive hash, and the interrupt moderation of single queues.
//!
//! Kernel: 6.18, `include/uapi/linux/ethtool.h`, `net/ethtool/ioctl.c` `dev_ethtool()`.
#![expect(
    unsafe_code,
    reason = "the kernel takes a structure with a pointer to another of a length it says itself"
)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Kernel: `include/uapi/linux/sockios.h`.
const SIOCETHTOOL: libc::c_ulong = 0x8946;

const GRSSH: u32 = 0x46;
const SRSSH: u32 = 0x47;
const PERQUEUE: u32 = 0x4b;
const GCOALESCE: u32 = 0x0e;
const SCOALESCE: u32 = 0x0f;

/// `ETH_RXFH_INDIR_NO_CHANGE`.
const INDIR_NO_CHANGE: u32 = u32::MAX;

/// The longest indirection table that is taken. Kernel: the largest of any driver in 6.18 has 4096 entries.
const RSS_ENTRIES_MAX: u32 = 1 << 16;

/// The longest hash key that is taken, in bytes. Kernel: 6.18, `include/linux/ethtool.h`; drivers have 40 or 52.
const RSS_KEY_BYTES_MAX: u32 = 1 << 10;

/// The words of `struct ethtool_rxfh` before `rss_config`: cmd, rss_context, indir_size, key_size, four bytes, rsvd32.
const RXFH_WORDS: usize = 6;

/// The words of `struct ethtool_coalesce`.
pub(crate) const COALESCE_WORDS: usize = 23;

/// The queues that one question can be about. Kernel: `MAX_NUM_QUEUE`.
pub(crate) const QUEUES_MAX: usize = 4096;

/// The words of `struct ethtool_per_queue_op` before its data: cmd, sub_command, the mask of queues.
const PER_QUEUE_WORDS: usize = 2 + QUEUES_MAX / 32;

/// The receive hash: the indirection table and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawRss {
    pub(crate) table: Vec<u32>,
    pub(crate) key: Vec<u8>,
    /// Hash function and input transformation, as they are.
    kind: u32,
}

/// One request, whose first word is its command. The kernel reads and writes as much of it as its own fields say, so
/// each caller below makes it as long as the fields that it fills in say.
fn request(socket: impl AsFd, device: &str, words: &mut [u32]) -> Result<(), Errno> {
    // SAFETY: all-zero bytes are a valid `ifreq`: its name and its union are plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        return Err(Errno::NAMETOOLONG);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: SIOCETHTOOL reads the `ifreq`, which lives until the call returns, and reads and writes the request that
    // `ifru_data` points to, as far as the request's own sizes say; those are the length of `words` at most, which is
    // borrowed for the call. The kernel keeps no pointer.
    let answer = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    super::answer::done(answer.into())
}

/// The receive hash of a device.
pub(crate) fn rss(socket: impl AsFd, device: &str) -> Result<RawRss, Errno> {
    let mut sizes = [0; RXFH_WORDS];
    sizes[0] = GRSSH;
    request(socket.as_fd(), device, &mut sizes)?;
    let (entries, key_bytes) = (sizes[2], sizes[3]);
    if entries > RSS_ENTRIES_MAX || key_bytes > RSS_KEY_BYTES_MAX {
        return Err(Errno::OVERFLOW);
    }
    let table_end = RXFH_WORDS + entries as usize;
    let mut words = vec![0; table_end + key_bytes.div_ceil(4) as usize];
    (words[0], words[2], words[3]) = (GRSSH, entries, key_bytes);
    request(socket, device, &mut words)?;
    let key: Vec<u8> = words[table_end..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(RawRss {
        table: words[RXFH_WORDS..table_end].to_vec(),
        key: key[..key_bytes as usize].to_vec(),
        kind: words[4],
    })
}

/// Changes the indirection table, the key, or both; what is `None` stays.
pub(crate) fn set_rss(
    socket: impl AsFd,
    device: &str,
    table: Option<&[u32]>,
    key: Option<&[u8]>,
) -> Result<(), Errno> {
    // Newer kernels have a byte for the input transformation where older ones want zero: what is read is right for both.
    let now = rss(socket.as_fd(), device)?;
    let mut words = vec![0; RXFH_WORDS];
    words[0] = SRSSH;
    words[4] = now.kind;
    match table {
        Some(table) if table.len() == now.table.len() => {
            words[2] = u32::try_from(table.len()).map_err(|_| Errno::INVAL)?;
            words.extend_from_slice(table);
        }
        Some(_) => return Err(Errno::INVAL),
        None => words[2] = INDIR_NO_CHANGE,
    }
    if let Some(key) = key {
        if key.len() != now.key.len() {
            return Err(Errno::INVAL);
        }
        words[3] = u32::try_from(key.len()).map_err(|_| Errno::INVAL)?;
        for chunk in key.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..chunk.len()].copy_from_slice(chunk);
            words.push(u32::from_ne_bytes(bytes));
        }
    }
    request(socket, device, &mut words)
}

/// The interrupt moderation of the first queues of a device, each as the words of `struct ethtool_coalesce`.
pub(crate) fn queue_coalesce(
    socket: impl AsFd,
    device: &str,
    queues: usize,
) -> Result<Vec<[u32; COALESCE_WORDS]>, Errno> {
    if queues > QUEUES_MAX {
        return Err(Errno::OVERFLOW);
    }
    let mut words = vec![0; PER_QUEUE_WORDS + queues * COALESCE_WORDS];
    (words[0], words[1]) = (PERQUEUE, GCOALESCE);
    for queue in 0..queues {
        words[2 + queue / 32] |= 1 << (queue % 32);
    }
    request(socket, device, &mut words)?;
    let (answers, _) = words[PER_QUEUE_WORDS..].as_chunks::<COALESCE_WORDS>();
    Ok(answers.to_vec())
}

/// Changes the interrupt moderation of one queue to these words of `struct ethtool_coalesce`.
pub(crate) fn set_queue_coalesce(
    socket: impl AsFd,
    device: &str,
    queue: usize,
    to: &[u32; COALESCE_WORDS],
) -> Result<(), Errno> {
    if queue >= QUEUES_MAX {
        return Err(Errno::INVAL);
    }
    let mut words = vec![0; PER_QUEUE_WORDS + COALESCE_WORDS];
    (words[0], words[1]) = (PERQUEUE, SCOALESCE);
    words[2 + queue / 32] |= 1 << (queue % 32);
    words[PER_QUEUE_WORDS..].copy_from_slice(to);
    words[PER_QUEUE_WORDS] = SCOALESCE;
    request(socket, device, &mut words)
}
