//! Answers each request of a fixed size with an answer of a fixed size.

use std::os::fd::OwnedFd;

use model::Nanoseconds;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::clock::Moment;

/// The event that a connection waits for after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// Waits for more bytes to read.
    Read,
    /// Waits for room to write the rest of an answer.
    Write,
    /// Waits for nothing: the connection has ended.
    End,
}

/// The bytes from which answers are sent, repeatedly: their content does not matter.
static BLOCK: [u8; 64 * 1024] = [b'y'; 64 * 1024];

/// A connection's progress in its requests and answers.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// Bytes received of the next request.
    come: u64,
    /// Bytes of answers still to be written.
    to_write: u64,
}

impl Exchange {
    /// Maximum size of a read.
    pub(super) const READ_BYTES_MAX: usize = 256 * 1024;

    /// Reads once, unless an answer is still being written, and answers the complete requests.
    #[inline]
    pub(super) fn turn(
        &mut self,
        socket: &OwnedFd,
        buffer: &mut [u8],
        (request_bytes, answer_bytes): (u32, u32),
        service_time: Nanoseconds,
    ) -> Wants {
        if self.to_write == 0 {
            match recv(socket, buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Wants::End,
                Ok((bytes, _)) => {
                    let requests = self.received(bytes as u64, request_bytes.into(), answer_bytes.into());
                    work(service_time, requests);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Wants::End,
            }
        }
        while self.to_write > 0 {
            let length = usize::try_from(self.to_write).unwrap_or(usize::MAX).min(BLOCK.len());
            match send(socket, &BLOCK[..length], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(bytes) => self.to_write -= bytes as u64,
                Err(Errno::AGAIN | Errno::INTR) => return Wants::Write,
                Err(_) => return Wants::End,
            }
        }
        Wants::Read
    }

    /// Counts received bytes and returns how many requests they complete.
    fn received(&mut self, bytes: u64, request_bytes: u64, answer_bytes: u64) -> u64 {
        self.come += bytes;
        let requests = self.come / request_bytes;
        self.to_write += requests * answer_bytes;
        self.come %= request_bytes;
        requests
    }
}

/// Busy-loops for the service time of some requests.
#[inline]
pub(super) fn work(service_time: Nanoseconds, requests: u64) {
    if service_time.is_zero() {
        return;
    }
    let until = Moment::now().after(Nanoseconds(service_time.0.saturating_mul(requests)));
    while Moment::now() < until {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_answer_goes_for_each_whole_request_however_the_bytes_come() {
        let mut exchange = Exchange::default();
        for (bytes, to_write) in [(3, 0), (1, 0), (1, 7), (14, 21), (1, 28)] {
            exchange.received(bytes, 5, 7);
            assert_eq!(exchange.to_write, to_write, "after {bytes} more");
        }
    }
}
