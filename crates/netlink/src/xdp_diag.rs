//! Lists the AF_XDP sockets of a namespace, and the queues to which they are bound.
//!
//! Kernel: 7.3, `include/uapi/linux/xdp_diag.h`, `net/xdp/xsk_diag.c` `xsk_diag_dump()`.

use rustix::io::Errno;
use sys::error::KernelError;

use super::attr::{AttrBuf, Attrs, Malformed};
use super::socket::{NetlinkProtocol, NetlinkSocket};

/// The message type of requests and replies. Kernel: `include/uapi/linux/sock_diag.h` `SOCK_DIAG_BY_FAMILY`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Kernel: `include/linux/socket.h` `AF_XDP`.
const AF_XDP: u8 = 44;

/// The information that is requested: `XDP_SHOW_INFO` and `XDP_SHOW_UMEM`.
const SHOW: u32 = 1 | 1 << 2;

/// The size of `struct xdp_diag_req`.
const REQUEST_BYTES: usize = 20;
/// The size of `struct xdp_diag_msg`.
const ANSWER_BYTES: usize = 16;

/// Attributes of a reply: `XDP_DIAG_*`.
mod attribute {
    pub(super) const INFO: u16 = 1;
    pub(super) const UMEM: u16 = 5;
}

/// An AF_XDP socket that is bound to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpSocket {
    /// The inode of the socket's file.
    pub inode: u64,
    /// The device.
    pub ifindex: u32,
    /// The queue's index.
    pub queue: u32,
    /// Whether the NIC accesses the socket's memory directly; `None` for a socket that shares another
    /// socket's umem.
    pub zero_copy: Option<bool>,
}

impl XdpSocket {
    /// Parses a reply; `None` for a socket that has no file, or is not bound.
    ///
    /// # Errors
    /// If the structure or an attribute is too short.
    pub fn parse(body: &[u8]) -> Result<Option<Self>, Malformed> {
        const SHORT: Malformed = Malformed("a struct xdp_diag_msg is too short");
        /// The offset of `flags` in `struct xdp_diag_umem`, after `__u64 size` and six `__u32`.
        const UMEM_FLAGS: usize = 8 + 6 * 4;
        /// `XDP_DU_F_ZEROCOPY`.
        const ZERO_COPY: u32 = 1;
        let fixed: &[u8; ANSWER_BYTES] = body.first_chunk().ok_or(SHORT)?;
        let inode = u32::from_ne_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
        let (mut bound, mut zero_copy) = (None, None);
        for attr in Attrs::after(ANSWER_BYTES, body)? {
            let attr = attr?;
            match attr.number {
                attribute::INFO => bound = Some((attr.word_at(0)?, attr.word_at(4)?)),
                attribute::UMEM => zero_copy = Some(attr.word_at(UMEM_FLAGS)? & ZERO_COPY != 0),
                _ => {}
            }
        }
        let bound = bound.filter(|(ifindex, _)| *ifindex != 0 && inode != 0);
        Ok(bound.map(|(ifindex, queue)| Self { inode: inode.into(), ifindex, queue, zero_copy }))
    }
}

/// `struct xdp_diag_req`.
fn request() -> AttrBuf {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0] = AF_XDP;
    bytes[8..12].copy_from_slice(&SHOW.to_ne_bytes());
    AttrBuf::after(&bytes)
}

/// Lists the AF_XDP sockets of one namespace.
#[derive(Debug)]
pub struct XdpSockets(NetlinkSocket);

impl XdpSockets {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If the kernel does not support netlink.
    pub fn open_here() -> Result<Self, KernelError> {
        NetlinkSocket::open_here(NetlinkProtocol::SockDiag).map(Self)
    }

    /// Returns the cookie of the socket's namespace; `None` on kernels before 5.14.
    pub fn netns_cookie(&self) -> Option<u64> {
        self.0.netns_cookie()
    }

    /// Lists the sockets that are bound to a queue.
    ///
    /// The kernel ends its reply at a socket that is not bound yet, and so omits sockets that were opened
    /// before that one (7.3, `xsk_diag_fill()`). `queue-get` reports all of them.
    ///
    /// # Errors
    /// The kernel's error. On a kernel without sock-diag of AF_XDP the list is empty.
    pub fn bound(&mut self) -> Result<Vec<XdpSocket>, KernelError> {
        match self.0.dump("sock-diag dump of AF_XDP", SOCK_DIAG_BY_FAMILY, &request(), XdpSocket::parse) {
            Err(error) if matches!(error.number(), Some(Errno::NOENT | Errno::INVAL)) => Ok(Vec::new()),
            answer => answer,
        }
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    /// Builds the reply for a socket with inode 35845 that is bound to queue 1 of device 7 and has its own
    /// umem, with these flags.
    fn answer(flags: u32) -> Vec<u8> {
        let mut fixed = [0; ANSWER_BYTES];
        fixed[0] = AF_XDP;
        fixed[4..8].copy_from_slice(&35845_u32.to_ne_bytes());
        let mut body = AttrBuf::after(&fixed);
        let info: Vec<u8> = [7_u32, 1].iter().flat_map(|word| word.to_ne_bytes()).collect();
        body.bytes(attribute::INFO, &info);
        // The fields of `struct xdp_diag_umem`: size, id, num_pages, chunk_size, headroom, ifindex, queue_id,
        // flags, refs.
        let mut umem = 16_384_u64.to_ne_bytes().to_vec();
        umem.extend([1, 4, 4096, 0, 7, 1, flags, 1].iter().flat_map(|word: &u32| word.to_ne_bytes()));
        body.bytes(attribute::UMEM, &umem);
        body.as_bytes().to_vec()
    }

    #[test]
    fn a_bound_socket_has_its_queue_and_says_whether_it_copies() {
        let read = |flags| XdpSocket::parse(&answer(flags)).expect("well-formed").expect("bound");
        let copying = XdpSocket { inode: 35845, ifindex: 7, queue: 1, zero_copy: Some(false) };
        assert_eq!(read(0), copying);
        assert_eq!(read(1), XdpSocket { zero_copy: Some(true), ..copying });
    }

    #[test]
    fn a_socket_that_is_not_bound_holds_nothing() {
        let mut fixed = [0; ANSWER_BYTES];
        fixed[0] = AF_XDP;
        assert_eq!(XdpSocket::parse(&fixed), Ok(None));
        assert!(XdpSocket::parse(&fixed[..ANSWER_BYTES - 1]).is_err());
    }

    #[test]
    fn a_request_asks_for_the_queue_and_the_memory() {
        let request = request();
        let bytes = request.as_bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[8]), (REQUEST_BYTES, 44, 5));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = XdpSocket::parse(&bytes);
        }
    }
}
