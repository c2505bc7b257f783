//! What the shipped recipes come to on a recorded host.

use std::fmt::Write as _;
use std::sync::Arc;

use model::policy::Match;
use model::{Host, Intent, Offload, Pid, Policy, PolicyName, Rss, Target};
use plan::{Refusal, Resolved, desired, diff, place};
use policy_file::recipes;

/// The recorded host as root sees it: nginx is served at a port of its own, and its epoll can be read.
fn cache_server() -> Host {
    let mut host: Host =
        serde_json::from_str(include_str!("hosts/cache-server.json")).expect("the fixture is a host");
    let nginx = host.processes.iter_mut().find(|process| process.id.pid == Pid(900)).expect("nginx");
    for epoll in &mut nginx.epolls {
        epoll.params.get_or_insert_default();
    }
    for socket in &mut nginx.sockets {
        socket.local.as_mut().expect("an address").set_port(80);
    }
    host
}

/// The same machine with a NIC whose driver has contexts of the receive hash and takes rules, and with 8 queues.
fn with_rules() -> Host {
    let mut host = cache_server();
    let nic = &mut host.devices[1];
    let (queue, napi) = (nic.rx_queues[0].clone(), nic.napis[0].clone());
    for index in 2..8 {
        let mut more = queue.clone();
        more.id.index = model::QueueIndex(index);
        let id = model::NapiId(9000 + index);
        more.napi = more.napi.map(|edge| model::host::NapiEdge { napi: id, ..edge });
        nic.rx_queues.push(more);
        nic.napis.push(model::host::Napi { id, irq: None, ..napi.clone() });
    }
    nic.rss = Some(Rss { table: (0..8).cycle().take(128).collect(), key: vec![1; 40] });
    nic.rss_contexts = Some(Vec::new());
    nic.flow_rules = Some(Vec::new());
    nic.offloads.insert(Offload::Ntuple, false);
    host
}

fn intent(target: Target, policy: PolicyName, line: u32) -> Intent {
    Intent::new(target, policy, format!("10-cache.toml:{line}"))
}

fn policy(intents: Vec<Intent>) -> Policy {
    Policy { intents, recipes: Arc::new(recipes(&[]).expect("the shipped recipes")), disruptive: false }
}

fn printed(policy: &Policy, host: &Host, resolved: &Resolved) -> Result<String, Refusal> {
    let placement = place(policy, host, resolved)?;
    let desired = desired(&placement, host)?;
    let plan = diff(&desired, host)?;
    let mut text = String::new();
    for change in plan.changes() {
        let _ = writeln!(text, "{change}\n    {}", change.because());
    }
    let notes =
        placement.parts.iter().flat_map(|part| &part.notes).chain(&desired.notes).chain(&desired.left_out);
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    if let Some((micros, because)) = &desired.wake_latency {
        let _ = writeln!(text, "held: cpu_dma_latency {micros}\n    {because}");
    }
    Ok(text)
}

#[test]
fn every_policy_of_a_device_on_a_recorded_host() {
    for name in PolicyName::ALL {
        let asked = policy(vec![intent(Target::Device("eth0".to_owned()), name, 2)]);
        let text = printed(&asked, &cache_server(), &Resolved::default()).expect("planned");
        insta::assert_snapshot!(format!("eth0_{name}"), text);
    }
}

#[test]
fn a_recorded_host_is_divided_between_memcached_and_nginx() {
    let service =
        |name: &str, port| Target::Service(name.to_owned(), Match { port: Some(port), ..Match::default() });
    let asked = policy(vec![
        intent(Target::Device("eth0".to_owned()), PolicyName::Mix, 2),
        intent(service("memcached", 11_211), PolicyName::Latency, 5),
        intent(service("nginx", 80), PolicyName::Bulk, 9),
    ]);
    let resolved = Resolved::default().with(1, [Pid(812)]).with(2, [Pid(900)]);
    insta::assert_snapshot!("eth0_mixed", printed(&asked, &with_rules(), &resolved).expect("planned"));
    let refused = printed(&asked, &cache_server(), &resolved).unwrap_or_else(|refusal| {
        let evidence = refusal.evidence.join("\n  ");
        format!("{refusal}\n  {evidence}\n  nearest: {}", refusal.nearest.as_deref().unwrap_or_default())
    });
    insta::assert_snapshot!("eth0_mixed_without_rules", refused);
}
