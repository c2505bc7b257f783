//! Tests that rules are replaced atomically while packets arrive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use tc_rules::kernel::dump;
use testkit::{Need, test};

use crate::rules::{HOOK, SOON, Stage, killed_at, text};

pub(crate) fn tests() -> Vec<Trial> {
    let needs = [Need::Root, Need::FLOWER, Need::GACT];
    vec![
        test("no_packet_slips_through_while_rules_are_swapped", &needs, under_traffic),
        test("a_swap_that_is_refused_leaves_the_old_rules_in_force", &needs, refused),
        test("a_swap_that_is_killed_leaves_the_old_rules_in_force", &needs, killed),
    ]
}

/// Returns `count` rules that pass other addresses, and one that drops packets to 10.9.0.2.
fn dropping(count: u32) -> String {
    let other = |rule: u32| {
        format!(
            "filter add dev d0 protocol ip ingress prio 1 handle {rule} flower dst_ip 10.8.{}.{} action pass\n",
            rule >> 8 & 255,
            rule & 255
        )
    };
    let last = "filter add dev d0 protocol ip ingress prio 2 handle 1 flower dst_ip 10.9.0.2 action drop\n";
    (1..=count).map(other).chain([last.to_owned()]).collect()
}

/// Creates a stage whose d0 has a clsact qdisc.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(name);
    let hook = stage.file(HOOK);
    assert_eq!(stage.netpolicy(&["tc", "load", text(&hook)]).0, 0);
    stage
}

/// Replaces the previous rules by `count` rules and one that drops; returns the chain now in force.
fn swap(stage: &Stage, count: u32) -> u64 {
    let file = stage.file(&dropping(count));
    let (code, report) = stage.netpolicy(&["tc", "load", "--swap", "10", text(&file)]);
    assert_eq!((code, &report["loaded"]), (0, &(count + 1).into()), "{report}");
    let (code, diff) = stage.netpolicy(&["tc", "diff", "--swap", "10", text(&file)]);
    assert_eq!((code, &diff["same"], &diff["extra"]), (0, &(count + 1).into(), &0.into()), "{diff}");
    report["chains"][0].as_u64().expect("a chain")
}

fn chains(stage: &Stage) -> Vec<u32> {
    dump::chains(&stage.netns, stage.hook()).expect("chains").into_iter().collect()
}

fn under_traffic() -> Result<(), Failed> {
    let stage = stage("swapped");
    for command in [
        "link set d0 up",
        "link set d1 up",
        "addr add 10.9.0.1/24 dev d1",
        "neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev d1",
    ] {
        let output = stage.run("ip", &command.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let first = swap(&stage, 100);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    // If a swap fails, this thread must still stop the sender.
    let last = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            stage.netns.run(|| -> std::io::Result<()> {
                let socket = std::net::UdpSocket::bind("10.9.0.1:0")?;
                while !stop.load(Ordering::Relaxed) && sent.load(Ordering::Relaxed) < PACKETS_MAX {
                    socket.send_to(b"x", "10.9.0.2:9")?;
                    sent.fetch_add(1, Ordering::Relaxed);
                    // Do not send faster than the receiver can process.
                    std::thread::sleep(Duration::from_micros(50));
                }
                Ok(())
            })
        });
        let swapped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut last = first;
            for round in 0..6 {
                last = swap(&stage, 100 + round);
            }
            last
        }));
        stop.store(true, Ordering::Relaxed);
        sender.join().expect("sender").expect("inside").expect("sent");
        swapped.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert!(last > first, "{first} {last}");
    assert_eq!(chains(&stage).len(), 2, "chain 0 and one more: {:?}", chains(&stage));
    // Every packet was dropped, whether it met the old or the new rules: the qdisc counts the drops.
    let sent = sent.load(Ordering::Relaxed);
    let shown = stage.run("tc", &["-s", "-j", "qdisc", "show", "dev", "d0"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let ingress = shown.as_array().into_iter().flatten().find(|qdisc| qdisc["kind"] == "clsact");
    assert!(sent > 100, "{sent}");
    assert_eq!(ingress.expect("the hook")["drops"].as_u64(), Some(sent), "{shown}");
    Ok(())
}

/// The maximum number of packets in a test.
const PACKETS_MAX: u64 = 1_000_000;

fn refused() -> Result<(), Failed> {
    let stage = stage("swap_refused");
    let chain = swap(&stage, 10);
    let before = stage.rules();
    let again = dropping(500);
    let twice = again.lines().next().expect("a rule").to_owned();
    let file = stage.file(&format!("{again}{twice}\n"));
    let (code, report) = stage.netpolicy(&["tc", "load", "--swap", "10", text(&file)]);
    assert_eq!(
        (code, &report["undone"], &report["refused"][0]["line"]),
        (4, &true.into(), &502.into()),
        "{report}"
    );
    assert_eq!((stage.rules(), chains(&stage).contains(&u32::try_from(chain)?)), (before, true));
    // `--swap` is refused for a priority with another program's rules.
    let unmanaged = stage.file("filter add dev d0 ingress protocol ip prio 11 handle 1 flower action pass\n");
    assert_eq!(stage.netpolicy(&["tc", "load", text(&unmanaged)]).0, 0);
    let file = stage.file(&dropping(3));
    assert_eq!(stage.netpolicy(&["tc", "load", "--swap", "11", text(&file)]).0, 7);
    // A file that names a chain or removes something is refused, too.
    for line in [
        "filter add dev d0 ingress protocol ip prio 1 chain 3 handle 1 flower action pass\n",
        "filter del dev d0 ingress prio 1\n",
    ] {
        let file = stage.file(line);
        assert_eq!(stage.netpolicy(&["tc", "load", "--swap", "10", text(&file)]).0, 7, "{line}");
    }
    assert_eq!(stage.rules(), before + 1);
    Ok(())
}

fn killed() -> Result<(), Failed> {
    let stage = stage("swap_killed");
    swap(&stage, 10);
    let before = stage.rules();
    let file = stage.file(&dropping(60_000));
    killed_at(&stage, &file, &["--swap", "10"], before + 500);
    let began = Instant::now();
    while stage.rules() > before {
        assert!(began.elapsed() < SOON, "{} rules", stage.rules());
        std::thread::sleep(Duration::from_millis(20));
    }
    let file = stage.file(&dropping(10));
    assert_eq!(stage.netpolicy(&["tc", "diff", "--swap", "10", text(&file)]).0, 0);
    Ok(())
}
