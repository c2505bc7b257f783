//! Parts of `ethtool` that kernels still in use offer only as an ioctl: RSS and its contexts, ntuple rules,
//! per-queue interrupt moderation, and the driver's information about itself.
//!
//! Kernel: 6.18, `include/uapi/linux/ethtool.h`, `net/ethtool/ioctl.c` `dev_ethtool()`.
#![expect(
    unsafe_code,
    reason = "the kernel takes a structure with a pointer to a second one, which contains its own length"
)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Kernel: `include/uapi/linux/sockios.h`.
const SIOCETHTOOL: libc::c_ulong = 0x8946;

const GDRVINFO: u32 = 0x03;
const GRSSH: u32 = 0x46;
const SRSSH: u32 = 0x47;
const PERQUEUE: u32 = 0x4b;
const GCOALESCE: u32 = 0x0e;
const SCOALESCE: u32 = 0x0f;
const GRXRINGS: u32 = 0x2d;
const GRXCLSRLCNT: u32 = 0x2e;
const GRXCLSRULE: u32 = 0x2f;
const GRXCLSRLALL: u32 = 0x30;
const SRXCLSRLDEL: u32 = 0x31;
const SRXCLSRLINS: u32 = 0x32;

/// `ETH_RXFH_INDIR_NO_CHANGE`.
const INDIR_NO_CHANGE: u32 = u32::MAX;

/// The longest indirection table to accept. Kernel: the largest of any driver in 6.18 has 4096 entries.
const RSS_ENTRIES_MAX: u32 = 1 << 16;

/// The longest hash key to accept, in bytes. Kernel: 6.18, `include/linux/ethtool.h`; drivers have 40 or 52
/// bytes.
const RSS_KEY_BYTES_MAX: u32 = 1 << 10;

/// The number of words of `struct ethtool_rxfh` before `rss_config`: cmd, rss_context, indir_size, key_size,
/// a word of four single bytes (see [`XFRM_NO_CHANGE`]), rsvd32.
const RXFH_WORDS: usize = 6;

/// `ETH_RXFH_CONTEXT_ALLOC`.
const CONTEXT_ALLOC: u32 = u32::MAX;

/// The bytes of the word of `struct ethtool_rxfh` that contains `input_xfrm`, with `RXH_XFRM_NO_CHANGE` in
/// that field and zeros in the others. Kernel: 6.8; in older kernels the byte must be 0.
const XFRM_NO_CHANGE: [u8; 4] = [0, 0xff, 0, 0];

/// The number of words of `struct ethtool_rxnfc`: `fs` starts at byte 16; `rule_cnt` and `rule_locs` are at
/// the end.
pub const RXNFC_WORDS: usize = 48;

/// The offset of `data` in `struct ethtool_rxnfc`, in words, like the following offsets.
const RXNFC_DATA: usize = 2;
/// `fs.location`.
const RXNFC_LOCATION: usize = 44;
/// The offset of `rule_cnt`, which for a single rule is `rss_context`.
const RXNFC_COUNT: usize = 46;
/// The offset of the first of `rule_locs`.
const RXNFC_LOCATIONS: usize = 47;

/// The number of words of `struct ethtool_coalesce`.
pub const COALESCE_WORDS: usize = 23;

/// The maximum number of queues in a per-queue request. Kernel: `MAX_NUM_QUEUE`.
pub const QUEUES_MAX: usize = 4096;

/// The number of words of `struct ethtool_per_queue_op` before its data: cmd, sub_command, the mask of
/// queues.
const PER_QUEUE_WORDS: usize = 2 + QUEUES_MAX / 32;

/// RSS: the indirection table and the hash key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRss {
    /// The receive queue of each bucket of the indirection table.
    pub table: Vec<u32>,
    /// The bytes of the key.
    pub key: Vec<u8>,
    /// The hash function and the input transformation, as read. They are written back unchanged.
    kind: u32,
}

/// Sends one request, whose first word is its command. The kernel reads and writes as many bytes as the size
/// fields in the request say, so each caller makes `words` at least that long.
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
    // SAFETY: SIOCETHTOOL reads the `ifreq`, which lives until the call returns, and reads and writes the
    // request that `ifru_data` points to. The request's size fields bound the access; they are at most the
    // length of `words`, which is borrowed for the call. The kernel keeps no pointer.
    let answer = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    super::answer::done(answer.into())
}

/// The number of words of `struct ethtool_drvinfo`, and of each string in it.
const DRVINFO_WORDS: usize = 49;
const TEXT_WORDS: usize = 8;

/// Reads a driver's description of itself: driver, version, firmware version, address on the bus.
pub fn driver_info(socket: impl AsFd, device: &str) -> Result<[String; 4], Errno> {
    let mut words = [0; DRVINFO_WORDS];
    words[0] = GDRVINFO;
    request(socket, device, &mut words)?;
    Ok(std::array::from_fn(|at| {
        let words = &words[1 + at * TEXT_WORDS..][..TEXT_WORDS];
        let bytes: Vec<u8> =
            words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }))
}

/// Reads the RSS configuration of a device, or of one of its contexts; 0 is the default context.
pub fn rss(socket: impl AsFd, device: &str, context: u32) -> Result<RawRss, Errno> {
    let mut sizes = [0; RXFH_WORDS];
    (sizes[0], sizes[1]) = (GRSSH, context);
    request(socket.as_fd(), device, &mut sizes)?;
    let (entries, key_bytes) = (sizes[2], sizes[3]);
    if entries > RSS_ENTRIES_MAX || key_bytes > RSS_KEY_BYTES_MAX {
        return Err(Errno::OVERFLOW);
    }
    let table_end = RXFH_WORDS + entries as usize;
    let mut words = vec![0; table_end + key_bytes.div_ceil(4) as usize];
    (words[0], words[1], words[2], words[3]) = (GRSSH, context, entries, key_bytes);
    request(socket, device, &mut words)?;
    let key: Vec<u8> = words[table_end..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(RawRss {
        table: words[RXFH_WORDS..table_end].to_vec(),
        key: key[..key_bytes as usize].to_vec(),
        kind: words[4],
    })
}

/// A change to an indirection table.
#[derive(Clone, Copy, Debug)]
pub enum RssTableChange<'a> {
    /// Keep the table.
    Keep,
    /// Reset the table to the kernel's default, which follows the number of queues from then on.
    Reset,
    /// Set this table.
    Set(&'a [u32]),
}

/// Changes the indirection table, the key, or both; `None` keeps the key.
pub fn set_rss(
    socket: impl AsFd,
    device: &str,
    table: RssTableChange<'_>,
    key: Option<&[u8]>,
) -> Result<(), Errno> {
    // Newer kernels store the input transformation in a byte that must be zero on older ones. The value that
    // was just read is valid on either.
    let now = rss(socket.as_fd(), device, 0)?;
    let mut words = vec![0; RXFH_WORDS];
    words[0] = SRSSH;
    words[4] = now.kind;
    match table {
        RssTableChange::Set(table) if table.len() == now.table.len() => {
            words[2] = u32::try_from(table.len()).map_err(|_| Errno::INVAL)?;
            words.extend_from_slice(table);
        }
        RssTableChange::Set(_) => return Err(Errno::INVAL),
        RssTableChange::Keep => words[2] = INDIR_NO_CHANGE,
        RssTableChange::Reset => {}
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

/// Creates an RSS context with this table and a key that the driver chooses; returns its id.
pub fn create_rss_context(socket: impl AsFd, device: &str, table: &[u32]) -> Result<u32, Errno> {
    let mut words = context_request(socket.as_fd(), device, CONTEXT_ALLOC)?;
    words[2] = u32::try_from(table.len()).map_err(|_| Errno::INVAL)?;
    words.extend_from_slice(table);
    request(socket, device, &mut words)?;
    Ok(words[1])
}

/// Removes an RSS context; EBUSY while a rule refers to it.
pub fn delete_rss_context(socket: impl AsFd, device: &str, context: u32) -> Result<(), Errno> {
    let mut words = context_request(socket.as_fd(), device, context)?;
    request(socket, device, &mut words)
}

/// Creates a request about a context that changes neither the hash function nor the input transformation.
fn context_request(socket: impl AsFd, device: &str, context: u32) -> Result<Vec<u32>, Errno> {
    let now = rss(socket, device, 0)?;
    let mut words = vec![0; RXFH_WORDS];
    (words[0], words[1]) = (SRSSH, context);
    // Only a kernel that has `input_xfrm` returns a value other than 0 in this field.
    if now.kind & u32::from_ne_bytes(XFRM_NO_CHANGE) != 0 {
        words[4] = u32::from_ne_bytes(XFRM_NO_CHANGE);
    }
    Ok(words)
}

/// Returns the number of receive queues that RSS can use.
pub fn rx_rings(socket: impl AsFd, device: &str) -> Result<u32, Errno> {
    let mut words = [0; RXNFC_WORDS];
    words[0] = GRXRINGS;
    request(socket, device, &mut words)?;
    Ok(words[RXNFC_DATA])
}

/// Returns the number of a device's rules, and the size of its table, possibly with the flag
/// `RX_CLS_LOC_SPECIAL`. The size is 0 if the driver does not report it.
pub fn rules_count(socket: impl AsFd, device: &str) -> Result<(u32, u32), Errno> {
    let mut words = [0; RXNFC_WORDS];
    words[0] = GRXCLSRLCNT;
    request(socket, device, &mut words)?;
    Ok((words[RXNFC_COUNT], words[RXNFC_DATA]))
}

/// Returns the locations of a device's rules, and the size of its table. Fails with EMSGSIZE if there are
/// more than `count` rules.
pub fn rule_locations(socket: impl AsFd, device: &str, count: u32) -> Result<(Vec<u32>, u32), Errno> {
    let mut words = vec![0; RXNFC_WORDS + count as usize];
    (words[0], words[RXNFC_COUNT]) = (GRXCLSRLALL, count);
    request(socket, device, &mut words)?;
    let there = words[RXNFC_COUNT].min(count) as usize;
    Ok((words[RXNFC_LOCATIONS..][..there].to_vec(), words[RXNFC_DATA]))
}

/// Returns the rule at a location, as the words of `struct ethtool_rxnfc`.
pub fn rule(socket: impl AsFd, device: &str, location: u32) -> Result<[u32; RXNFC_WORDS], Errno> {
    let mut words = [0; RXNFC_WORDS];
    (words[0], words[RXNFC_LOCATION]) = (GRXCLSRULE, location);
    request(socket, device, &mut words)?;
    Ok(words)
}

/// Adds a rule, or replaces the one at its location; returns the location.
pub fn insert_rule(socket: impl AsFd, device: &str, rule: &[u32; RXNFC_WORDS]) -> Result<u32, Errno> {
    let mut words = *rule;
    words[0] = SRXCLSRLINS;
    request(socket, device, &mut words)?;
    Ok(words[RXNFC_LOCATION])
}

/// Removes the rule at a location.
pub fn delete_rule(socket: impl AsFd, device: &str, location: u32) -> Result<(), Errno> {
    let mut words = [0; RXNFC_WORDS];
    (words[0], words[RXNFC_LOCATION]) = (SRXCLSRLDEL, location);
    request(socket, device, &mut words)
}

/// Returns the interrupt moderation of the first queues of a device, each as the words of `struct
/// ethtool_coalesce`.
pub fn queue_coalesce(
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
pub fn set_queue_coalesce(
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
