//! What client threads say: how a request of each workload is written, and what its answer looks like.

use model::{ExchangeWorkload, MemcachedWorkload, StorageWorkload, Workload};

use crate::clock::Moment;
use crate::protocol::Keys;
use crate::storage::{self, Operation};
use model::Chance;

use super::connection::{Connection, Pending, Request};

/// What all requests of a run are made from.
#[derive(Debug)]
pub(super) enum Speech<'a> {
    Memcached(Memcached<'a>),
    /// Requests of one size, cut from the block.
    Exchange(&'a ExchangeWorkload),
    /// Operations, at places drawn per connection.
    Storage {
        workload: &'a StorageWorkload,
        /// What writes carry.
        data: Vec<u8>,
    },
}

/// Keys and values of a memcached run.
#[derive(Debug)]
pub(super) struct Memcached<'a> {
    pub(super) workload: &'a MemcachedWorkload,
    pub(super) keys: Keys,
    /// Bytes that values are cut from.
    pub(super) values: Vec<u8>,
}

impl<'a> Speech<'a> {
    pub(super) fn new(workload: &'a Workload) -> Self {
        match workload {
            Workload::Memcached(workload) => {
                let longest = match workload.value_size {
                    model::ValueSize::Fixed(bytes) => bytes,
                    model::ValueSize::FbValue => MemcachedWorkload::VALUE_BYTES_MAX,
                };
                let values = letters(workload.seed, longest);
                Self::Memcached(Memcached { workload, keys: Keys::new(workload), values })
            }
            Workload::TcpRr(workload) | Workload::TcpStream(workload) => Self::Exchange(workload),
            Workload::Storage(workload) => {
                let data = letters(workload.pace.seed, workload.op_bytes);
                Self::Storage { workload, data }
            }
        }
    }

    /// Keys and values, where a run has them.
    pub(super) const fn memcached(&self) -> Option<&Memcached<'a>> {
        match self {
            Self::Memcached(memcached) => Some(memcached),
            Self::Exchange(_) | Self::Storage { .. } => None,
        }
    }

    /// Adds the next request that a connection asks for.
    #[inline]
    pub(super) fn request(&self, connection: &mut Connection, due: Moment, possible: Moment) {
        match self {
            Self::Memcached(memcached) => memcached.request(connection, due, possible),
            Self::Exchange(workload) => {
                let request = Request::Exchange { answer_bytes: workload.answer_bytes };
                connection.push_block(Pending { request, due, possible }, workload.request_bytes);
            }
            Self::Storage { workload, data } => {
                let places = u32::try_from(workload.span_bytes / u64::from(workload.op_bytes));
                // check() has made sure that places can be counted so.
                let place = connection.chance.below(places.unwrap_or(u32::MAX));
                let offset = u64::from(place) * u64::from(workload.op_bytes);
                let writes = workload.write_share > 0.0 && connection.chance.unit() <= workload.write_share;
                let operation = Operation { writes, offset, bytes: workload.op_bytes };
                let request = Request::Storage { answer_bytes: operation.answer_bytes() };
                connection.push(Pending { request, due, possible }, |out| {
                    out.extend_from_slice(&operation.encode());
                    if writes {
                        out.extend_from_slice(data);
                    }
                });
            }
        }
    }

    /// The first words of refusal, of an answer that begins with this byte.
    pub(super) fn refusal(first: u8) -> String {
        storage::refusal(first)
    }
}

impl Memcached<'_> {
    #[inline]
    fn request(&self, connection: &mut Connection, due: Moment, possible: Moment) {
        let workload = self.workload;
        let key = connection.chance.below(workload.keys);
        if workload.set_share > 0.0 && connection.chance.unit() <= workload.set_share {
            let (head, tail) = (connection.chance.unit(), connection.chance.unit());
            let value = &self.values[..workload.value_size.draw(head, tail) as usize];
            let pending = Pending { request: Request::Set(key), due, possible };
            connection.push(pending, |out| self.keys.write_set(key, value, out));
        } else {
            let pending = Pending { request: Request::Get, due, possible };
            connection.push(pending, |out| out.extend_from_slice(self.keys.get(key)));
        }
    }
}

/// Letters drawn from a seed.
fn letters(seed: u64, count: u32) -> Vec<u8> {
    let mut chance = Chance::stream(seed, &[]);
    (0..count).map(|_| b'a' + u8::try_from(chance.below(26)).unwrap_or(0)).collect()
}
