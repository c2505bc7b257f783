//! Tests that every alternative in a refusal can be put into the policy file literally, and works.

#[path = "../../plan/tests/plan/made.rs"]
#[expect(dead_code, reason = "too few hosts for these tests")]
mod made;

use std::collections::BTreeSet;
use std::path::Path;

use clap::Parser;
use made::{device, host, server, tx_queues, veth, with_irqs, with_kernel};
use model::host::{Coalesce, Device, HolderKind, IoUring, Pair, Process, Rings, Socket, SocketState};
use model::nic::Rss;
use model::setting::Disruption;
use model::{
    Fd, FlowRule, Host, Intent, KthreadKnob, NapiKnob, NicKnob, Offload, Pid, Plan, Policy, RingId,
    RtThrottling, Setting, Target, Threading,
};
use netpolicy::args::{Arguments, Command, Set, SetTarget};
use plan::{Refusal, Resolved, desired, diff, place};
use policy_file::{Mistakes, merge, parse, recipes};

/// A refused policy, and the alternatives in the refusal.
struct Case {
    /// The source file that refuses the policy.
    from: &'static str,
    host: Host,
    /// The text of the policy file.
    file: &'static str,
    ways: Vec<Way>,
}

/// An alternative in a refusal.
struct Way {
    /// The text in the refusal.
    says: &'static str,
    /// The text to replace in the file, and its replacement.
    instead: &'static str,
    written: &'static str,
}

fn way(says: &'static str, instead: &'static str, written: &'static str) -> Way {
    Way { says, instead, written }
}

fn case<const WAYS: usize>(
    from: &'static str,
    host: Host,
    file: &'static str,
    ways: [(&'static str, &'static str, &'static str); WAYS],
) -> Case {
    Case { from, host, file, ways: ways.map(|(says, instead, written)| way(says, instead, written)).into() }
}

/// Modifies a host.
fn with(mut host: Host, change: impl FnOnce(&mut Host)) -> Host {
    change(&mut host);
    host
}

/// Returns a host whose NIC has `queues` of 8 possible queue pairs, and supports RSS contexts and ntuple
/// rules.
fn nic(queues: u32) -> Host {
    let mut host = host();
    let napis: Vec<u32> = (300..300 + queues).collect();
    let mut nic = device(2, "eth0", &napis);
    nic.rss = Some(Rss { table: (0..queues).cycle().take(16).collect(), key: vec![1; 40] });
    nic.rss_contexts = Some(Vec::new());
    nic.flow_rules = Some(Vec::new());
    nic.offloads.insert(Offload::Ntuple, false);
    nic.offloads.insert(Offload::Gro, true);
    nic.rings = Some(Rings { rx: Pair { current: 512, max: 4096 }, tx: Pair { current: 512, max: 4096 } });
    nic.coalesce = Some(Coalesce { rx_usecs: Some(50), ..Coalesce::default() });
    nic.packet_sizes.gso_max_size = Some(65_536);
    nic.packet_sizes.tso_max_size = Some(65_536);
    for queue in &mut nic.rx_queues {
        queue.rps_flow_cnt = Some(0);
    }
    nic.tx_queues = tx_queues(queues);
    host.devices.push(nic);
    with_irqs(host, 40)
}

fn listening(pid: u32, comm: &str, port: u16, workers: &[&[u32]]) -> Process {
    let mut process = server(pid, comm, workers);
    let fd = Fd(90);
    let (inode, local) = (u64::from(pid) * 1000 + 900, format!("0.0.0.0:{port}"));
    let local = Some(local.parse().expect("an address"));
    process.sockets.push(Socket {
        fd,
        inode,
        state: SocketState::TcpListen,
        local,
        remote: None,
        napi: None,
        polling: None,
    });
    process
}

/// Returns a host with `queues` queues on its NIC, a cache whose threads wait on two NAPIs, and a web server.
fn two_servers(queues: u32) -> Host {
    let mut host = nic(queues);
    host.processes.push(listening(812, "cache", 11_211, &[&[300], &[300]]));
    host.processes.push(listening(901, "web", 80, &[&[300]]));
    host
}

const TWO_SERVICES: &str = "\
[device.eth0]
policy = \"mix\"
#more
[service.cache]
match = { port = 11211 }
policy = \"latency\"
#cache
[service.web]
match = { port = 80 }
policy = \"bulk\"
";

/// Resolves each service to the processes with its name.
fn resolved(policy: &Policy, host: &Host) -> Resolved {
    policy.intents.iter().enumerate().fold(Resolved::default(), |all, (at, intent)| match &intent.target {
        Target::Service(name, _) => {
            let named = host.processes.iter().filter(|process| process.id.comm.as_str() == name);
            all.with(at, named.map(|process| process.id.pid).collect::<Vec<Pid>>())
        }
        Target::Device(_) | Target::Devices(..) | Target::Task(_) | Target::Epolls(..) => all,
    })
}

/// Returns the plan for the file on the host, or the refusal and its alternatives.
fn planned(file: &str, host: &Host) -> Result<Plan, (String, String)> {
    let wrong = |mistakes: Mistakes| {
        let help: Vec<String> = mistakes.0.iter().filter_map(|mistake| mistake.help.clone()).collect();
        (mistakes.to_string(), help.join("; "))
    };
    let parsed = parse("10-cache.toml", file).map_err(wrong)?;
    let mut merged = merge(&[parsed]).map_err(wrong)?;
    merged.recipes = recipes(&[]).expect("the shipped recipes");
    let policy = merged.policy();
    let plan = || {
        let selection = plan::select(&policy, host).without_clashes()?;
        let resolved = selection.noting(resolved(&policy, host));
        let placement = place(&selection.policy, host, &resolved)?;
        let desired = desired(&placement, host)?;
        diff(&desired, host)
    };
    plan().map_err(|refusal: Refusal| {
        let evidence = refusal.evidence.join("\n  ");
        (format!("{refusal}\n  {evidence}"), refusal.nearest.unwrap_or_default())
    })
}

fn divided() -> Vec<Case> {
    const MORE: (&str, &str, &str) = (
        "`settings = { combined-channels = 4 }` for device eth0",
        "#more",
        "settings = { combined-channels = 4 }",
    );
    const ONE: (&str, &str, &str) = ("`queues = 1` for service cache", "#cache", "queues = 1");
    const ALIKE: &str = "[service.cache]\nmatch = { port = 80 }\npolicy = \"latency\"\n\
                         [service.web]\nmatch = { port = 80 }\npolicy = \"bulk\"\n";
    const DEAF: &str = "[service.cache]\nmatch = { exe = \"/usr/bin/cache\" }\npolicy = \"latency\"\n\
                        [service.web]\nmatch = { port = 80 }\npolicy = \"bulk\"\n";
    let device = |change: fn(&mut Device)| with(two_servers(4), |host| change(&mut host.devices[0]));
    let same = ("the same policy for every request that receives on it", "\"latency\"", "\"bulk\"");
    vec![
        case("divide.rs", two_servers(2), TWO_SERVICES, [MORE]),
        case("divide.rs", two_servers(3), TWO_SERVICES, [MORE, ONE]),
        case(
            "divide.rs",
            with(two_servers(2), |host| host.devices[0].channels.as_mut().expect("some").combined.max = 2),
            TWO_SERVICES,
            [(
                "the same policy for the device and every request that receives on it",
                "policy = \"mix\"\n#more\n[service.cache]\nmatch = { port = 11211 }\npolicy = \"latency\"",
                "policy = \"bulk\"\n#more\n[service.cache]\nmatch = { port = 11211 }\npolicy = \"bulk\"",
            )],
        ),
        case(
            "divide.rs",
            device(|device| device.rss_contexts = None),
            TWO_SERVICES,
            [ONE, ("or policy bulk", "\"latency\"", "\"bulk\"")],
        ),
        case(
            "divide.rs",
            with(two_servers(4), |host| {
                host.processes[0].sockets.retain(|socket| socket.state != SocketState::TcpListen);
            }),
            DEAF,
            [
                (
                    "`match = { port = N }`",
                    "match = { exe = \"/usr/bin/cache\" }",
                    "match = { port = 11211 }",
                ),
                ("the same policy as the rest", "\"latency\"", "\"bulk\""),
            ],
        ),
        case(
            "divide.rs",
            with(two_servers(8), |host| {
                for socket in host.processes.iter_mut().flat_map(|process| &mut process.sockets) {
                    if socket.state == SocketState::TcpListen {
                        socket.local.as_mut().expect("an address").set_port(80);
                    }
                }
            }),
            ALIKE,
            [same],
        ),
        case(
            "divide.rs",
            device(|device| {
                let first = device.rx_queues[0].napi;
                device.rx_queues[1].napi = first;
            }),
            ALIKE,
            [same],
        ),
        case(
            "divide.rs",
            with(two_servers(8), |host| {
                let cache = &mut host.processes[0];
                let listener = cache.sockets.last().expect("a listener").clone();
                cache.sockets.extend((1..=u16::try_from(FlowRule::OF_A_DEVICE_MAX).expect("few")).map(
                    |port| {
                        let mut socket = listener.clone();
                        socket.local.as_mut().expect("an address").set_port(port);
                        socket
                    },
                ));
            }),
            "#own\n[service.cache]\nmatch = { port = 11211 }\npolicy = \"latency\"\n\
             [service.web]\nmatch = { port = 80 }\npolicy = \"bulk\"\n",
            [(
                "a request for the device with the most common policy",
                "#own",
                "[device.eth0]\npolicy = \"latency\"",
            )],
        ),
        case(
            "claim.rs",
            device(|device| device.flow_rules = None),
            ALIKE,
            [("the same policy for both", "\"latency\"", "\"bulk\"")],
        ),
    ]
}

fn of_a_device() -> Vec<Case> {
    let gro = |on: bool| {
        with(host(), |host| {
            let mut veth = veth(2, "eth0", if on { &[300] } else { &[] });
            veth.offloads.insert(Offload::Gro, on);
            host.devices.push(veth);
        })
    };
    vec![
        case(
            "nic.rs",
            gro(true),
            "[device.eth0]\ndelivery = \"suspend20\"\nsettings = { rx-gro = false }\n",
            [
                ("delivery = \"interrupt\"", "delivery = \"suspend20\"", "delivery = \"interrupt\""),
                ("without rx-gro", "settings = { rx-gro = false }", ""),
            ],
        ),
        case(
            "nic.rs",
            nic(2),
            "[device.eth0]\npolicy = \"none\"\nsettings = { rps_cpus = \"0-9\" }\n",
            [("CPUs of 0-3", "0-9", "0-3")],
        ),
        case(
            "nic.rs",
            nic(2),
            "[device.eth0]\npolicy = \"none\"\nsettings = { rss-queues = 4 }\n",
            [("rss-queues = 2", "rss-queues = 4", "rss-queues = 2")],
        ),
        case(
            "nic.rs",
            with(nic(4), |host| {
                host.devices[0].holders = vec![made::held(3, HolderKind::Dmabuf { id: 1 })];
                host.devices[0].rss = Some(Rss { table: vec![0, 1, 2, 0], key: vec![1; 40] });
            }),
            "[device.eth0]\npolicy = \"none\"\nsettings = { rss-queues = 4 }\n",
            [("rss-queues = 3", "rss-queues = 4", "rss-queues = 3")],
        ),
        case(
            "nic.rs",
            nic(2),
            "[device.eth0]\npolicy = \"none\"\nsettings = { rx-ring = 8192 }\n",
            [("rx-ring = 4096", "rx-ring = 8192", "rx-ring = 4096")],
        ),
        case(
            "nic/steering.rs",
            nic(2),
            "[device.eth0]\npolicy = \"none\"\nsettings = { ntuple = \"tcp4 dst-port 80 queue 1\" }\n",
            [("rx-ntuple-filter = true", "settings = { ", "settings = { rx-ntuple-filter = true, ")],
        ),
        case(
            "nic/steering.rs",
            nic(4),
            "[device.eth0]\npolicy = \"none\"\nsettings = { rx-ntuple-filter = true, \
             ntuple = \"tcp4 dst-port 80 context 2-3\" }\n",
            [("rss-contexts = \"2-3\"", "settings = { ", "settings = { rss-contexts = \"2-3\", ")],
        ),
        case(
            "objects.rs",
            nic(2),
            "[device.eth0]\npolicy = \"none\"\nlayout = \"rx 5 tx 0 cpus 0\"\n",
            [("receive queues 0 to 1", "rx 5", "rx 1")],
        ),
    ]
}

fn of_a_mode() -> Vec<Case> {
    let old = |release: &str| with_kernel(two_servers(4), release);
    let threads = |busy: bool| {
        with(nic(2), |host| {
            host.capabilities.napi_threaded_busy = busy;
            host.topology.cpus.iter_mut().for_each(|cpu| cpu.siblings = [cpu.cpu].into_iter().collect());
        })
    };
    let throttling = |host: Host| {
        with(host, |host| host.rt_throttling = Some(RtThrottling { runtime_us: -1, period_us: 1_000_000 }))
    };
    let by_ring = with(nic(2), |host| {
        let mut process = server(812, "cache", &[&[300]]);
        process.epolls.clear();
        process.rings.push(IoUring {
            id: RingId { process: process.id, fd: Fd(3) },
            napi: None,
            registered_sockets: 1,
            closed: Some("its descriptor is not there".to_owned()),
        });
        host.processes.push(process);
    });
    let two_devices = with(nic(2), |host| {
        let mut other = device(3, "eth1", &[400]);
        other.tx_queues = tx_queues(1);
        host.devices.push(other);
        host.processes.push(server(812, "cache", &[&[300, 400]]));
    });
    const CACHE: &str = "[service.cache]\nmatch = { port = 11211 }\npolicy = \"latency\"\n";
    vec![
        case(
            "selection.rs",
            two_servers(4),
            "[device.\"eth*\"]\npolicy = \"bulk\"\n[device.\"*th0\"]\npolicy = \"cpu\"\n#own\n",
            [("a section [device.eth0]", "#own", "[device.eth0]\npolicy = \"bulk\"")],
        ),
        case("place.rs", by_ring, CACHE, [("defer20", "policy = \"latency\"", "delivery = \"defer20\"")]),
        case(
            "place.rs",
            two_devices,
            "[device.eth0]\npolicy = \"latency\"\n[device.eth1]\npolicy = \"bulk\"\n#own\n",
            [("a request for cache[812] itself", "#own", CACHE)],
        ),
        case(
            "desired.rs",
            old("6.12.1"),
            CACHE,
            [
                ("defer20", "policy = \"latency\"", "delivery = \"defer20\""),
                ("or napibusy", "policy = \"latency\"", "delivery = \"napibusy\""),
            ],
        ),
        case(
            "desired.rs",
            old("6.8.0"),
            "[service.cache]\nmatch = { port = 11211 }\ndelivery = \"napibusy\"\n",
            [("defer200", "napibusy", "defer200")],
        ),
        case(
            "desired.rs",
            old("5.4.0"),
            "[device.eth0]\ndelivery = \"defer20\"\n",
            [("interrupt", "defer20", "interrupt")],
        ),
        case(
            "budget.rs",
            two_servers(8),
            "[service.cache]\nmatch = { port = 11211 }\ndelivery = \"fullbusy\"\n#cache\n",
            [
                ("`budget = { polling_cpus = 2 }`", "#cache", "budget = { polling_cpus = 2 }"),
                ("or suspend20", "fullbusy", "suspend20"),
            ],
        ),
        case(
            "budget.rs",
            threads(true),
            "[device.eth0]\ndelivery = \"threaded-busy\"\n#more\n",
            [
                ("`budget = { polling_cpus = 2 }`", "#more", "budget = { polling_cpus = 2 }"),
                ("or threaded", "threaded-busy", "threaded"),
            ],
        ),
        // More queues mean more kernel threads: the refusal must count the threads that will exist.
        case(
            "budget.rs",
            threads(true),
            "[device.eth0]\ndelivery = \"threaded-busy\"\nsettings = { combined-channels = 4 }\n#more\n",
            [("`budget = { polling_cpus = 4 }`", "#more", "budget = { polling_cpus = 4 }")],
        ),
        case(
            "kthread.rs",
            threads(false),
            "[device.eth0]\npolicy = \"latency\"\nkthread = { cpus = \"irq\" }\n",
            [
                ("delivery = \"threaded\"", "policy = \"latency\"", "delivery = \"threaded\""),
                ("without these values", "kthread = { cpus = \"irq\" }", ""),
            ],
        ),
        case(
            "kthread.rs",
            threads(false),
            "[device.eth0]\ndelivery = \"threaded-busy\"\nbudget = { polling_cpus = 2 }\n",
            [("threaded", "threaded-busy", "threaded")],
        ),
        case(
            "kthread.rs",
            with(with_kernel(nic(2), "5.10.0"), |host| host.devices[0].threaded = None),
            "[device.eth0]\ndelivery = \"threaded\"\n",
            [("interrupt", "threaded", "interrupt")],
        ),
        case(
            "kthread.rs",
            threads(false),
            "[device.eth0]\ndelivery = \"threaded\"\nkthread = { class = \"fifo:60\" }\n#more\n",
            [
                ("`budget = { rt_priority = 60 }`", "#more", "budget = { rt_priority = 60 }"),
                ("or a priority of 50 or less", "fifo:60", "fifo:50"),
            ],
        ),
        case(
            "kthread.rs",
            threads(true),
            "[device.eth0]\ndelivery = \"threaded-busy\"\nkthread = { class = \"fifo:10\" }\n\
             budget = { polling_cpus = 2 }\n",
            [
                ("threaded-busy with `other:-20`", "fifo:10", "other:-20"),
                ("threaded with this class", "threaded-busy", "threaded"),
            ],
        ),
        case(
            "kthread.rs",
            throttling(threads(false)),
            "[device.eth0]\ndelivery = \"threaded\"\nkthread = { class = \"fifo:10\" }\n",
            [("`other:-20`", "fifo:10", "other:-20")],
        ),
        case(
            "kthread.rs",
            threads(false),
            "[device.eth0]\ndelivery = \"threaded\"\nkthread = { class = \"fifo:10\", slice = \"500us\" }\n",
            [
                ("class fifo:10 without a slice", ", slice = \"500us\"", ""),
                ("or `other` with a slice", "fifo:10", "other"),
            ],
        ),
        case(
            "kthread.rs",
            with(nic(2), |host| {
                let class = KthreadKnob::Scheduling("fifo:10".parse().expect("a class"));
                let queue = host.devices[0].rx_queues[0].id;
                made::write(host, &Setting::Napi(queue, NapiKnob::Threaded(Threading::On)));
                made::write(host, &Setting::Kthread(queue, class));
            }),
            "[device.eth0]\ndelivery = \"threaded\"\nkthread = { slice = \"500us\" }\n",
            [
                ("class = \"other\" with a slice", "slice =", "class = \"other\", slice ="),
                ("class fifo:10 without a slice", "kthread = { slice = \"500us\" }", ""),
            ],
        ),
        case(
            "kthread.rs",
            threads(false),
            "[device.eth0]\ndelivery = \"threaded\"\nkthread = { cpus = \"9\" }\n",
            [("CPUs of 0-3", "\"9\"", "\"0-3\"")],
        ),
        case(
            "kthread.rs",
            with(threads(false), |host| host.devices[0].napis.iter_mut().for_each(|napi| napi.irq = None)),
            "[device.eth0]\ndelivery = \"threaded\"\nkthread = { cpus = \"irq\" }\n",
            [("kthread = { cpus = \"0\" }", "kthread = { cpus = \"irq\" }", "kthread = { cpus = \"0\" }")],
        ),
        case(
            "kthread.rs",
            threads(false),
            "[device.eth0]\ndelivery = \"threaded\"\nkthread = { cpus = \"sibling\" }\n",
            [(
                "kthread = { cpus = \"irq\" }",
                "kthread = { cpus = \"sibling\" }",
                "kthread = { cpus = \"irq\" }",
            )],
        ),
    ]
}

/// Returns the cases in which a value contradicts a mode.
fn of_values() -> Vec<Case> {
    let on = |file, ways: Vec<(&'static str, &'static str, &'static str)>| Case {
        from: "parameters.rs",
        host: nic(2),
        file,
        ways: ways.into_iter().map(|(says, instead, written)| way(says, instead, written)).collect(),
    };
    vec![
        on(
            "[device.eth0]\ndelivery = \"interrupt\"\ngro_flush_timeout = \"20us\"\n",
            vec![
                ("without these values", "gro_flush_timeout = \"20us\"", ""),
                ("delivery = \"defer20\"", "delivery = \"interrupt\"", "delivery = \"defer20\""),
            ],
        ),
        on(
            "[device.eth0]\ndelivery = \"threaded-busy\"\ngro_flush_timeout = \"20us\"\n",
            vec![(
                "delivery = \"threaded\", or",
                "\"threaded-busy\"\ngro_flush_timeout = \"20us\"",
                "\"threaded\"",
            )],
        ),
        on(
            "[device.eth0]\ndelivery = \"threaded\"\ngro_flush_timeout = \"20us\"\n",
            vec![("without these values", "gro_flush_timeout = \"20us\"", "")],
        ),
        on(
            "[device.eth0]\ndelivery = \"eventbusy\"\ngro_flush_timeout = \"20us\"\nbudget = { polling_cpus = 1 }\n",
            vec![("delivery = \"napibusy\"", "delivery = \"eventbusy\"", "delivery = \"napibusy\"")],
        ),
        on(
            "[device.eth0]\ndelivery = \"defer20\"\ndefer_hard_irqs = 0\n",
            vec![
                ("defer20 with its default values", "defer_hard_irqs = 0", ""),
                (
                    "delivery = \"interrupt\"",
                    "delivery = \"defer20\"\ndefer_hard_irqs = 0",
                    "delivery = \"interrupt\"",
                ),
            ],
        ),
        on(
            "[device.eth0]\ndelivery = \"suspend20\"\nirq_suspend_timeout = \"0\"\n",
            vec![(
                "delivery = \"defer20\"",
                "delivery = \"suspend20\"\nirq_suspend_timeout = \"0\"",
                "delivery = \"defer20\"",
            )],
        ),
        on(
            "[device.eth0]\ndelivery = \"defer20\"\nirq_suspend_timeout = \"20ms\"\n",
            vec![("delivery = \"suspend20\"", "delivery = \"defer20\"", "delivery = \"suspend20\"")],
        ),
        on(
            "[device.eth0]\ndelivery = \"suspend2000\"\nbudget = { added_delay = \"100us\" }\n",
            vec![("suspend100", "suspend2000", "suspend100")],
        ),
        on(
            "[device.eth0]\ndelivery = \"defer20\"\nbudget = { added_delay = \"0\" }\n",
            vec![("interrupt", "defer20", "interrupt")],
        ),
        on(
            "[device.eth0]\ndelivery = \"napibusy\"\nbudget = { added_delay = \"100us\" }\n",
            vec![(
                "napibusy with gro-flush-timeout 100us",
                "\"napibusy\"",
                "\"napibusy\"\ngro_flush_timeout = \"100us\"",
            )],
        ),
    ]
}

fn cases() -> Vec<Case> {
    let mut all = divided();
    all.extend(of_a_device());
    all.extend(of_a_mode());
    all.extend(of_values());
    all
}

/// Returns the faults of a case; empty if every alternative works.
fn wrong(case: &Case) -> Vec<String> {
    let Err((refusal, nearest)) = planned(case.file, &case.host) else {
        return vec![format!("{}: the policy is not refused:\n{}", case.from, case.file)];
    };
    let said = format!("{}: {refusal}\n  what works: {nearest}\n{}", case.from, case.file);
    let mut wrong = Vec::new();
    for Way { says, instead, written } in &case.ways {
        let quoted = says.split('`').skip(1).step_by(2).filter(|quoted| !quoted.contains(" = N "));
        // Text in backticks is TOML that can be pasted unchanged.
        let otherwise = quoted.filter(|quoted| !written.contains(quoted));
        wrong.extend(otherwise.map(|quoted| format!("{quoted} is not written in that form: {written}")));
        if !nearest.contains(says) || !case.file.contains(instead) {
            wrong.push(format!("the refusal lacks `{says}`, or the file lacks `{instead}`: {said}"));
        }
        let file = case.file.replacen(instead, written, 1);
        if let Err((again, nearest)) = planned(&file, &case.host) {
            wrong.push(format!("{said}{file}is refused, too: {again}\n  what works: {nearest}"));
        }
    }
    wrong
}

#[test]
fn what_works_works_as_it_is_typed() {
    let cases = cases();
    assert!(cases.iter().all(|case| !case.ways.is_empty()));
    let wrong: Vec<String> = cases.iter().flat_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Alternatives that are not written into a policy file, and the reason or the test that covers them.
const ELSEWHERE: &[(&str, usize, &str)] = &[
    ("desired.rs", 1, "another command, for a kernel that the tests run in a guest"),
    ("wanted.rs", 1, "the same value in both requests: values of two requests for one device"),
    ("holders.rs", 1, "stopping another program, which no policy file can do"),
    ("nic.rs", 1, "what_queues_would_lose_is_put_back_first"),
    ("nic.rs", 1, "a NIC whose channels are separate, which what_the_driver_cannot_is_refused_… covers"),
    ("nic.rs", 1, "a device with one transmit queue: the recorded hosts have more"),
    ("parameters.rs", 1, "suspension that is shorter than deferral: the parser refuses it, with the place"),
    ("place.rs", 1, "run the same command in the process's namespace"),
    ("recipe/mod.rs", 2, "the parser refuses a service with mix, and every policy has a recipe"),
];

#[test]
fn every_way_out_of_a_refusal_is_tried() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plan/src");
    let cases = cases();
    let mut directories = vec![sources.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("the planner's source") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source file");
            let name = path.strip_prefix(&sources).expect("a source file").to_string_lossy().into_owned();
            let sites = text.matches(".nearest(").count();
            let tried = cases.iter().filter(|case| case.from == name).count();
            let elsewhere: usize = ELSEWHERE.iter().filter(|(of, ..)| *of == name).map(|(_, n, _)| n).sum();
            assert!(sites <= tried + elsewhere, "{name}: {sites} alternatives, {tried} of them tried");
        }
    }
}

#[test]
fn what_queues_would_lose_is_put_back_first() {
    let mut host = nic(4);
    host.devices[0].rx_queues[3].rps_cpus = (0..2).map(model::Cpu).collect();
    host.devices[0].napis[3].gro_flush_timeout = Some(model::Nanoseconds(20_000));
    host.devices[0].napis[3].defer_hard_irqs = Some(model::EmptyPolls(1));
    let fewer = "[device.eth0]\npolicy = \"none\"\nsettings = { combined-channels = 2 }\n";
    let (_, nearest) = planned(fewer, &host).expect_err("values would be lost");
    assert_eq!(
        nearest,
        "first netpolicy set device eth0 interrupt --setting rps_cpus=none --setting rps_flow_cnt=0, which is a change that can be undone"
    );
    let first =
        "[device.eth0]\ndelivery = \"interrupt\"\nsettings = { rps_cpus = \"none\", rps_flow_cnt = 0 }\n";
    for change in planned(first, &host).expect("planned").changes() {
        made::write(&mut host, change.to());
    }
    planned(fewer, &host).expect("no value is lost any more");
}

#[test]
fn settings_that_need_queues_of_the_same_request_are_planned_when_these_are_there() {
    let mut host = nic(2);
    let file = "[device.eth0]\npolicy = \"none\"\nlayout = \"rx 3 tx 3 cpus 0\"\nsettings = { combined-channels = 4, \
                rss-queues = 4, rss-contexts = \"2-3\", rx-ntuple-filter = true, ntuple = \"tcp4 dst-port 80 queue 3\" }\n";
    let first = planned(file, &host).expect("planned");
    assert_eq!(first.changes().map(|change| change.to().knob()).collect::<Vec<_>>(), ["combined-channels"]);
    let none = file.replace("combined-channels = 4", "combined-channels = 2");
    planned(&none, &host).expect_err("queues that will not be there");
    host.devices[0] = nic(4).devices.remove(0);
    let then = planned(file, &host).expect("planned");
    assert!(then.changes().any(|change| matches!(change.to(), Setting::Nic(_, NicKnob::RssContext(..)))));
    assert!(then.changes().any(|change| matches!(change.to(), Setting::Nic(_, NicKnob::FlowRule(..)))));
}

#[test]
fn a_veth_gets_its_napis_and_its_mode_from_one_request() {
    let mut host = host();
    let mut veth = veth(2, "eth0", &[]);
    veth.offloads.insert(Offload::Gro, false);
    host.devices.push(veth);
    let plain = "[device.eth0]\ndelivery = \"suspend20\"\n";
    planned(plain, &host).expect_err("no NAPI");
    let with_gro = format!("{plain}settings = {{ rx-gro = true }}\n");
    let first = planned(&with_gro, &host).expect("planned");
    assert_eq!(first.changes().map(|change| change.to().knob()).collect::<Vec<_>>(), ["rx-gro"]);
}

/// Returns the remedies in the planner's snapshots of `doctor`: the text after `→`.
fn remedies_of_doctor() -> BTreeSet<String> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plan/tests/plan/snapshots");
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(tests).expect("the planner's snapshots") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a snapshot");
        found.extend(text.lines().filter_map(|line| line.strip_prefix("    → ")).map(str::to_owned));
    }
    found
}

/// Checks that a policy file fragment is in the section that it names, parses, and can be planned.
fn typed_into_a_file(words: &str) -> Result<(), String> {
    let (section, keys) = words.split_once(": ").ok_or("no section")?;
    let file = format!("{section}\n{}\n", keys.replace(" and ", "\n"));
    let host = with(nic(2), |host| {
        host.devices[0].coalesce = Some(Coalesce { adaptive_rx: Some(true), ..Coalesce::default() })
    });
    planned(&file, &host).map(drop).map_err(|(why, _)| format!("{why}\n{file}"))
}

/// Checks that a `set` command can be planned on a host that has its device or process, and that its options
/// permit the plan.
fn can_be_set(set: &Set) -> Result<(), String> {
    let (target, request, nic_requests) = match &set.target {
        SetTarget::Device { name, request, settings } => {
            let requests = settings.iter().map(|setting| setting.request.clone()).collect();
            (Target::Device(name.clone()), *request, requests)
        }
        SetTarget::Service { .. } => return Err("no remedy sets a service".to_owned()),
        SetTarget::Task { pid, request } => (Target::Task(Pid(*pid)), *request, Vec::new()),
    };
    let host = with(nic(2), |host| {
        if let Target::Device(name) = &target {
            host.devices[0] = Device { id: made::device_id(2, name), ..host.devices[0].clone() };
            for queue in &mut host.devices[0].rx_queues {
                queue.id.device = made::device_id(2, name);
            }
        }
        host.processes.push(listening(812, "cache", 11_211, &[&[300], &[301]]));
    });
    let kthread = set.kthread.request();
    let intent =
        Intent { nic: nic_requests, kthread, ..request.intent(target, "netpolicy set", set.cost.budget()) };
    let recipes = recipes(&[]).expect("the shipped recipes");
    let policy = Policy { intents: vec![intent], recipes, disruptive: set.allow.disruptive, inferred: false };
    let plan = place(&policy, &host, &Resolved::default())
        .and_then(|placement| diff(&desired(&placement, &host)?, &host))
        .map_err(|refusal| refusal.to_string())?;
    let disturbs = plan.changes().find(|change| change.to().disruption() != Disruption::None);
    match disturbs.filter(|_| !set.allow.disruptive) {
        Some(change) => Err(format!("{change} needs --disruptive")),
        None => Ok(()),
    }
}

/// Checks a command with netpolicy's parser, or a shell command with a shell.
fn typed(command: &str) -> Result<(), String> {
    if let Some(words) = command.strip_prefix("in a policy file, under ") {
        return typed_into_a_file(words);
    }
    let command = command.rsplit_once("device is PEER: ").map_or(command, |(_, command)| command);
    if let Some(arguments) = command.strip_prefix("netpolicy ") {
        let words = std::iter::once("netpolicy").chain(arguments.split(' '));
        let arguments = Arguments::try_parse_from(words).map_err(|error| error.to_string())?;
        return match &arguments.command {
            Command::Set(set) => can_be_set(set),
            _ => Ok(()),
        };
    }
    let known = ["ethtool", "sysctl", "taskset", "echo", "chrt", "for", "nsenter"];
    if !known.contains(&command.split(' ').next().unwrap_or_default()) {
        return Err("the remedy is not a command".to_owned());
    }
    let checked = std::process::Command::new("sh").args(["-n", "-c", command]).output();
    let checked = checked.map_err(|error| error.to_string())?;
    checked
        .status
        .success()
        .then_some(())
        .ok_or_else(|| String::from_utf8_lossy(&checked.stderr).into_owned())
}

#[test]
fn every_remedy_of_doctor_can_be_typed() {
    // Remedies in prose: steps for the application's operator, and a key to add to an existing section.
    const WORDS: [&str; 4] = [
        "as many workers as queues",
        "run it with CAP_SYS_PTRACE",
        "set irq_suspend_timeout = ",
        "make the application call epoll_wait",
    ];
    let remedies = remedies_of_doctor();
    assert!(remedies.len() > 10, "{remedies:?}");
    let mut wrong = Vec::new();
    for remedy in remedies.iter().filter(|remedy| !WORDS.iter().any(|words| remedy.starts_with(words))) {
        let shell = remedy.starts_with("for ");
        let commands = if shell { vec![remedy.as_str()] } else { remedy.split("; ").collect() };
        for command in commands {
            let command = command.strip_prefix("then ").unwrap_or(command);
            wrong.extend(typed(command).err().map(|why| format!("{command}: {why}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
