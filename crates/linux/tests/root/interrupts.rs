//! Tests how many interrupts a NIC raises while memcached receives requests over it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use model::{IrqNumber, Nanoseconds};
use testkit::asked_server::AskedServer;
use testkit::wire::{Wire, run};
use testkit::{Need, test};

/// Counting ends after this many answered requests, or after `SPAN`. Both ends are as fast as emulated CPUs
/// allow.
const ANSWERED: u64 = 8_000;
const SPAN: Duration = Duration::from_secs(5);
/// An emulated CPU is slower than a real one, so these times are longer than those of suspend200 in the
/// IRQ suspension document. They must not be longer than needed: the client sends its next
/// request only after an answer, and whenever the server has nothing left to do, the next packet waits for
/// the timer. With 20 ms, this affected half of the packets, and only three quarters of the requests were
/// answered.
const FLUSH: Nanoseconds = Nanoseconds::from_millis(5);
const TURN: Nanoseconds = Nanoseconds::from_millis(1000);

/// The maximum number of attempts: another guest on the same machine may take the CPU from the server, which
/// then polls its NAPI too late.
const ATTEMPTS: usize = 4;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached, Need::Wire, Need::VirtioNics];
    vec![test("interrupts/of_a_nic_fall_tenfold_while_they_are_suspended", NEEDS, fall_tenfold)]
}

/// A server on a wire whose near end is limited to one queue.
struct OneQueue(AskedServer);

impl OneQueue {
    fn new() -> Result<Self, Failed> {
        let wire = Wire::between("virtio")?;
        wire.in_near("ethtool -L near0 combined 1")?;
        Ok(Self(AskedServer::behind(wire, &[])?))
    }

    fn interrupts(&self) -> Result<BTreeSet<IrqNumber>, Failed> {
        let host = self.0.wire().observe()?;
        let near = host.device_named("near0").ok_or("near0 was not observed")?;
        let irqs: BTreeSet<_> = near.napis.iter().filter_map(|napi| Some(napi.irq?.irq)).collect();
        for irq in &irqs {
            let name = &host.irq(*irq).ok_or("the queue's interrupt was not observed")?.name;
            assert!(name.contains("-input."), "{name}");
        }
        Ok(irqs)
    }
}

/// Returns how often these interrupts have fired so far, on all CPUs.
fn count(irqs: &BTreeSet<IrqNumber>) -> Result<u64, Failed> {
    let mut sum = 0;
    for line in run("cat /proc/interrupts")?.lines() {
        if let Some((number, rest)) = line.split_once(':')
            && number.trim().parse().is_ok_and(|number| irqs.contains(&IrqNumber(number)))
        {
            sum += rest.split_whitespace().map_while(|word| word.parse::<u64>().ok()).sum::<u64>();
        }
    }
    Ok(sum)
}

/// Measures the number of interrupts per thousand answered requests.
fn for_each_thousand(server: &OneQueue) -> Result<f64, Failed> {
    let irqs = server.interrupts()?;
    assert_eq!(irqs.len(), 1, "{irqs:?}");
    // Open the connections and begin suspension before anything is counted.
    server.0.ask(SPAN / 10)?;
    let before = count(&irqs)?;
    let (answered, since) = (AtomicU64::new(0), Instant::now());
    let is_short = || answered.load(Ordering::Relaxed) < ANSWERED && since.elapsed() < SPAN;
    server.0.ask_while(is_short, &answered)?;
    let answered = answered.into_inner();
    let came = count(&irqs)? - before;
    assert!(answered >= 1000, "{answered} were answered");
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
    Ok(came as f64 * 1000.0 / answered as f64)
}

fn fall_tenfold() -> Result<(), Failed> {
    let server = OneQueue::new()?;
    let base = for_each_thousand(&server)?;
    assert!(base > 0.0, "interrupts occur without suspension");
    server.0.suspend_by(FLUSH, TURN)?;
    let mut counted = Vec::new();
    for _ in 0..ATTEMPTS {
        let suspended = for_each_thousand(&server)?;
        if suspended * 10.0 <= base {
            return Ok(());
        }
        counted.push(format!("{suspended:.2}"));
    }
    Err(format!("interrupts for a thousand requests: {}; {base:.2} without suspension", counted.join(", "))
        .into())
}
