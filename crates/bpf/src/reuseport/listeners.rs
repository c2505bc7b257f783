//! Lists the listeners that share an address with others, by means of a BPF iterator.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use model::{Fd, NetnsId, Pid, Transport};
use sys::error::KernelError;

use super::{ITERATOR, OBJECT, PROGRAM};
use crate::in_initial_pid_namespace;
use crate::iterated;
use crate::loaded::Loaded;
use crate::mirrored::{Mirrored as _, mirrored};

/// `sizeof(struct listener_record)`.
const RECORD_BYTES: usize = ListenerRecord::BYTES;
/// The maximum output of a scan, in bytes: a million descriptors.
const SCAN_BYTES_MAX: u64 = (1 << 20) * RECORD_BYTES as u64;
/// `include/linux/socket.h` `AF_INET6`.
const AF_INET6: u16 = 10;
/// `include/uapi/linux/in.h` `IPPROTO_UDP`.
const IPPROTO_UDP: u16 = 17;

/// A descriptor of a listening TCP socket or bound UDP socket that shares its address (`SO_REUSEPORT`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundListener {
    /// The identity of the reuseport group, valid while the group exists.
    pub group: u64,
    /// The socket's inode.
    pub inode: u64,
    /// The process that has this descriptor.
    pub pid: Pid,
    /// The descriptor.
    pub fd: Fd,
    /// Whether this is a TCP or a UDP socket.
    pub transport: Transport,
    /// The socket's network namespace.
    pub netns: NetnsId,
    /// The socket's address.
    pub address: SocketAddr,
    /// The id of the program that selects among the group's sockets; `None` if there is no program.
    pub program: Option<u32>,
    /// The number of sockets in the group.
    pub members: u32,
}

/// Finds the listeners that share an address, in all processes that this process can see.
#[derive(Debug)]
pub struct ListenerScanner {
    loaded: Loaded,
}

impl ListenerScanner {
    /// Loads the iterator, which runs only during scans.
    ///
    /// # Errors
    /// [`sys::Cause::Absent`] without kernel BTF and outside the initial pid namespace; otherwise the
    /// kernel's error.
    pub fn load() -> Result<Self, KernelError> {
        if !in_initial_pid_namespace() {
            return Err(KernelError::absent(
                "listeners that share an address",
                "the initial pid namespace",
                None,
            ));
        }
        let loaded = Loaded::load("reuseport", OBJECT, |open| {
            for mut map in open.maps_mut() {
                map.set_autocreate(false)?;
            }
            for mut program in open.progs_mut() {
                let wanted = program.name() == ITERATOR;
                debug_assert!(
                    wanted || program.name() == PROGRAM,
                    "reuseport.bpf.c has two programs, one for each protocol"
                );
                program.set_autoload(wanted);
            }
            Ok(())
        })?;
        Ok(Self { loaded })
    }

    /// Returns all descriptors of listeners that share an address.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn all(&self) -> Result<Vec<FoundListener>, KernelError> {
        let what = "listeners that share an address";
        let iterator = sys::bpf::iterate_all_files(self.loaded.program(ITERATOR)?.as_fd())
            .map_err(|errno| KernelError::errno(what, errno))?;
        let bytes = iterated::bytes(iterator, SCAN_BYTES_MAX)
            .map_err(|error| KernelError { what: what.to_owned(), ..error })?;
        Ok(bytes.chunks_exact(RECORD_BYTES).map(listener).collect())
    }
}

mirrored! {
    /// `struct listener_record`.
    struct ListenerRecord = "listener_record" {
        group: u64,
        inode: u64,
        tgid: u32,
        fd: u32,
        netns: u32,
        program: u32,
        members: u16,
        family: u16,
        port: u16,
        protocol: u16,
        address: [u8; 16],
    }
}

/// Reads `struct listener_record`.
fn listener(record: &[u8]) -> FoundListener {
    let ListenerRecord {
        group,
        inode,
        tgid,
        fd,
        netns,
        program,
        members,
        family,
        port,
        protocol,
        address: bytes,
    } = ListenerRecord::of(record);
    let (pid, fd, netns) = (Pid(tgid), Fd(fd), NetnsId(netns.into()));
    let [a, b, c, d, ..] = bytes;
    let address: IpAddr =
        if family == AF_INET6 { Ipv6Addr::from(bytes).into() } else { Ipv4Addr::new(a, b, c, d).into() };
    FoundListener {
        group,
        inode,
        pid,
        fd,
        transport: if protocol == IPPROTO_UDP { Transport::Udp } else { Transport::Tcp },
        netns,
        address: SocketAddr::new(address, port),
        program: (program != 0).then_some(program),
        members: members.into(),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::mirrored::same_as_compiled;

    same_as_compiled!(OBJECT, ListenerRecord);

    #[test]
    fn a_listener_is_read_as_the_program_writes_it() {
        let mut bytes = Vec::new();
        bytes.extend([0xffff_8881_0000_0000_u64, 35_845].into_iter().flat_map(u64::to_ne_bytes));
        bytes.extend([812_u32, 7, 4_026_531_840, 91].into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend([4_u16, 2, 11_211, 6].into_iter().flat_map(u16::to_ne_bytes));
        bytes.extend([192, 0, 2, 1]);
        bytes.extend([0; 12]);
        assert_eq!(bytes.len(), RECORD_BYTES, "sizeof(struct listener_record)");
        let found = listener(&bytes);
        assert_eq!(found.address, "192.0.2.1:11211".parse().expect("an address"));
        assert_eq!((found.inode, found.pid, found.fd, found.members), (35_845, Pid(812), Fd(7), 4));
        assert_eq!((found.netns, found.program), (NetnsId(4_026_531_840), Some(91)));

        assert_eq!(found.transport, Transport::Tcp);

        bytes[34..36].copy_from_slice(&AF_INET6.to_ne_bytes());
        bytes[38..40].copy_from_slice(&IPPROTO_UDP.to_ne_bytes());
        let found = listener(&bytes);
        assert!(found.address.is_ipv6());
        assert_eq!(found.transport, Transport::Udp);
    }
}
