//! Tests for which io_urings of other processes busy polling can be set from outside.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use apply::{Begin, FORMAT, Moment, ObjectCookies, TransactionOrigin, undo_script};
use bpf::delivery::{DeliveryCounter, between};
use libtest_mimic::{Failed, Trial};
use linux::process::{identify, read_ring_napi, write_ring_napi};
use linux::{Cause, Errno, Netns};
use model::{
    Change, Fd, Nanoseconds, NapiDelivered, Plan, PollCounts, ProcessKnob, Reason, RingId, RingNapi, Setting,
    Step,
};
use testkit::scratch::Scratch;
use testkit::subject::Subject;
use testkit::wire::{Wire, run};
use testkit::{Need, test};

use super::process::{gone, observed};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Cc, Need::IoUring];
    const POLLING: &[Need] = &[Need::Root, Need::Cc, Need::IoUring, Need::Bpf, Need::Wire];
    vec![
        test("uring/a_plain_rings_busy_polling_is_set_from_outside", NEEDS, plain_ring),
        test("uring/a_ring_of_a_single_issuer_is_closed_and_says_why", NEEDS, single_issuer),
        test("uring/a_ring_that_was_put_back_polls_no_more", POLLING, polls_no_more),
    ]
}

/// The flag `IORING_SETUP_SINGLE_ISSUER`. Kernel: 6.0, `include/uapi/linux/io_uring.h`.
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
    assert!(process.sockets.is_empty(), "the socket has no descriptor");
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
        process.rings.first().and_then(|ring| ring.closed.as_deref()).ok_or("the socket should be closed")?;
    assert!(closed.contains("IORING_SETUP_SINGLE_ISSUER"), "{closed}");
    let refused = write_ring_napi(&id, Some(NAPI)).expect_err("only the ring's own task may do so");
    assert!(matches!(refused.cause, Cause::Denied { errno: Errno::EXIST, .. }), "{refused}");
    assert_eq!(read_ring_napi(&id)?, None, "reading is allowed, and nothing was written");
    Ok(())
}

/// The number of bytes that are sent in both directions while polls are counted.
const BYTES: usize = 2000;

/// The maximum time to wait for one byte.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts which context polls the only NAPI of the wire's near end while a server with an io_uring receives
/// requests.
fn polled(wire: &Wire, client: &mut TcpStream) -> Result<NapiDelivered, Failed> {
    let mut counter = DeliveryCounter::load()?;
    let earlier = counter.snapshot()?;
    let mut byte = [0];
    for _ in 0..BYTES {
        client.write_all(&byte)?;
        client.read_exact(&mut byte)?;
    }
    let delivered = between(&earlier, &counter.snapshot()?);
    let napi = wire.near0()?.napis.first().ok_or("near0 has no NAPI")?.id;
    Ok(delivered.napi(napi).ok_or_else(|| format!("the NAPI was not polled: {delivered:?}"))?.clone())
}

/// Tests that a ring stops polling. No file shows the ring's list of NAPIs, so the test counts polls: each
/// wait of the ring polls the NAPIs in its list.
fn polls_no_more() -> Result<(), Failed> {
    let (scratch, wire) = (Scratch::new("ring-echo")?, Wire::new(1)?);
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &wire.near]).arg(scratch.compile("ring_echo", &[])?);
    let (subject, numbers) = Subject::ready(&mut command)?;
    let id = RingId { process: identify(subject.pid())?, fd: Fd(numbers[0]) };
    let mut client = Netns::named(&wire.far)?.run(|| TcpStream::connect("192.0.2.1:7007"))??;
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(PATIENCE))?;

    let before = polled(&wire, &mut client)?;
    assert_eq!(before.application, PollCounts::default(), "{before:?}");
    write_ring_napi(&id, Some(NAPI))?;
    let polling = polled(&wire, &mut client)?;
    assert!(polling.application.polls > 100, "{polling:?}");
    write_ring_napi(&id, None)?;
    assert_eq!(read_ring_napi(&id)?, None);
    let after = polled(&wire, &mut client)?;
    assert_eq!(after.application, PollCounts::default(), "{after:?}");

    // The ring can be set to poll again, and then finds its NAPI again; a shell script can restore the ring,
    // too.
    write_ring_napi(&id, Some(NAPI))?;
    let again = polled(&wire, &mut client)?;
    assert!(again.application.polls > 100, "{again:?}");
    put_back_by_shell(&scratch, id)?;
    assert_eq!(read_ring_napi(&id)?, None);
    let after = polled(&wire, &mut client)?;
    assert_eq!(after.application, PollCounts::default(), "{after:?}");
    Ok(())
}

/// Runs the `undo.sh` of a transaction that made this ring poll.
fn put_back_by_shell(scratch: &Scratch, id: RingId) -> Result<(), Failed> {
    let (was, is) = (
        Setting::Process(ProcessKnob::IoUring(id, None)),
        Setting::Process(ProcessKnob::IoUring(id, Some(NAPI))),
    );
    let change = Change::new(was, is, Reason::new("it polls", "a test"));
    let asked = TransactionOrigin {
        at: Moment { unix_micros: 0, since_boot: Nanoseconds::ZERO },
        command: "test".to_owned(),
        kernel_release: String::new(),
        netpolicy: String::new(),
        deadline: None,
    };
    let begin = Begin {
        format: FORMAT,
        boot_id: run("cat /proc/sys/kernel/random/boot_id")?,
        asked,
        owned_by: None,
        left_in_force: false,
        kept_by_daemon: false,
        replaces: Vec::new(),
        object_cookies: ObjectCookies::default(),
        plan: Plan { steps: vec![Step::new(vec![change])] },
    };
    let script = scratch.path("undo.sh");
    std::fs::write(&script, undo_script("19700101T000000.000000Z-0001".parse()?, &begin))?;
    let output = Command::new("sh").arg(&script).arg("--by-hand").output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("restored to off"), "{output:?}");
    Ok(())
}
