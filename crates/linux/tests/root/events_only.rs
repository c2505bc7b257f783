//! Tests the behaviour of the kernel in `kernel/epoll-event-busy-loop/` that its own tests cannot check
//! without a NIC.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::Netns;
use model::{EmptyPolls, Nanoseconds};
use netlink::netdev::{NapiChange, Netdev};
use testkit::scratch::Scratch;
use testkit::subject::Subject;
use testkit::wire::Wire;
use testkit::{Need, test};

/// How long IRQs stay suspended unless they are resumed. Packets that arrive during that time are delivered
/// late.
const TURN: Nanoseconds = Nanoseconds::from_millis(10_000);

/// A datagram that arrives later than this was not announced by an interrupt, even on the slowest machine.
const LATE_MS: u64 = 5_000;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Cc, Need::Wire, Need::VirtioNics, Need::EventsOnly];
    vec![
        test("events_only/setting_it_resumes_irqs_that_are_suspended", NEEDS, || resumes("events-only")),
        test("events_only/clearing_prefer_busy_poll_resumes_irqs_that_are_suspended", NEEDS, || {
            resumes("nothing")
        }),
    ]
}

fn resumes(then: &str) -> Result<(), Failed> {
    let scratch = Scratch::new("clears")?;
    let program = scratch.compile("clears", &[])?;
    let wire = Wire::between("virtio")?;
    suspending(&wire, Nanoseconds::from_millis(5), TURN)?;
    let mut receiver = Command::new("ip");
    receiver.args(["netns", "exec", &wire.near]).arg(&program).arg(then);
    let (mut receiver, _) = Subject::ready(&mut receiver)?;
    let enough = AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        let sender = scope.spawn(|| Netns::named(&wire.far)?.run(|| send(&enough))?.map_err(Failed::from));
        let said = receiver.line();
        enough.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| Failed::from("the sender panicked"))??;
        said
    });
    suspending(&wire, Nanoseconds::ZERO, Nanoseconds::ZERO)?;
    let said = said?;
    let waited = said.strip_prefix("came ").ok_or_else(|| format!("it said {said:?}"))?;
    assert!(waited.parse::<u64>()? < LATE_MS, "{said}");
    Ok(())
}

/// Sends a datagram every few milliseconds.
fn send(enough: &AtomicBool) -> std::io::Result<()> {
    let socket = UdpSocket::bind("192.0.2.2:0")?;
    while !enough.load(Ordering::Relaxed) {
        socket.send_to(b"?", "192.0.2.1:11987")?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Makes the near end's NAPIs defer and suspend IRQs for this long; zero disables both.
fn suspending(wire: &Wire, flush: Nanoseconds, turn: Nanoseconds) -> Result<(), Failed> {
    let change = NapiChange {
        defer_hard_irqs: Some(EmptyPolls(if flush == Nanoseconds::ZERO { 0 } else { 100 })),
        gro_flush_timeout: Some(flush),
        irq_suspend_timeout: Some(turn),
        threaded: None,
    };
    let napis: Vec<_> = wire.near0()?.napis.iter().map(|napi| napi.id).collect();
    let set = || -> Result<(), String> {
        let mut netdev = Netdev::open_here().map_err(|error| error.to_string())?;
        for napi in &napis {
            netdev.set_napi(*napi, &change).map_err(|refused| format!("napi-set: {refused:?}"))?;
        }
        Ok(())
    };
    Ok(wire.near()?.run(set)??)
}
