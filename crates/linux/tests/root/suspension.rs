//! Tests what ends the suspension of an IRQ: the timeout if the application stalls, the closing of its epoll,
//! or another application on the same NAPI. The tests count who polls the NAPI.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use bpf::batches::BatchMeter;
use bpf::delivery::{DeliveryCounter, Snapshot, between};
use libtest_mimic::{Failed, Trial};
use linux::Netns;
use model::{BatchesOf, EmptyPolls, EventBatches, Fd, Nanoseconds, NapiDelivered, NapiId, PollCounts};
use netlink::netdev::{NapiChange, Netdev};
use testkit::scratch::Scratch;
use testkit::subject::{Subject, eventually};
use testkit::wire::Wire;
use testkit::{Need, test};

/// The gro-flush-timeout during deferral.
const FLUSH: Nanoseconds = Nanoseconds::from_millis(2);

/// The number of empty polls after which deferral ends.
const DEFERRED: u32 = 3;

/// An irq-suspend-timeout that is longer than any test waits.
const FOREVER: Nanoseconds = Nanoseconds::from_millis(600_000);

/// The maximum number of attempts: if a softirq still runs when the suspension begins, it arms the short
/// timer afterwards, and that ends the suspension.
const TRIES: usize = 200;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Cc, Need::Wire, Need::Suspension];
    const MEASURED: &[Need] = &[Need::Root, Need::Bpf, Need::Fentry, Need::Cc, Need::Wire, Need::Suspension];
    vec![
        test("suspension/the_timeout_ends_it_if_the_application_stalls", NEEDS, stalls),
        test("suspension/closing_the_epoll_resumes_deferral", NEEDS, || ends(|one| one.app.tell("close"))),
        test("suspension/killing_the_process_resumes_deferral", NEEDS, || {
            ends(|one| {
                one.app.kill();
                Ok(())
            })
        }),
        test("suspension/an_idle_epoll_wait_of_another_application_ends_it", NEEDS, another_polls),
        test("suspension/another_application_that_does_not_poll_waits_as_well", NEEDS, another_waits),
        test("suspension/a_batch_lasts_from_one_epoll_wait_to_the_next", MEASURED, batch_of_an_epoll),
        test("suspension/where_functions_have_no_programs_the_napi_shows_the_batch", NEEDS, batch_on_a_napi),
        test("suspension/a_batch_that_outlasts_the_timeout_is_counted", NEEDS, outlasted),
    ]
}

/// An application at the near end of a wire that suspends its IRQ, and the application's client.
struct Suspended {
    wire: Wire,
    scratch: Scratch,
    client: UdpSocket,
    counter: DeliveryCounter,
    napi: NapiId,
    app: Subject,
    epoll: Fd,
}

const APP: u16 = 11_988;
const OTHER: u16 = 11_989;

impl Suspended {
    fn start(timeout: Nanoseconds) -> Result<Self, Failed> {
        let wire = Wire::new(1)?;
        let scratch = Scratch::new("suspends")?;
        scratch.compile("suspends", &[])?;
        let napi = NapiId(wire.near()?.run(|| Netdev::open_here()?.napis(None))??[0].id);
        let change = NapiChange {
            defer_hard_irqs: Some(EmptyPolls(DEFERRED)),
            gro_flush_timeout: Some(FLUSH),
            irq_suspend_timeout: Some(timeout),
            threaded: None,
        };
        let set = || -> Result<(), String> {
            let mut netdev = Netdev::open_here().map_err(|error| error.to_string())?;
            netdev.set_napi(napi, &change).map_err(|refused| format!("napi-set: {refused:?}"))
        };
        wire.near()?.run(set)??;
        let client = Netns::named(&wire.far)?.run(|| UdpSocket::bind("192.0.2.2:0"))??;
        let (app, epoll) = application(&wire, &scratch, APP, "prefer")?;
        let counter = DeliveryCounter::load()?;
        let mut one = Self { wire, scratch, client, counter, napi, app, epoll };
        one.receive()?; // This also resolves the neighbour.
        Ok(one)
    }

    fn send(&self, port: u16) -> Result<(), Failed> {
        self.client.send_to(b"?", ("192.0.2.1", port))?;
        Ok(())
    }

    /// Makes the application receive a datagram.
    fn receive(&mut self) -> Result<(), Failed> {
        self.app.say("wait")?;
        self.send(APP)?;
        self.app.done()
    }

    fn since(&mut self, earlier: &Snapshot) -> Result<NapiDelivered, Failed> {
        let delivered = between(earlier, &self.counter.snapshot()?);
        assert_eq!(delivered.lost, 0, "{delivered:?}");
        let mut none = NapiDelivered {
            napi: self.napi,
            device: String::new(),
            interrupt: PollCounts::default(),
            timer: PollCounts::default(),
            application: PollCounts::default(),
            kthread: PollCounts::default(),
            by_process: Vec::new(),
            timer_armed: 0,
            timer_expired: 0,
            timer_armed_max: Nanoseconds::ZERO,
            suspended: 0,
        };
        if let Some(found) = delivered.napi(self.napi) {
            none = found.clone();
        }
        Ok(none)
    }

    /// Makes the application receive a datagram and stall, and repeats that until a later packet is not
    /// delivered, which shows that the IRQ is suspended. Returns the counts at that moment.
    fn stall(&mut self) -> Result<Snapshot, Failed> {
        for _ in 0..TRIES {
            self.receive()?;
            let earlier = self.counter.snapshot()?;
            self.send(APP)?;
            std::thread::sleep(Duration::from_nanos(FLUSH.0 * 5));
            let counts = self.since(&earlier)?;
            if counts.total().polls == 0 && counts.timer_expired == 0 {
                return Ok(earlier);
            }
        }
        Err("no IRQ was ever suspended".into())
    }

    /// Waits until this many packets have been delivered since the earlier snapshot.
    fn delivered(&mut self, earlier: &Snapshot, packets: u64) -> Result<NapiDelivered, Failed> {
        let mut last = None;
        let found = eventually("packets are delivered", || {
            let counts = self.since(earlier);
            let enough = counts.as_ref().is_ok_and(|counts| counts.total().packets >= packets);
            last = Some(counts);
            enough.then_some(())
        });
        let counts = last.ok_or("not counted")??;
        found.map_err(|error| format!("{error:?}: {counts:?}"))?;
        Ok(counts)
    }
}

fn application(wire: &Wire, scratch: &Scratch, port: u16, how: &str) -> Result<(Subject, Fd), Failed> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &wire.near]).arg(scratch.path("suspends")).args([&port.to_string(), how]);
    let (app, numbers) = Subject::ready(&mut command)?;
    Ok((app, Fd(numbers[0])))
}

/// Tests that packets wait no longer than the timeout while the application stalls: then the timer polls, and
/// when deferral has run out, interrupts deliver.
fn stalls() -> Result<(), Failed> {
    let mut one = Suspended::start(Nanoseconds::from_millis(400))?;
    let earlier = one.stall()?;
    let counts = one.delivered(&earlier, 1)?;
    assert!(counts.timer_expired > 0 && counts.timer.packets > 0, "{counts:?}");
    assert_eq!((counts.application.polls, counts.interrupt.packets), (0, 0), "{counts:?}");

    // The timer polls and finds no packets until the IRQ is enabled again.
    for _ in 0..TRIES {
        std::thread::sleep(Duration::from_nanos(FLUSH.0 * u64::from(DEFERRED) * 4));
        let earlier = one.counter.snapshot()?;
        one.send(APP)?;
        let counts = one.delivered(&earlier, 1)?;
        assert_eq!((counts.application.polls, counts.suspended), (0, 0), "it still stalls: {counts:?}");
        if counts.interrupt.packets > 0 {
            // When the application continues, it suspends the IRQ again.
            one.stall()?;
            return Ok(());
        }
    }
    Err("no interrupt occurred any more".into())
}

/// Tests that the closing of an epoll ends its suspension: waiting packets are delivered although the timeout
/// is far away, and later packets are delivered by deferral or interrupts.
fn ends(end: impl FnOnce(&mut Suspended) -> Result<(), Failed>) -> Result<(), Failed> {
    let mut one = Suspended::start(FOREVER)?;
    let earlier = one.stall()?;
    end(&mut one)?;
    one.delivered(&earlier, 1)?;
    let earlier = one.counter.snapshot()?;
    const MORE: u64 = 10;
    for _ in 0..MORE {
        one.send(APP)?;
        std::thread::sleep(Duration::from_nanos(FLUSH.0 / 2));
    }
    let counts = one.delivered(&earlier, MORE)?;
    assert_eq!((counts.suspended, counts.application.polls), (0, 0), "{counts:?}");
    assert!(counts.timer.packets > 0 && counts.timer_armed_max <= FLUSH, "IRQs are deferred: {counts:?}");
    Ok(())
}

/// Tests that an `epoll_wait` without events resumes the IRQ of its NAPI, even if another application
/// suspended it.
fn another_polls() -> Result<(), Failed> {
    let mut one = Suspended::start(FOREVER)?;
    let (mut other, _) = application(&one.wire, &one.scratch, OTHER, "prefer")?;
    one.stall()?;
    // One poll by the first application delivers the packets of both applications, so both suspend the IRQ
    // and then stall.
    other.say("wait")?;
    one.send(OTHER)?;
    one.receive()?;
    other.done()?;
    let earlier = one.counter.snapshot()?;
    one.send(APP)?;
    std::thread::sleep(Duration::from_nanos(FLUSH.0 * 5));
    assert_eq!(one.since(&earlier)?.total().polls, 0, "the packet waits");
    other.tell("poll")?;
    let counts = one.delivered(&earlier, 1)?;
    let [(pid, _)] = counts.by_process[..] else { panic!("one process polled: {counts:?}") };
    assert_eq!(pid, other.pid(), "{counts:?}");
    // Later packets no longer wait until the stalled application continues.
    let earlier = one.counter.snapshot()?;
    one.send(APP)?;
    let counts = one.delivered(&earlier, 1)?;
    assert!(counts.timer.packets + counts.interrupt.packets > 0, "{counts:?}");
    Ok(())
}

/// Tests that the packets of an application that does not poll wait until the other application, which
/// suspended the IRQ, calls `epoll_wait` again.
fn another_waits() -> Result<(), Failed> {
    let mut one = Suspended::start(FOREVER)?;
    let (mut other, _) = application(&one.wire, &one.scratch, OTHER, "ordinary")?;
    let earlier = one.stall()?;
    one.send(OTHER)?;
    other.tell("poll")?;
    let counts = one.since(&earlier)?;
    assert_eq!(counts.total().polls, 0, "nothing polls: {counts:?}");
    other.say("wait")?;
    one.app.tell("poll")?;
    other.done()?;
    let counts = one.delivered(&earlier, 2)?;
    assert!(counts.by_process.iter().any(|(pid, _)| *pid == one.app.pid()), "{counts:?}");
    Ok(())
}

/// How long the program takes to handle the first datagram.
const BUSY: Nanoseconds = Nanoseconds::from_millis(8);

/// Makes the process handle a batch, and measures the batch.
fn measured(one: &mut Suspended, meter: &BatchMeter, of: BatchesOf) -> Result<EventBatches, Failed> {
    let key = (one.app.pid(), of);
    one.app.say("busy")?;
    one.send(APP)?;
    eventually("the batch begins", || {
        let found = meter.read().ok()?.get(&key).copied()?;
        (found.unfinished.is_some() || found.count > 0).then_some(())
    })?;
    one.send(APP)?;
    one.app.done()?;
    let found = *meter.read()?.get(&key).ok_or("the batch was not measured")?;
    assert_eq!(meter.lost()?, 0);
    let stalled = found.unfinished.ok_or("the second batch has not ended")?;
    let later = meter.read()?.get(&key).and_then(|found| found.unfinished).ok_or("it still stalls")?;
    assert!(later > stalled, "{later} after {stalled}");
    assert_eq!(found.longest_so_far(), found.longest.max(stalled));
    Ok(found)
}

fn batch_of_an_epoll() -> Result<(), Failed> {
    let mut one = Suspended::start(FOREVER)?;
    let meter = BatchMeter::at_epoll_wait()?;
    let of = BatchesOf::Epoll(one.epoll);
    let found = measured(&mut one, &meter, of)?;
    assert_eq!((found.count, found.events, found.longest_events, found.maxevents), (1, 1, 1, 7), "{found:?}");
    assert!(found.longest >= BUSY && found.total == found.longest, "{found:?}");
    Ok(())
}

/// Tests a batch that is measured by NAPI: without fentry programs, the batch ends when the application polls
/// its NAPI.
fn batch_on_a_napi() -> Result<(), Failed> {
    let mut one = Suspended::start(FOREVER)?;
    let of = BatchesOf::Napi(one.napi);
    let mut last = None;
    for _ in 0..TRIES {
        let meter = BatchMeter::at_napis()?;
        let found = measured(&mut one, &meter, of)?;
        assert_eq!((found.events, found.maxevents, found.outlasted), (0, 0, 0), "nothing expires: {found:?}");
        last = Some(found);
        // If a softirq was still running when the suspension began, it counts as the end of the batch.
        if found.longest >= BUSY {
            return Ok(());
        }
    }
    Err(format!("never measured: {last:?}").into())
}

/// Tests a timeout that expires within the batch: the expiry is counted, and the batch lasts at least as long
/// as the timeout.
fn outlasted() -> Result<(), Failed> {
    const SHORT: Nanoseconds = Nanoseconds::from_millis(4);
    let mut one = Suspended::start(SHORT)?;
    let of = BatchesOf::Napi(one.napi);
    let mut last = None;
    for _ in 0..TRIES {
        let meter = BatchMeter::at_napis()?;
        let found = measured(&mut one, &meter, of)?;
        last = Some(found);
        if found.outlasted > 0 && found.longest.0 >= SHORT.0 * 9 / 10 {
            return Ok(());
        }
    }
    Err(format!("the timeout never ended within a batch: {last:?}").into())
}
