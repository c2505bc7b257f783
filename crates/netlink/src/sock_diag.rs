//! Lists the TCP and UDP sockets of a namespace, by inode.
//!
//! Kernel: 6.18, `include/uapi/linux/inet_diag.h` `struct inet_diag_req_v2`, `struct inet_diag_msg`;
//! `net/ipv4/inet_diag.c` `inet_diag_dump_icsk()`, `net/ipv4/udp_diag.c` `udp_dump()`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use model::host::SocketState;
use rustix::io::Errno;
use sys::error::KernelError;
use sys::netns::Netns;

use super::{AttrBuf, Malformed, NetlinkProtocol, NetlinkSocket};

/// The message type of requests and replies. Kernel: `include/uapi/linux/sock_diag.h` `SOCK_DIAG_BY_FAMILY`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// `TCP_ESTABLISHED`. Kernel: `include/net/tcp_states.h`.
const TCP_ESTABLISHED: u8 = 1;
/// The state `TCP_TIME_WAIT`. Sockets in this state belong to no process.
const TCP_TIME_WAIT: u8 = 6;
/// `TCP_LISTEN`.
const TCP_LISTEN: u8 = 10;

/// The size of `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 56;
/// The size of `struct inet_diag_msg`.
const ANSWER_BYTES: usize = 72;

/// A TCP or UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InetSocket {
    /// The inode of the socket's file.
    pub inode: u64,
    /// The kind and state of the socket.
    pub state: SocketState,
    /// The local address; `None` while the socket is not bound.
    pub local: Option<SocketAddr>,
    /// The remote address; `None` while the socket is not connected.
    pub remote: Option<SocketAddr>,
}

impl InetSocket {
    /// Whether new peers can reach the socket at its port: true for TCP listeners and unconnected UDP
    /// sockets.
    pub fn serves(&self, port: u16) -> bool {
        self.served_port() == Some(port)
    }

    /// Returns the port at which new peers can reach the socket; `None` if they cannot reach it.
    pub fn served_port(&self) -> Option<u16> {
        let open = match self.state {
            SocketState::TcpListen => true,
            SocketState::Udp => self.remote.is_none(),
            SocketState::TcpEstablished | SocketState::TcpOther | SocketState::Other => false,
        };
        self.local.map(|local| local.port()).filter(|_| open)
    }
}

/// The TCP and UDP sockets of a namespace that belong to processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InetSockets {
    /// The sockets in ascending order of inode.
    sockets: Vec<InetSocket>,
}

impl InetSockets {
    /// Lists the sockets of a namespace: one dump for each of TCP and UDP over IPv4 and IPv6.
    ///
    /// # Errors
    /// If the namespace cannot be entered, or the kernel returns an error. A protocol that the kernel lacks
    /// has no sockets.
    pub fn of(netns: &Netns) -> Result<Self, KernelError> {
        let mut netlink = NetlinkSocket::open(NetlinkProtocol::SockDiag, netns)?;
        let mut sockets = Vec::new();
        for protocol in [Transport::Tcp, Transport::Udp] {
            for family in [libc::AF_INET, libc::AF_INET6] {
                let what = format!("sock-diag dump of {protocol:?}, family {family}");
                let read = |bytes: &[u8]| RawInetDiag::read(bytes).map(|raw| raw.meaning(protocol));
                match netlink.dump(&what, SOCK_DIAG_BY_FAMILY, &request(family, protocol), read) {
                    Ok(found) => sockets.extend(found),
                    Err(error) if matches!(error.number(), Some(Errno::NOENT | Errno::INVAL)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        sockets.sort_unstable_by_key(|socket| socket.inode);
        Ok(Self { sockets })
    }

    /// Returns the socket with this inode.
    pub fn with_inode(&self, inode: u64) -> Option<&InetSocket> {
        let index = self.sockets.binary_search_by_key(&inode, |socket| socket.inode).ok()?;
        self.sockets.get(index)
    }

    /// The sockets, in ascending order of inode.
    pub fn iter(&self) -> impl Iterator<Item = &InetSocket> {
        self.sockets.iter()
    }
}

/// Maps a TCP state to the states that matter here.
pub const fn of_tcp(state: u8) -> SocketState {
    match state {
        TCP_LISTEN => SocketState::TcpListen,
        TCP_ESTABLISHED => SocketState::TcpEstablished,
        _ => SocketState::TcpOther,
    }
}

/// A socket's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

/// Builds a `struct inet_diag_req_v2` that requests all sockets of a family and protocol, except those in
/// TIME-WAIT.
fn request(family: libc::c_int, transport: Transport) -> AttrBuf {
    const FAMILY: usize = 0;
    const PROTOCOL: usize = 1;
    const STATES: std::ops::Range<usize> = 4..8;
    let protocol = match transport {
        Transport::Tcp => libc::IPPROTO_TCP,
        Transport::Udp => libc::IPPROTO_UDP,
    };
    let mut bytes = [0; REQUEST_BYTES];
    bytes[FAMILY] = u8::try_from(family).unwrap_or_default();
    bytes[PROTOCOL] = u8::try_from(protocol).unwrap_or_default();
    bytes[STATES].copy_from_slice(&(!(1_u32 << TCP_TIME_WAIT)).to_ne_bytes());
    AttrBuf::after(&bytes)
}

/// The fields of `struct inet_diag_msg` that are used here, as the kernel wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawInetDiag {
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    /// The TCP state; UDP uses only ESTABLISHED and CLOSE.
    pub state: u8,
    /// The source port, then the destination port.
    pub ports: [u16; 2],
    /// The source address, then the destination address, in network byte order; IPv4 uses the first four
    /// bytes.
    pub addresses: [[u8; 16]; 2],
    /// The index of the device to which the socket is bound; 0 if it is bound to none.
    pub ifindex: u32,
    /// The inode of the socket's file; 0 if the socket has no file.
    pub inode: u32,
}

impl RawInetDiag {
    /// Parses the structure at the start of a message body.
    ///
    /// # Errors
    /// If the body has too few bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        const SHORT: Malformed = Malformed("a struct inet_diag_msg is too short");
        let fixed: &[u8; ANSWER_BYTES] = bytes.first_chunk().ok_or(SHORT)?;
        Ok(Self {
            family: fixed[0],
            state: fixed[1],
            ports: [u16::from_be_bytes(part(fixed, 4)), u16::from_be_bytes(part(fixed, 6))],
            addresses: [part(fixed, 8), part(fixed, 24)],
            ifindex: u32::from_ne_bytes(part(fixed, 40)),
            inode: u32::from_ne_bytes(part(fixed, 68)),
        })
    }

    /// Converts the structure to a socket; `None` if the socket has no file.
    fn meaning(self, transport: Transport) -> Option<InetSocket> {
        let state = match transport {
            Transport::Udp => SocketState::Udp,
            Transport::Tcp => of_tcp(self.state),
        };
        (self.inode != 0).then(|| InetSocket {
            inode: self.inode.into(),
            state,
            local: self.address(0),
            remote: self.address(1),
        })
    }

    /// Returns the address of one end of the socket; `None` if the port is 0.
    fn address(&self, end: usize) -> Option<SocketAddr> {
        let (port, bytes) = (self.ports[end], self.addresses[end]);
        if port == 0 {
            return None;
        }
        if i32::from(self.family) == libc::AF_INET {
            let [a, b, c, d, ..] = bytes;
            return Some(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), port));
        }
        let address = Ipv6Addr::from(bytes);
        // Convert an IPv4-mapped IPv6 address to IPv4.
        Some(match address.to_canonical() {
            IpAddr::V4(mapped) => SocketAddr::new(mapped.into(), port),
            IpAddr::V6(address) => {
                let scope = if address.is_unicast_link_local() { self.ifindex } else { 0 };
                SocketAddrV6::new(address, port, 0, scope).into()
            }
        })
    }
}

/// Returns `N` bytes from `offset` on.
fn part<const N: usize>(bytes: &[u8; ANSWER_BYTES], offset: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[offset + index])
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    fn raw(family: libc::c_int, state: u8) -> RawInetDiag {
        RawInetDiag {
            family: u8::try_from(family).expect("fits"),
            state,
            ports: [11211, 0],
            addresses: [[0; 16]; 2],
            ifindex: 0,
            inode: 35845,
        }
    }

    #[test]
    fn a_request_asks_for_every_state_but_time_wait() {
        let request = request(libc::AF_INET6, Transport::Udp);
        let bytes = request.as_bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[1]), (REQUEST_BYTES, 10, 17));
        assert_eq!(u32::from_ne_bytes(bytes[4..8].try_into().expect("four")), 0xffff_ffbf);
    }

    #[test]
    fn an_answer_is_read_field_by_field() {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[0] = 2;
        bytes[1] = TCP_ESTABLISHED;
        bytes[4..8].copy_from_slice(&[0x2b, 0xcb, 0x9c, 0x40]);
        bytes[8..12].copy_from_slice(&[10, 0, 0, 1]);
        bytes[24..28].copy_from_slice(&[10, 0, 0, 2]);
        bytes[68..72].copy_from_slice(&35845_u32.to_ne_bytes());
        let socket =
            RawInetDiag::read(&bytes).expect("long enough").meaning(Transport::Tcp).expect("has a file");
        let expected = InetSocket {
            inode: 35845,
            state: SocketState::TcpEstablished,
            local: Some("10.0.0.1:11211".parse().expect("address")),
            remote: Some("10.0.0.2:40000".parse().expect("address")),
        };
        assert_eq!(socket, expected);
        assert!(RawInetDiag::read(&bytes[..71]).is_err());
    }

    #[test]
    fn an_ipv4_peer_of_an_ipv6_socket_is_shown_as_ipv4() {
        let mut mapped = raw(libc::AF_INET6, TCP_ESTABLISHED);
        mapped.addresses[0] = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
        assert_eq!(mapped.address(0), Some("127.0.0.1:11211".parse().expect("address")));
        let any = raw(libc::AF_INET6, TCP_LISTEN);
        assert_eq!(any.address(0), Some("[::]:11211".parse().expect("address")));
    }

    #[test]
    fn a_port_is_served_by_listeners_and_by_udp_sockets_without_a_peer() {
        let served = |transport, state, peer| {
            let mut raw = raw(libc::AF_INET, state);
            raw.ports[1] = peer;
            raw.meaning(transport).expect("has a file").serves(11211)
        };
        assert!(served(Transport::Tcp, TCP_LISTEN, 0));
        assert!(served(Transport::Udp, 7, 0));
        assert!(!served(Transport::Tcp, TCP_ESTABLISHED, 40000));
        assert!(!served(Transport::Udp, TCP_ESTABLISHED, 40000));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(raw) = RawInetDiag::read(&bytes) {
                let _ = raw.meaning(Transport::Tcp);
            }
        }
    }
}
