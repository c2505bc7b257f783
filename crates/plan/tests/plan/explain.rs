//! Tests explanations of knobs: the value in force, the desired value, the rule and its source.

use std::fmt::Write as _;

use insta::assert_snapshot;
use model::PolicyName;
use plan::{Resolved, desired, place};

use crate::made::{device, host, on_task, policy, server};

#[test]
fn every_wanted_value_is_explained_beside_the_one_in_force() {
    let mut host = host();
    host.devices.push(device(2, "eth0", &[259]));
    host.processes.push(server(812, "memcached", &[&[259]]));
    let latency = policy([on_task(2, 812, PolicyName::Latency)]);
    let placement = place(&latency, &host, &Resolved::default()).expect("placed");
    let desired = desired(&placement, &host).expect("desired");
    host.devices[0].napis[0].irq_suspend_timeout = None;
    let mut text = String::new();
    for line in desired.explain(&host) {
        let in_force = line.in_force.map_or_else(|| "unknown".to_owned(), |setting| setting.value());
        let _ = writeln!(text, "{} (in force: {in_force})\n  {}", line.wanted, line.because);
    }
    assert_snapshot!(text);
}
