//! Suspension engages on a NIC with interrupts, and `doctor` reports it from the counters.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libtest_mimic::{Failed, Trial};
use model::{Finding, Nanoseconds, Severity};
use testkit::asked_server::AskedServer;
use testkit::wire::Wire;
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Suspension, Need::Memcached, Need::VirtioNics];
    vec![test("doctor/suspension_is_engaged_on_a_nic_with_interrupts", NEEDS, on_a_nic)]
}

/// The timers to set in turn. An emulated CPU is so slow that a timer of 20 µs expires many times per
/// iteration, and slower still if others use the host, so each is observed more than once.
const FLUSHES: [Nanoseconds; 2] = [Nanoseconds::from_millis(5), Nanoseconds::from_millis(20)];
/// How often.
const ATTEMPTS: usize = 4;
/// The number of keys per request. Client and server are equally slow there, and either would idle while
/// waiting for the other.
const KEYS: usize = 100;
/// The longest iteration of the server's loop.
const TURN: Nanoseconds = Nanoseconds::from_millis(1000);

/// The findings of `doctor` while the server receives requests.
fn findings(served: &AskedServer) -> Result<Vec<Finding>, Failed> {
    let (done, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let output = std::thread::scope(|scope| {
        let client = scope.spawn(|| served.ask_while(|| !done.load(Ordering::Relaxed), &answered));
        let output = Command::new(env!("CARGO_BIN_EXE_netpolicy"))
            .args(["--netns", &served.wire().near, "-o", "json", "doctor", "--seconds", "3"])
            .output();
        done.store(true, Ordering::Relaxed);
        client.join().map_err(|_| "the client panicked")??;
        Ok::<_, Failed>(output?)
    })?;
    let document: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(serde_json::from_value(document["data"]["findings"].clone())?)
}

fn on_a_nic() -> Result<(), Failed> {
    let wire = Wire::between("virtio")?;
    wire.in_near("ethtool -L near0 combined 1")?;
    let served = AskedServer::behind(wire, &[])?.asked_for(KEYS);
    let mut seen = Vec::new();
    for flush in FLUSHES.into_iter().cycle().take(FLUSHES.len() * ATTEMPTS) {
        served.suspend_by(flush, TURN)?;
        let findings = findings(&served)?;
        let of_near = || findings.iter().filter(|finding| finding.object.starts_with("near0 rx-0"));
        if let Some(engaged) = of_near().find(|finding| finding.rule == "engaged") {
            assert_eq!(engaged.severity, Severity::Ok);
            return Ok(());
        }
        let said: Vec<String> = of_near()
            .map(|one| format!("{}: {} ({})", one.rule, one.summary, one.evidence.join("; ")))
            .collect();
        seen.push(format!("{flush}: {}", said.join("\n    ")));
    }
    Err(format!("never engaged:\n{}", seen.join("\n")).into())
}
