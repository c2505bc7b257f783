//! The requests of client threads: how each workload encodes a request, and what its answer looks
//! like.

use model::{Asks, ExchangeWorkload, MemcachedWorkload, StorageWorkload, Workload};

use crate::clock::Moment;
use crate::framing::Protocol;
use crate::protocol::Keys;
use crate::storage::Operation;
use model::Chance;

use super::connection::{Connection, Pending, Request};

/// The data from which all requests of a run are built.
#[derive(Debug)]
pub(super) enum Requests<'a> {
    Memcached(Memcached<'a>),
    /// Requests of a fixed size, cut from `BLOCK`.
    Exchange(&'a ExchangeWorkload),
    /// Requests of a fixed size in UDP datagrams, each with its number.
    Datagrams(&'a ExchangeWorkload),
    /// Storage operations, at offsets that are drawn per connection.
    Storage {
        workload: &'a StorageWorkload,
        /// The data of write operations.
        data: Vec<u8>,
    },
    /// `GET` and `SET` of keys.
    Redis {
        keys: u32,
        set_share: f64,
        value: Vec<u8>,
    },
    /// Identical requests.
    Http(Vec<u8>),
}

/// Keys and values of a memcached run.
#[derive(Debug)]
pub(super) struct Memcached<'a> {
    pub(super) workload: &'a MemcachedWorkload,
    pub(super) keys: Keys,
    /// Bytes that values are cut from.
    pub(super) values: Vec<u8>,
}

impl<'a> Requests<'a> {
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
            Workload::UdpRr(workload) | Workload::UdpStream(workload) => Self::Datagrams(workload),
            Workload::Storage(workload) => {
                let data = letters(workload.pace.seed, workload.op_bytes);
                Self::Storage { workload, data }
            }
            Workload::Foreign(workload) => match &workload.asks {
                Asks::Redis { keys, set_share, value_bytes } => {
                    let value = letters(workload.pace.seed, *value_bytes);
                    Self::Redis { keys: *keys, set_share: *set_share, value }
                }
                Asks::Http { path } => {
                    Self::Http(format!("GET {path} HTTP/1.1\r\nHost: netpolicy\r\n\r\n").into_bytes())
                }
            },
        }
    }

    /// Keys and values of a memcached run.
    pub(super) const fn memcached(&self) -> Option<&Memcached<'a>> {
        match self {
            Self::Memcached(memcached) => Some(memcached),
            Self::Exchange(_)
            | Self::Datagrams(_)
            | Self::Storage { .. }
            | Self::Redis { .. }
            | Self::Http(_) => None,
        }
    }

    /// The size of the UDP datagram that holds a request. Returns `None` for requests over TCP.
    pub(super) fn datagram_bytes(&self) -> Option<usize> {
        match self {
            Self::Datagrams(workload) => usize::try_from(workload.request_bytes).ok(),
            Self::Memcached(_)
            | Self::Exchange(_)
            | Self::Storage { .. }
            | Self::Redis { .. }
            | Self::Http(_) => None,
        }
    }

    /// Adds the connection's next request.
    #[inline]
    pub(super) fn request(&self, connection: &mut Connection, due: Moment, possible: Moment) {
        match self {
            Self::Memcached(memcached) => memcached.request(connection, due, possible),
            Self::Exchange(workload) => {
                let request = Request::Exchange { answer_bytes: workload.answer_bytes };
                connection.push_block(Pending::new(request, due, possible), workload.request_bytes);
            }
            Self::Datagrams(workload) => {
                let request = Request::Datagram { answer_bytes: workload.answer_bytes };
                connection.push_datagram(Pending::new(request, due, possible));
            }
            Self::Storage { workload, data } => {
                let places = u32::try_from(workload.span_bytes / u64::from(workload.op_bytes));
                // `check()` ensures that the number of places fits in a u32.
                let place = connection.chance.below(places.unwrap_or(u32::MAX));
                let offset = u64::from(place) * u64::from(workload.op_bytes);
                let writes = workload.write_share > 0.0 && connection.chance.unit() <= workload.write_share;
                let operation = Operation { writes, offset, bytes: workload.op_bytes };
                let request = Request::Storage { answer_bytes: operation.answer_bytes() };
                connection.push(Pending::new(request, due, possible), |out| {
                    out.extend_from_slice(&operation.encode());
                    if writes {
                        out.extend_from_slice(data);
                    }
                });
            }
            Self::Redis { keys, set_share, value } => {
                let key = connection.chance.below(*keys);
                let sets = *set_share > 0.0 && connection.chance.unit() <= *set_share;
                let request = Request::Framed(Protocol::Redis);
                connection.push(Pending::new(request, due, possible), |out| match sets {
                    true => redis(out, &[b"SET", &name_of(key), value]),
                    false => redis(out, &[b"GET", &name_of(key)]),
                });
            }
            Self::Http(text) => {
                let request = Request::Framed(Protocol::Http);
                connection.push(Pending::new(request, due, possible), |out| out.extend_from_slice(text));
            }
        }
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
            let pending = Pending::new(Request::Set(key), due, possible);
            connection.push(pending, |out| self.keys.write_set(key, value, out));
        } else {
            let pending = Pending::new(Request::Get, due, possible);
            connection.push(pending, |out| out.extend_from_slice(self.keys.get(key)));
        }
    }
}

/// The name of a Redis key, in the format of `redis-benchmark`.
fn name_of(key: u32) -> Vec<u8> {
    format!("key:{key:012}").into_bytes()
}

/// Appends a Redis command: an array of length-prefixed strings.
fn redis(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Random letters drawn from a seed.
fn letters(seed: u64, count: u32) -> Vec<u8> {
    let mut chance = Chance::stream(seed, &[]);
    (0..count).map(|_| b'a' + u8::try_from(chance.below(26)).unwrap_or(0)).collect()
}
