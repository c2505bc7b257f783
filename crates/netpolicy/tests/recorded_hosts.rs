//! Tests the shipped recipes on recorded hosts.

#[path = "../../plan/tests/plan/made.rs"]
#[expect(dead_code, reason = "only what describes a host is used here")]
mod made;

use std::fmt::Write as _;
use std::sync::Arc;

use model::host::{AppRequest, Confidence, Device, Requester};
use model::policy::Match;
use model::{Host, Intent, IrqKnob, Offload, Pid, Policy, PolicyName, Recipes, Rss, Setting, Target};
use plan::{Refusal, Resolved, desired, diff, place};
use policy_file::recipes;

/// The recorded host as root sees it. nginx has a separate port, and its epoll is readable.
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

/// The host of [`cache_server`], with a NIC that has 8 queues, RSS contexts and ntuple rules.
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
    Policy {
        intents,
        recipes: recipes(&[]).expect("the shipped recipes"),
        disruptive: false,
        inferred: false,
    }
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

/// The shipped recipes.
fn shipped() -> Arc<Recipes> {
    recipes(&[]).expect("the shipped recipes")
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

/// The requests for all sockets of memcached and nginx.
fn requests_of_sockets(host: &Host) -> Vec<AppRequest> {
    let of = |(pid, policy): (u32, PolicyName)| {
        let sockets = &host.process(Pid(pid)).expect("it was recorded").sockets;
        let request = move |inode| AppRequest { of: Requester::Socket(inode), number: policy.number() };
        sockets.iter().map(move |socket| request(socket.inode))
    };
    [(812, PolicyName::Latency), (900, PolicyName::Bulk)].into_iter().flat_map(of).collect()
}

#[test]
fn sockets_of_a_recorded_host_get_queues_or_say_why_not() {
    let asked = policy(vec![intent(Target::Device("eth0".to_owned()), PolicyName::Mix, 2)]);
    let mut host = with_rules();
    let requests = requests_of_sockets(&host);
    let joined = |host: &Host| {
        let joined = plan::app_requests::join(&asked, &requests, host, &Resolved::default());
        assert_eq!(joined.notes, [""; 0]);
        joined.policy
    };
    let planned = |host: &Host| {
        let placement = place(&joined(host), host, &Resolved::default()).expect("placed");
        diff(&desired(&placement, host).expect("desired"), host).expect("a plan")
    };
    let placement = place(&joined(&host), &host, &Resolved::default()).expect("placed");
    let rules: Vec<String> = placement.divisions[0]
        .shares
        .iter()
        .flat_map(|share| share.rules.iter().map(|rule| rule.flow.to_string()))
        .collect();
    // Each epoll watches its listener, so connections need no rules.
    assert_eq!(rules, ["tcp4 dst-port 11211", "tcp4 dst-port 80"]);
    for change in planned(&host).changes() {
        made::write(&mut host, change.to());
    }
    assert!(planned(&host).is_empty(), "applying twice changes nothing");

    let host = cache_server();
    let placement = place(&joined(&host), &host, &Resolved::default()).expect("placed");
    for part in placement.parts.iter().filter(|part| matches!(part.intent.target, Target::Epolls(..))) {
        let why = "it gets no dedicated queues on eth0: its driver has no ntuple rules";
        assert!(part.notes.iter().any(|note| note == why), "{:?}", part.notes);
    }
}

/// A host with a NIC that is modelled on its driver's source, not captured. Interrupts are reported if the
/// fact `irq_stated` says so. Otherwise they are matched by name, or unknown if the driver's names contain no
/// queue number.
fn built_from_source(driver: &str) -> Host {
    let facts = policy_file::nic_facts();
    let facts = &facts.drivers[driver];
    let napis: &[u32] = if driver == "r8169" { &[259] } else { &[259, 260, 261, 262] };
    let mut host = made::host();
    host.devices.push(Device { kind: driver.to_owned(), ..made::device(2, "eth0", napis) });
    let mut host = made::with_irqs(host, 40);
    let stated = facts.irq_stated.as_ref().is_some_and(|fact| fact.is);
    for (at, napi) in host.devices.last_mut().expect("the NIC").napis.iter_mut().enumerate() {
        let form = facts.irq_names.as_ref();
        let Some(edge) = &mut napi.irq else { continue };
        let name = form.map(|form| {
            let name = form.is.replace("{device}", "eth0").replace("{queue}", &at.to_string());
            name.replace("virtio*", "virtio1").replace("pci:*", "pci:0000:3b:00.0")
        });
        let irq = host.irqs.iter_mut().find(|irq| irq.number == edge.irq).expect("its interrupt");
        irq.name = name.clone().unwrap_or_else(|| format!("vector{at}"));
        if stated {
            continue;
        }
        edge.confidence = Confidence::ByName;
        // Without a queue number in its name, an interrupt is not matched to a queue.
        if name.is_none() {
            napi.irq = None;
        }
    }
    if !stated {
        // Drivers without netif_queue_set_napi(), such as i40e.
        for queue in &mut host.devices.last_mut().expect("the NIC").rx_queues {
            queue.napi.as_mut().expect("a NAPI").confidence = Confidence::ByOrder;
        }
    }
    host
}

fn planned(policy: &Policy, host: &Host) -> model::Plan {
    let selection = plan::select(policy, host).without_clashes().expect("one section");
    let placement = place(&selection.policy, host, &selection.noting(Resolved::default())).expect("placed");
    diff(&desired(&placement, host).expect("desired"), host).expect("a plan")
}

#[test]
fn every_driver_of_a_data_centre_is_planned_set_judged_and_undone() {
    for driver in policy_file::nic_facts().drivers.keys() {
        let mut host = built_from_source(driver);
        let before = host.clone();
        let mut asked = intent(Target::Device("eth0".to_owned()), PolicyName::Latency, 2);
        asked.cpus = Some("0-1".parse().expect("CPUs"));
        let policy = policy(vec![asked]);
        let plan = planned(&policy, &host);
        assert!(!plan.is_empty(), "{driver}");
        let pins = plan
            .changes()
            .filter(|change| matches!(change.to(), Setting::Irq(_, IrqKnob::Affinity(_))))
            .count();
        let queues = host.devices[0].rx_queues.len();
        // mana's interrupt names contain no queue number, so no interrupt is pinned.
        let expected = if driver == "mana" { 0 } else { queues };
        assert_eq!(pins, expected, "{driver}");
        for change in plan.changes() {
            made::write(&mut host, change.to());
        }
        assert!(planned(&policy, &host).is_empty(), "{driver}: applying twice changes nothing");
        let context = plan::doctor::HostContext { recipes: shipped(), ..Default::default() };
        let selection = plan::select(&policy, &host);
        let placement = place(&selection.policy, &host, &Resolved::default()).expect("placed");
        let findings = plan::doctor_with(&host, None, &placement.asked(), &context);
        let forgets = findings.iter().any(|finding| finding.rule == "driver-forgets-napi");
        let facts = policy_file::nic_facts();
        let persists = facts.drivers[driver].napi_config_persists.as_ref().is_some_and(|fact| fact.is);
        assert_eq!(forgets, !persists, "{driver}");
        let loses = findings.iter().any(|finding| finding.rule == "driver-forgets-affinity");
        let kept = facts.drivers[driver].irq_affinity_kept.as_ref().is_some_and(|fact| fact.is);
        assert_eq!(loses, !kept && expected > 0, "{driver}");
        assert!(!findings.iter().any(|finding| finding.rule == "irq-inferred"), "{driver}");
        for change in plan.changes().collect::<Vec<_>>().into_iter().rev() {
            made::write(&mut host, change.from());
        }
        assert!(host == before, "{driver}: the whole host has its former state");
    }
}

/// The recipe of the reference page is planned, and its effect is undone, where the driver has aRFS.
#[test]
fn a_site_recipe_turns_on_rfs_everywhere_and_arfs_where_the_driver_has_it() {
    const PAGE: &str = include_str!("../../../docs/reference/recipes.md");
    const NAME: &str = "# /etc/netpolicy/recipes.d/30-arfs.toml";
    let text = PAGE.split("```toml\n").find(|block| block.starts_with(NAME)).expect("the recipe");
    let text = text.split("```").next().expect("the block").to_owned();
    let site = Arc::new(recipes(&[("30-arfs.toml".to_owned(), text)]).expect("a recipe file"));
    for (driver, accelerated) in [("mlx5_core", true), ("ice", false)] {
        let mut host = built_from_source(driver);
        host.sysctls.insert(model::Sysctl::RpsSockFlowEntries, 0);
        let nic = host.devices.last_mut().expect("the NIC");
        nic.offloads.insert(Offload::Ntuple, false);
        for queue in &mut nic.rx_queues {
            queue.rps_flow_cnt = Some(0);
        }
        let before = host.clone();
        let mut asked = policy(vec![intent(Target::Device("eth0".to_owned()), PolicyName::Bulk, 2)]);
        asked.recipes = Arc::clone(&site);
        let plan = planned(&asked, &host);
        let text: Vec<String> = plan.changes().map(|change| format!("{:?}", change.to())).collect();
        let flows = text.iter().filter(|change| change.contains("RpsFlowCount(4096)")).count();
        assert_eq!(flows, 4, "{driver}: {text:#?}");
        assert!(text.iter().any(|change| change.contains("RpsSockFlowEntries")), "{driver}: {text:#?}");
        assert_eq!(text.iter().any(|change| change.contains("Ntuple")), accelerated, "{driver}: {text:#?}");
        for change in plan.changes() {
            made::write(&mut host, change.to());
        }
        assert!(planned(&asked, &host).is_empty(), "{driver}: applying twice changes nothing");
        for change in plan.changes().collect::<Vec<_>>().into_iter().rev() {
            made::write(&mut host, change.from());
        }
        assert!(host == before, "{driver}");
    }
}

/// The hosts that the example `record_host` recorded: those with a description.
fn captured() -> Vec<(String, Host)> {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&directory).expect("the recorded hosts").flatten() {
        let about = entry.path();
        if about.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&about).expect("a description");
        assert!(text.starts_with("origin = \"") && text.contains("\nkernel = \""), "{}", about.display());
        let text = std::fs::read_to_string(about.with_extension("json")).expect("its host");
        let name = about.file_stem().expect("a name").to_string_lossy().into_owned();
        found.push((name, serde_json::from_str(&text).expect("a host")));
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    found
}

#[test]
fn every_device_of_a_captured_host_is_planned_set_judged_and_undone_for_every_policy() {
    let mut drivers = std::collections::BTreeSet::new();
    for (name, captured) in captured() {
        let mut addresses = captured.devices.iter().filter_map(|device| device.link.mac.as_ref());
        assert!(addresses.all(|mac| mac.starts_with("02:00:00:00:")), "{name}: addresses");
        assert!(
            captured.processes.is_empty() && captured.irqs.iter().all(|irq| irq.counts.is_empty()),
            "{name}"
        );
        for device in captured.devices.iter().filter(|device| !device.napis.is_empty()) {
            drivers.insert(device.kind.clone());
            for policy_name in PolicyName::ALL {
                let mut host = captured.clone();
                let what = format!("{name}: {} ({}), {policy_name}", device.id.name, device.kind);
                let target = Target::Device(device.id.name.to_string());
                let policy = policy(vec![intent(target, policy_name, 2)]);
                let plan = planned(&policy, &host);
                for change in plan.changes() {
                    made::write(&mut host, change.to());
                }
                assert!(planned(&policy, &host).is_empty(), "{what}: applying twice changes nothing");
                let context = plan::doctor::HostContext { recipes: shipped(), ..Default::default() };
                let selection = plan::select(&policy, &host);
                let placement = place(&selection.policy, &host, &Resolved::default()).expect("placed");
                let _ = plan::doctor_with(&host, None, &placement.asked(), &context);
                for change in plan.changes().collect::<Vec<_>>().into_iter().rev() {
                    made::write(&mut host, change.from());
                }
                assert!(host == captured, "{what}: the whole host has its former state");
            }
        }
    }
    for driver in ["virtio_net", "igb"] {
        assert!(drivers.contains(driver), "a {driver} was captured: {drivers:?}");
    }
}

#[test]
fn an_interrupt_that_only_looks_like_a_queues_is_not_pinned_unless_that_is_allowed() {
    let mut host = built_from_source("i40e");
    host.devices[0].kind = "vmxnet3".to_owned();
    for (at, irq) in host.irqs.iter_mut().enumerate() {
        irq.name = format!("eth0-rxtx-{at}");
    }
    let mut asked = intent(Target::Device("eth0".to_owned()), PolicyName::None, 2);
    asked.cpus = Some("0-1".parse().expect("CPUs"));
    asked.delivery = Some("defer50".parse().expect("a mode"));
    let mut policy = policy(vec![asked]);
    let pins = |policy: &Policy| {
        let plan = planned(policy, &host);
        plan.changes().filter(|change| matches!(change.to(), Setting::Irq(..))).count()
    };
    assert_eq!(pins(&policy), 0);
    let words = printed(&policy, &host, &Resolved::default()).expect("planned");
    assert!(
        words.contains("4 interrupt(s) are not pinned: the driver does not report their queues"),
        "{words}"
    );
    assert!(words.contains("`eth0-rxtx-0`, inferred from its name"), "{words}");
    policy.inferred = true;
    assert_eq!(pins(&policy), 4);
    let context = plan::doctor::HostContext { recipes: shipped(), ..Default::default() };
    let findings = plan::doctor_with(&host, None, &[], &context);
    assert!(findings.iter().any(|finding| finding.rule == "irq-inferred"), "{findings:?}");
}

#[test]
fn a_host_whose_msi_irqs_is_empty_gets_no_interrupt_pinned() {
    let mut host = built_from_source("ena");
    host.irqs.clear();
    for napi in &mut host.devices[0].napis {
        napi.irq = None;
    }
    let mut asked = intent(Target::Device("eth0".to_owned()), PolicyName::Latency, 2);
    asked.cpus = Some("0-1".parse().expect("CPUs"));
    let policy = policy(vec![asked]);
    assert!(!planned(&policy, &host).changes().any(|change| matches!(change.to(), Setting::Irq(..))));
    let words = printed(&policy, &host, &Resolved::default()).expect("planned");
    assert!(words.contains("4 queue(s) have no known interrupt"), "{words}");
}

#[test]
fn another_ring_size_says_that_the_driver_takes_the_carrier_off() {
    let mut host = built_from_source("ena");
    let pair = |current| model::host::Pair { current, max: 8192 };
    host.devices[0].rings = Some(model::host::Rings { rx: pair(1024), tx: pair(1024) });
    let mut asked = intent(Target::Device("eth0".to_owned()), PolicyName::None, 2);
    asked.delivery = Some("interrupt".parse().expect("a mode"));
    asked.nic = vec![model::NicRequest::Ring(model::RingKind::Rx, 4096)];
    let words = printed(&policy(vec![asked]), &host, &Resolved::default()).expect("planned");
    assert!(words.contains("briefly takes the link down (ena, Linux 7.3.4:"), "{words}");
    assert!(words.contains("ena_netdev.c:2248 ena_down"), "{words}");
}

/// The printed plan for a NIC with this driver and these requests.
fn said_of(driver: &str, change: impl FnOnce(&mut Device), nic: Vec<model::NicRequest>) -> String {
    let mut host = built_from_source(driver);
    change(&mut host.devices[0]);
    let mut asked = intent(Target::Device("eth0".to_owned()), PolicyName::None, 2);
    asked.delivery = Some("interrupt".parse().expect("a mode"));
    asked.nic = nic;
    printed(&policy(vec![asked]), &host, &Resolved::default()).expect("planned")
}

#[test]
fn a_plan_says_where_it_wants_more_contexts_or_rules_than_the_driver_takes() {
    let span = |first| model::QueueSpan { first, count: 1 };
    let context = |id| model::host::RssContext { id, queues: None, table: vec![0] };
    let there = |count: u32| {
        move |device: &mut Device| {
            device.rss_contexts = Some((1..=count).map(context).collect());
            device.flow_rules = Some(Vec::new());
        }
    };
    let wants = || vec![model::NicRequest::RssContexts(vec![span(1), span(2)])];
    let said = said_of("mlx5_core", there(14), wants());
    assert!(said.contains("2 more RSS contexts in addition to 14"), "{said}");
    assert!(said.contains("at most 15") && said.contains("rx_res.h:13 MLX5E_MAX_NUM_RSS"), "{said}");
    assert!(!said_of("mlx5_core", there(13), wants()).contains("at most"), "15 contexts are not too many");

    let flow = |port: u16| {
        let ip = model::IpFlow { destination_port: Some(port), ..model::IpFlow::all(model::Transport::Tcp) };
        let to = model::SteerTo::Queue(model::QueueIndex(1));
        model::FlowRule { flow: model::FlowMatch::Ip4(ip), to }
    };
    let rules = |count: u16| {
        move |device: &mut Device| {
            let placed = |at: u16| model::host::PlacedRule {
                location: u32::from(at),
                flow: Some(flow(at + 1).flow),
                to: model::SteerTo::Queue(model::QueueIndex(0)),
            };
            device.flow_rules = Some((0..count).map(placed).collect());
        }
    };
    let wants = || vec![model::NicRequest::FlowRules(vec![flow(1), flow(9_001)])];
    let said = said_of("iavf", rules(128), wants());
    assert!(said.contains("1 more ntuple rules in addition to 128") && said.contains("iavf.h:472"), "{said}");
    assert!(
        !said_of("iavf", rules(127), wants()).contains("at most"),
        "a flow that already has a rule keeps its position"
    );
}

#[test]
fn a_plan_says_what_the_driver_does_with_moderation_and_what_it_refuses() {
    let coalesce =
        model::host::Coalesce { rx_usecs: Some(50), adaptive_rx: Some(true), ..Default::default() };
    let moderated = |device: &mut Device| device.coalesce = Some(coalesce);
    let usecs = model::NicRequest::Coalescing(model::CoalesceParam::RxUsecs, 8);
    let said = said_of("ice", moderated, vec![usecs.clone()]);
    assert!(
        said.contains("its driver adapts rx-usecs to the traffic unless adaptive-rx is off (ice, Linux"),
        "{said}"
    );
    let off = model::NicRequest::Coalescing(model::CoalesceParam::AdaptiveRx, 0);
    assert!(!said_of("ice", moderated, vec![usecs.clone(), off]).contains("adapts rx-usecs"));
    assert!(
        !said_of("igc", moderated, vec![usecs]).contains("adapts rx-usecs"),
        "the driver does not do so by default"
    );

    let many = |device: &mut Device| {
        let pair = model::host::Pair { current: 4, max: 8 };
        device.channels = Some(model::host::Channels { combined: pair, ..Default::default() });
    };
    let fewer = vec![model::NicRequest::Channels(model::ChannelKind::Combined, 2)];
    let said = said_of("mlx5_core", many, fewer);
    assert!(
        said.contains("its driver refuses fewer channels than a user-configured RSS table uses"),
        "{said}"
    );
}

/// The rule and severity of each finding about a known fault of a host.
fn known_faults(host: &Host, asked: &[plan::RequestFacts], bpf_programs: Option<u32>) -> Vec<model::Finding> {
    let context = plan::doctor::HostContext {
        recipes: shipped(),
        bpf_programs,
        ..plan::doctor::HostContext::default()
    };
    let findings = plan::doctor_with(host, None, asked, &context);
    findings.into_iter().filter(|finding| finding.rule.starts_with("known-bad-")).collect()
}

#[test]
fn a_kernel_that_loops_in_epoll_is_named_on_every_recorded_host_by_doctor_and_plan() {
    for (name, captured) in captured() {
        for (release, severity) in [
            ("6.14.3-arch1-1", None),
            ("6.14.5-300.fc42.x86_64", Some(model::Severity::Warning)),
            ("6.14.7-1-default", Some(model::Severity::Warning)),
            ("6.14.8-2-pve", None),
            ("6.14.0-27-generic", Some(model::Severity::Note)),
            ("6.15.0-rc3", Some(model::Severity::Warning)),
            ("6.15.0-0.rc6.53.fc43.x86_64", Some(model::Severity::Warning)),
            ("6.15.0-rc7", None),
            ("6.15.2", None),
        ] {
            let host = made::with_kernel(captured.clone(), release);
            let found = known_faults(&host, &[], None);
            let what = format!("{name}, Linux {release}: {found:?}");
            assert_eq!(found.first().map(|finding| finding.severity), severity, "{what}");
            let Some(finding) = found.first() else { continue };
            assert_eq!(finding.object, format!("Linux {release}"), "{what}");
            assert!(
                finding.evidence.iter().any(|line| line.contains("6.14.4 until 6.14.8, 6.15-rc3")),
                "{what}"
            );
            assert!(finding.evidence.iter().any(|line| line.starts_with("source: https://lore")), "{what}");
            let device = host.devices.iter().find(|device| !device.napis.is_empty()).expect("a NIC");
            let target = Target::Device(device.id.name.to_string());
            let policy = policy(vec![intent(target, PolicyName::Latency, 2)]);
            let said = printed(&policy, &host, &Resolved::default()).expect("planned");
            assert!(said.contains("fault: epoll_wait() whose timeout"), "{what}: {said}");
        }
    }
}

#[test]
fn a_fault_of_a_driver_is_reported_only_on_hosts_that_provoke_it() {
    let mut ice = built_from_source("ice");
    assert_eq!(known_faults(&ice, &[], None), []);
    ice.topology.isolated = "2-3".parse().expect("CPUs");
    for irq in &mut ice.irqs {
        irq.effective_affinity = "0".parse().expect("a CPU");
    }
    assert_eq!(known_faults(&ice, &[], None), [], "all interrupts have their intended affinity");
    ice.irqs[1].effective_affinity = "3".parse().expect("a CPU");
    let found = known_faults(&ice, &[], None);
    assert_eq!(found.len(), 1, "{found:?}");
    let housekeeping = ice.topology.online.len() - 2;
    assert_eq!(found[0].remedy.as_deref(), Some(&*format!("ethtool -L eth0 combined {housekeeping}")));
    assert!(found[0].evidence.iter().any(|line| line.ends_with("ethernet-linux-ice/issues/66")));
    let mut other = ice.clone();
    other.devices[0].kind = "igb".to_owned();
    assert_eq!(known_faults(&other, &[], None), [], "the finding describes a fault of ice");

    let mut nss = built_from_source("ice");
    nss.devices[0].kind = "nss-dp".to_owned();
    let said = |mode: &str| {
        let mut asked = intent(Target::Device("eth0".to_owned()), PolicyName::None, 2);
        asked.delivery = Some(mode.parse().expect("a mode"));
        let policy = policy(vec![asked]);
        let placement = place(&policy, &nss, &Resolved::default()).expect("placed");
        let words = printed(&policy, &nss, &Resolved::default()).expect("planned");
        (known_faults(&nss, &placement.asked(), None).len(), words.contains("nss-packages/pull/72"))
    };
    assert_eq!(said("defer20"), (0, false));
    assert_eq!(said("suspend20"), (1, true), "it polls busily");
}

#[test]
fn many_bpf_programs_are_reported_only_on_the_series_that_hangs_when_they_are_freed() {
    let mut host = built_from_source("ice");
    for (release, programs, found) in [
        ("6.18.44", Some(1000), 1),
        ("6.18.0-5-generic", Some(1000), 1),
        ("6.18.44", Some(999), 0),
        ("6.18.44", None, 0),
        ("6.19.0-rc1", Some(5000), 0),
        ("6.12.48+deb13-amd64", Some(5000), 0),
    ] {
        host = made::with_kernel(host, release);
        assert_eq!(known_faults(&host, &[], programs).len(), found, "{release}, {programs:?}");
    }
}
