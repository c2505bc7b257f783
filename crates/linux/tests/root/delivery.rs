//! Tests the counts of who polled which NAPI, while memcached receives requests over a veth pair.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bpf::delivery::{DeliveryCounter, DeliverySampler, between};
use bpf::softirqs::{SoftirqTime, SoftirqsSpent};
use libtest_mimic::{Failed, Trial};
use linux::usage::UsageMeter;
use linux::work::WorkTime;
use model::setting::Threading;
use model::{Delivered, EmptyPolls, Nanoseconds, NapiDelivered, NapiId, Pid, PollCounts};
use netlink::netdev::NapiChange;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testkit::asked_server::AskedServer;
use testkit::subject::{Subject, eventually};
use testkit::{Need, repeated, test};

/// How long traffic is counted: thousands of requests even on a busy machine.
const SPAN: Duration = Duration::from_secs(1);

pub(crate) fn tests() -> Vec<Trial> {
    const ASKED: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached, Need::Wire];
    const THREADED: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached, Need::Wire, Need::ThreadPerNapi];
    const BPF: &[Need] = &[Need::Root, Need::Bpf];
    vec![
        test(
            "delivery/without_settings_every_packet_comes_after_an_interrupt",
            ASKED,
            repeated(after_interrupts),
        ),
        test("delivery/while_irqs_are_suspended_the_application_polls", ASKED, repeated(suspended)),
        test(
            "delivery/after_suspension_was_taken_back_no_poll_is_the_applications",
            ASKED,
            no_longer_suspended,
        ),
        test("delivery/packets_whose_irqs_are_put_off_come_by_the_timer", ASKED, repeated(by_the_timer)),
        test("delivery/packets_of_a_threaded_napi_come_by_its_kthread", THREADED, threaded),
        test("delivery/packets_on_no_napi_are_counted_on_the_backlog", ASKED, repeated(on_no_napi)),
        test("delivery/while_it_pauses_nothing_is_counted_and_no_time_passes", ASKED, pauses),
        test("delivery/a_sample_shows_the_same_shares_for_a_part_of_the_cost", ASKED, repeated(sampled)),
        test(
            "work/softirqs_are_counted_by_napi_and_not_twice_for_a_process_that_is_counted",
            ASKED,
            softirqs,
        ),
        test("work/softirqs_of_pauses_are_not_counted", ASKED, softirqs_of_pauses),
        test("work/a_period_without_the_programs_for_softirqs_has_a_result", ASKED, usage_without_softirqs),
        test("work/a_server_that_is_asked_works_and_one_that_is_not_rests", ASKED, works),
        test("delivery/two_processes_count_and_one_that_is_killed_leaves_nothing", BPF, killed),
    ]
}

/// Counts while the server receives requests; returns all counts, and those of the server's NAPI.
fn counted(server: &AskedServer) -> Result<(Delivered, Option<NapiDelivered>), Failed> {
    /// On a machine whose queues are all polled often, some polls are not counted; the counter reports that.
    const ATTEMPTS: usize = 5;
    let mut counter = DeliveryCounter::load()?;
    assert!(!counter.timers_hidden(), "root may read /proc/kallsyms");
    let mut delivered = Delivered::default();
    for _ in 0..ATTEMPTS {
        let earlier = counter.snapshot()?;
        server.ask(SPAN)?;
        delivered = between(&earlier, &counter.snapshot()?);
        if delivered.lost == 0 {
            break;
        }
    }
    assert_eq!(delivered.lost, 0, "{delivered:?}");
    let napis = server.napis()?;
    let ours = delivered.napis.iter().filter(|napi| napis.contains(&napi.napi));
    let ours = ours.max_by_key(|napi| napi.total().packets).cloned();
    Ok((delivered, ours))
}

fn counted_on_napi(server: &AskedServer) -> Result<NapiDelivered, Failed> {
    let (delivered, napi) = counted(server)?;
    let napi = napi.ok_or_else(|| format!("the server's NAPI was not polled: {delivered:?}"))?;
    assert_eq!(napi.device, "near0");
    assert!(napi.total().packets > 1000, "{napi:?}");
    Ok(napi)
}

fn after_interrupts() -> Result<(), Failed> {
    let napi = counted_on_napi(&AskedServer::start()?)?;
    assert_eq!(napi.total(), napi.interrupt, "{napi:?}");
    assert_eq!((napi.timer_armed, napi.suspended, napi.application_share()), (0, 0, Some(0.0)), "{napi:?}");
    Ok(())
}

/// Tests that the polls of an application that suspended the IRQ do not affect how the first poll after the
/// end of suspension is counted.
fn no_longer_suspended() -> Result<(), Failed> {
    let server = AskedServer::start()?;
    let mut counter = DeliveryCounter::load()?;
    let napi = server.napis()?[0];
    for _ in 0..TURNS {
        server.suspend()?;
        server.ask(SPAN / 10)?;
        server.set_napis(NapiChange {
            defer_hard_irqs: Some(EmptyPolls(0)),
            gro_flush_timeout: Some(Nanoseconds::ZERO),
            irq_suspend_timeout: Some(Nanoseconds::ZERO),
            threaded: None,
        })?;
        server.rest()?;
        let earlier = counter.snapshot()?;
        server.ask(SPAN / 10)?;
        let delivered = between(&earlier, &counter.snapshot()?);
        let napi = delivered.napi(napi).ok_or("the NAPI was not polled")?;
        assert_eq!(napi.application, PollCounts::default(), "{napi:?}");
    }
    Ok(())
}

/// How often suspension is turned on and off, because the CPU of the last poll varies.
const TURNS: usize = 5;

/// Tests the goal of suspension: the application polls most of its packets, and for the same number of
/// packets softirqs poll ten times less often than without suspension. The share depends on whether the
/// application runs when packets arrive, so the test retries if other processes take the application's CPU;
/// the counts must be right each time.
fn suspended() -> Result<(), Failed> {
    const ATTEMPTS: usize = 8;
    const OWN: f64 = 0.8;
    const FEWER_POLLS: f64 = 10.0;
    let server = AskedServer::start()?;
    let plain = softirq_polls_per_packet(&counted_on_napi(&server)?)?;
    server.suspend()?;
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let napi = counted_on_napi(&server)?;
        counted_as_suspended(&server, &napi)?;
        few_interrupts(&napi)?;
        let own = napi.application_share().ok_or("no packets")?;
        let fewer = plain / softirq_polls_per_packet(&napi)?;
        seen.push(format!(
            "{own:.2} of the packets polled by the server itself, 1/{fewer:.1} of the softirq polls"
        ));
        if own >= OWN && fewer >= FEWER_POLLS {
            return Ok(());
        }
    }
    Err(format!("expected {OWN} and 1/{FEWER_POLLS}, got {}", seen.join("; ")).into())
}

/// Checks that there is at most one interrupt for many polls of the application: while the application
/// suspends the IRQ and deferral keeps the IRQ masked, the softirq that resumes it polls for the application.
fn few_interrupts(napi: &NapiDelivered) -> Result<(), Failed> {
    if napi.interrupt.polls * 20 <= napi.application.polls {
        return Ok(());
    }
    Err(format!("polls after a resumption counted as interrupts: {napi:?}").into())
}

/// Tests that no time is counted twice: a client that sends also polls the server's NAPI, in its own CPU
/// time, and may itself be one of the counted processes.
fn softirqs() -> Result<(), Failed> {
    let server = AskedServer::start()?;
    let napis = server.napis()?;
    let counting = |napis: Vec<NapiId>, processes: Vec<Pid>| -> Result<SoftirqsSpent, Failed> {
        let mut softirqs = SoftirqTime::of(napis, processes)?;
        softirqs.resume()?;
        server.ask(SPAN)?;
        Ok(softirqs.spent()?)
    };
    let all = counting(napis.to_vec(), Vec::new())?;
    assert!(all.count > 1000 && all.time.0 > all.count * 100, "{all:?}");
    assert!(all.time.0 < u64::try_from(SPAN.as_nanos())? * 64, "{all:?}");
    let processes = vec![server.process()?.pid, Pid(std::process::id())];
    let others = counting(napis.to_vec(), processes)?;
    assert!(others.count < all.count / 2, "{others:?} of {all:?} were charged to other processes");
    assert_eq!(
        counting(vec![NapiId(u32::MAX)], Vec::new())?,
        SoftirqsSpent::default(),
        "there is no such NAPI"
    );
    Ok(())
}

/// Tests that no softirq of a pause is counted, whether or not the programs stay attached.
fn softirqs_of_pauses() -> Result<(), Failed> {
    /// The maximum number of softirqs that are running when a pause begins, and may still be counted.
    const RUNNING_MAX: u64 = 10;
    let server = AskedServer::start()?;
    let mut softirqs = SoftirqTime::of(server.napis()?, [])?;
    for stays in [true, true, false, true] {
        softirqs.resume()?;
        let begun = softirqs.spent()?;
        server.ask(SPAN / 10)?;
        assert!(softirqs.spent()?.count > begun.count + 100, "{stays}: {begun:?}");
        softirqs.pause(stays);
        let ended = softirqs.spent()?;
        server.ask(SPAN / 10)?;
        let later = softirqs.spent()?;
        assert!(later.count - ended.count <= RUNNING_MAX, "{stays}: {ended:?}, {later:?}");
    }
    Ok(())
}

/// Tests that a period has a result without softirqs if the kernel does not attach the programs that count them.
fn usage_without_softirqs() -> Result<(), Failed> {
    let server = AskedServer::start()?;
    let mut usage = UsageMeter::new(server.wire().near()?.id(), vec![server.process()?]);
    usage.track_napis(server.napis()?, false);
    usage.begin();
    server.ask(SPAN / 10)?;
    assert!(usage.end().and_then(|usage| usage.softirq).is_some_and(|time| time.0 > 0));
    // Each attachment needs a file descriptor.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit })?;
    usage.begin();
    setrlimit(Resource::Nofile, limit)?;
    server.ask(SPAN / 10)?;
    let used = usage.end().ok_or("the server runs")?;
    assert!(used.softirq.is_none(), "{used:?}");
    Ok(())
}

fn works() -> Result<(), Failed> {
    let server = AskedServer::start()?;
    let work = WorkTime::of([server.process()?.pid], server.napis()?)?;
    let begin = work.read()?;
    std::thread::sleep(SPAN / 4);
    let rested = work.read()?;
    server.ask(SPAN / 4)?;
    let worked = work.read()?;
    let (rest, load) = (rested.0 - begin.0, worked.0 - rested.0);
    assert!(load > 10 * rest, "{rest} ns at rest, {load} ns under load");
    assert!(load > 1_000_000, "{load}");
    Ok(())
}

fn softirq_polls_per_packet(napi: &NapiDelivered) -> Result<f64, Failed> {
    let number = |count: u64| u32::try_from(count).map(f64::from);
    // Count at least one poll, to avoid a division by zero.
    let polls = (napi.interrupt.polls + napi.timer.polls).max(1);
    Ok(number(polls)? / number(napi.total().packets)?)
}

fn counted_as_suspended(server: &AskedServer, napi: &NapiDelivered) -> Result<(), Failed> {
    assert_eq!(napi.by_process, [(server.process()?.pid, napi.application)], "{napi:?}");
    assert!(napi.suspended > 0 && napi.suspended <= napi.timer_armed, "{napi:?}");
    // 20 ms, minus the time for arming the timer.
    let longest = napi.timer_armed_max;
    assert!((19_900_000..=20_000_000).contains(&longest.0), "{longest}");
    Ok(())
}

fn sampled() -> Result<(), Failed> {
    let server = AskedServer::start()?;
    server.suspend()?;
    let mut sampler = DeliverySampler::load()?;
    sampler.begin(); // and was never ended, as after a failed run
    sampler.begin();
    // For comparison, count without interruption in the same period. The application's share depends on the
    // CPU time that it gets.
    let all = counted_on_napi(&server)?;
    let delivered = sampler.end()?;
    let napi = delivered.napi(all.napi).ok_or_else(|| format!("the NAPI was not polled: {delivered:?}"))?;
    assert!((1..all.total().packets).contains(&napi.total().packets), "{napi:?} of {all:?}");
    // If a sample has fewer packets, the client or the server did not run while it was taken.
    const PACKETS_MIN: u64 = 100;
    if let (Some(sampled), Some(counted)) = (napi.application_share(), all.application_share())
        && counted >= 0.95
        && napi.total().packets >= PACKETS_MIN
    {
        assert!(sampled >= 0.8, "{napi:?} of {all:?}");
    }
    let counted = Duration::from_nanos(delivered.interval.0);
    assert!(counted > Duration::ZERO && counted < SPAN / 2, "{counted:?} of {SPAN:?} were counted");
    Ok(())
}

fn by_the_timer() -> Result<(), Failed> {
    let server = AskedServer::start()?;
    server.set_napis(NapiChange {
        defer_hard_irqs: Some(EmptyPolls(100)),
        gro_flush_timeout: Some(Nanoseconds::from_micros(200)),
        irq_suspend_timeout: Some(Nanoseconds::ZERO),
        threaded: None,
    })?;
    let napi = while_all_cpus_compute(|| counted_on_napi(&server))??;
    assert!(napi.timer.packets > napi.total().packets / 2, "{napi:?}");
    // A timer that was armed before the period may expire during the period.
    assert!(napi.timer_expired > 0 && napi.timer_expired <= napi.timer_armed + 1, "{napi:?}");
    assert_eq!((napi.suspended, napi.application.polls), (0, 0), "{napi:?}");
    assert!((100_000..=200_000).contains(&napi.timer_armed_max.0), "{}", napi.timer_armed_max);
    Ok(())
}

/// Runs `body` while all CPUs compute. Interrupts during a computation are not caused by the computing
/// program, although they use its stack.
fn while_all_cpus_compute<T>(body: impl FnOnce() -> T) -> Result<T, Failed> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism()?.get() {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        done.store(true, Ordering::Relaxed);
        Ok(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn threaded() -> Result<(), Failed> {
    let server = AskedServer::start()?;
    server.set_napis(NapiChange { threaded: Some(Threading::On), ..NapiChange::default() })?;
    let napi = counted_on_napi(&server)?;
    assert_eq!(napi.total(), napi.kthread, "{napi:?}");
    Ok(())
}

fn on_no_napi() -> Result<(), Failed> {
    let (delivered, napi) = counted(&AskedServer::start()?.with_segmentation_offload()?)?;
    assert!(delivered.backlog.packets > 1000, "{delivered:?}");
    let on_napi = napi.map_or(0, |napi| napi.total().packets);
    assert!(on_napi < delivered.backlog.packets / 100, "{on_napi} of {:?}", delivered.backlog);
    Ok(())
}

fn pauses() -> Result<(), Failed> {
    let server = AskedServer::start()?;
    let mut counter = DeliveryCounter::load()?;
    let earlier = counter.snapshot()?;
    counter.pause();
    let paused = counter.snapshot()?;
    server.ask(SPAN)?;
    let still = between(&paused, &counter.snapshot()?);
    assert_eq!((still.interval, still.napis, still.backlog.polls), (Nanoseconds::ZERO, vec![], 0));

    counter.resume()?;
    server.ask(SPAN)?;
    let delivered = between(&earlier, &counter.snapshot()?);
    let counted = Duration::from_nanos(delivered.interval.0);
    assert!(counted >= SPAN && counted < 2 * SPAN, "{counted:?}");
    assert!(delivered.napis.iter().any(|napi| napi.device == "near0" && napi.total().packets > 1000));
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let mut mine = DeliveryCounter::load()?;
    let (mut other, _) = Subject::in_role("counter")?;
    let theirs = programs_of(other.pid().0)?;
    assert_eq!(theirs.len(), 3, "the counter has loaded its own programs: {theirs:?}");
    assert!(theirs.is_disjoint(&programs_of(std::process::id())?));
    mine.snapshot()?;

    other.kill();
    // The kernel frees a program only when no CPU can be running it any more.
    eventually("the counter's programs no longer exist", || {
        let loaded = |id: &u32| libbpf_rs::Program::fd_from_id(*id).is_ok();
        (!theirs.iter().any(loaded)).then_some(())
    })?;
    mine.snapshot()?;
    Ok(())
}

/// Lists the BPF programs that a process holds.
pub(crate) fn programs_of(pid: u32) -> Result<BTreeSet<u32>, Failed> {
    let mut ids = BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // The list includes the directory's own descriptor, which is already closed when its entry is read.
        let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        // The fdinfo of a link names the link's program, too.
        let program = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
        if let Some(id) = program.filter(|_| !text.contains("link_type:")) {
            ids.insert(id.trim().parse()?);
        }
    }
    Ok(ids)
}
