//! io_urings of other processes: where busy polling can be set from outside, and where not.

use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::process::{identify, read_ring_napi, write_ring_napi};
use linux::{Cause, Errno};
use model::{Fd, RingId, RingNapi};

use super::process::{gone, observed};
use super::subject::{Scratch, Subject};
use super::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Cc, Need::IoUring];
    vec![
        test("uring/a_plain_rings_busy_polling_is_set_from_outside", NEEDS, plain_ring),
        test("uring/a_ring_of_a_single_issuer_is_closed_and_says_why", NEEDS, single_issuer),
    ]
}

/// Kernel: 6.0, `include/uapi/linux/io_uring.h` `IORING_SETUP_SINGLE_ISSUER`.
const SINGLE_ISSUER: &str = "0x1000";
const NAPI: RingNapi = RingNapi { busy_poll_usecs: 64, prefer_busy_poll: true };

fn ring(scratch: &Scratch, flags: &str) -> Result<(Subject, RingId), Failed> {
    let (subject, numbers) = Subject::ready(Command::new(scratch.compile("ring", &[])?).arg(flags))?;
    let id = RingId { process: identify(subject.pid())?, fd: Fd(numbers[0]) };
    Ok((subject, id))
}

fn plain_ring() -> Result<(), Failed> {
    let scratch = Scratch::new("plain-ring")?;
    let (mut subject, id) = ring(&scratch, "0")?;
    assert_eq!(read_ring_napi(&id)?, None);
    write_ring_napi(&id, Some(NAPI))?;
    assert_eq!(read_ring_napi(&id)?, Some(NAPI));
    let process = observed(subject.pid())?;
    let [seen] = &process.rings[..] else { return Err(format!("one ring expected: {process:?}").into()) };
    assert_eq!((seen.id, seen.napi, seen.registered_sockets, &seen.closed), (id, Some(NAPI), 1, &None));
    assert!(process.sockets.is_empty(), "its socket has no descriptor");
    write_ring_napi(&id, None)?;
    assert_eq!(read_ring_napi(&id)?, None);
    subject.kill();
    gone(write_ring_napi(&id, Some(NAPI)))
}

fn single_issuer() -> Result<(), Failed> {
    let scratch = Scratch::new("single-issuer")?;
    let (subject, id) = ring(&scratch, SINGLE_ISSUER)?;
    let process = observed(subject.pid())?;
    let closed =
        process.rings.first().and_then(|ring| ring.closed.as_deref()).ok_or("it should be closed")?;
    assert!(closed.contains("IORING_SETUP_SINGLE_ISSUER"), "{closed}");
    let refused = write_ring_napi(&id, Some(NAPI)).expect_err("only its own task may");
    assert!(matches!(refused.cause, Cause::Denied { errno: Errno::EXIST, .. }), "{refused}");
    assert_eq!(read_ring_napi(&id)?, None, "reading is allowed, and nothing was written");
    Ok(())
}
