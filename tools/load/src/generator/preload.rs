//! The load phase: sets every key and checks every answer.

use model::Nanoseconds;

use crate::clock::Moment;
use crate::protocol::Reply;
use model::Chance;

use super::connection::{Pending, Request};
use super::error::RunError;
use super::requests::Memcached;
use super::worker::Worker;

/// Outstanding requests per connection in the load phase.
const PRELOAD_DEPTH: usize = 16;

/// How long the server may stay silent before the load phase is aborted.
const PRELOAD_STALL_MAX: Nanoseconds = Nanoseconds::from_millis(5_000);

/// Random stream for the sizes of the first values; used for nothing else.
const FIRST_VALUES: u64 = 0x6669_7273;

/// Sets this thread's share of the keys: every n-th key, with n threads.
pub(super) fn preload(worker: &mut Worker<'_>, memcached: &Memcached<'_>) -> Result<(), RunError> {
    let workload = memcached.workload;
    let mut keys = (worker.thread..workload.keys).step_by(workload.threads as usize);
    let mut under_way = 0_usize;
    for number in 0..worker.connections.len() {
        under_way += fill(worker, memcached, number, &mut keys)?;
    }
    let mut last_answer = Moment::now();
    while under_way > 0 {
        if worker.shared.is_abandoned() {
            return Ok(());
        }
        if Moment::now().since(last_answer) >= PRELOAD_STALL_MAX {
            return Err(RunError::PreloadStalled { server: worker.shared.server, after: PRELOAD_STALL_MAX });
        }
        worker.wait(Nanoseconds::from_millis(100))?;
        for index in 0..worker.events.len() {
            let number = worker.ready(index);
            let mut refused = None;
            let connection = &mut worker.connections[number];
            let before = connection.depth();
            let received = connection.receive(&mut worker.buffer, |pending, reply, _, words| {
                if reply != Reply::Stored {
                    refused = Some((pending.request, words.to_owned()));
                }
            });
            received.map_err(|broken| worker.fatal(broken))?;
            if let Some((Request::Set(key), words)) = refused {
                let key = String::from_utf8_lossy(memcached.keys.name(key)).into_owned();
                return Err(RunError::PreloadRefused { server: worker.shared.server, key, words });
            }
            under_way -= before - worker.connections[number].depth();
            under_way += fill(worker, memcached, number, &mut keys)?;
            last_answer = Moment::now();
        }
    }
    Ok(())
}

/// Fills a connection with requests for the next keys and returns how many.
fn fill(
    worker: &mut Worker<'_>,
    memcached: &Memcached<'_>,
    number: usize,
    keys: &mut impl Iterator<Item = u32>,
) -> Result<usize, RunError> {
    let connection = &mut worker.connections[number];
    let (before, now) = (connection.depth(), Moment::now());
    while connection.depth() < PRELOAD_DEPTH {
        let Some(key) = keys.next() else { break };
        let mut chance = Chance::stream(memcached.workload.seed, &[FIRST_VALUES, u64::from(key)]);
        let bytes = memcached.workload.value_size.draw(chance.unit(), chance.unit()) as usize;
        let pending = Pending::new(Request::Set(key), now, now);
        connection.push(pending, |out| memcached.keys.write_set(key, &memcached.values[..bytes], out));
    }
    let added = connection.depth() - before;
    if added > 0 || connection.waits_to_write() {
        let flushed = connection.flush(&worker.epoll, number, |_, _| {});
        flushed.map_err(|cause| worker.lost_for_good(cause))?;
    }
    Ok(added)
}
