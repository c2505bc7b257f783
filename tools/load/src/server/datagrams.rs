//! Answers each request in a UDP datagram with another datagram, as neper's `udp_rr` does.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use model::{ExchangeWorkload, Nanoseconds};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, ipproto, recvfrom, sendto,
    socket_with, sockopt,
};

use super::exchange::work;

/// Maximum number of datagrams that are answered before the thread waits again.
const DATAGRAMS_MAX: usize = 64;

/// The bytes of a request that its answer repeats: its number.
const NUMBER_BYTES: usize = ExchangeWorkload::DATAGRAM_BYTES_MIN as usize;

/// The UDP socket of a serving thread.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) socket: OwnedFd,
    request: Box<[u8]>,
    answer: Box<[u8]>,
    service_time: Nanoseconds,
}

impl Datagrams {
    /// Binds a socket. All threads bind the same address, and the kernel selects one of them by a hash of
    /// the addresses and ports. Kernel: socket(7), `SO_REUSEPORT`.
    pub(super) fn bind(
        address: SocketAddr,
        (request_bytes, answer_bytes): (u32, u32),
        service_time: Nanoseconds,
    ) -> Result<Self, Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        sockopt::set_socket_reuseport(&socket, true)?;
        bind(&socket, &address)?;
        // The buffer is one byte larger, so that a longer request is not mistaken for one that was cut to
        // this size.
        let request = vec![0; request_bytes as usize + 1].into_boxed_slice();
        Ok(Self {
            socket,
            request,
            answer: vec![b'y'; answer_bytes as usize].into_boxed_slice(),
            service_time,
        })
    }

    /// Answers the requests that have arrived. Ignores datagrams of another size, and drops an answer for
    /// which the kernel has no room, as a network would.
    #[inline]
    pub(super) fn turn(&mut self) {
        for _ in 0..DATAGRAMS_MAX {
            let received = recvfrom(&self.socket, &mut *self.request, RecvFlags::DONTWAIT);
            let (length, client) = match received {
                Ok((length, _, Some(client))) => (length, client),
                Ok((_, _, None)) => continue,
                Err(_) => return,
            };
            if length + 1 != self.request.len() {
                continue;
            }
            work(self.service_time, 1);
            self.answer[..NUMBER_BYTES].copy_from_slice(&self.request[..NUMBER_BYTES]);
            let _ = sendto(&self.socket, &self.answer, SendFlags::DONTWAIT, &client);
        }
    }
}
