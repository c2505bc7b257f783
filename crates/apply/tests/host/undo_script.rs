//! Runs the undo script in real shells, on objects that the test has created.

mod stage;
mod steering;

use std::path::Path;
use std::process::Command;

use apply::{ObjectCookies, device_cookie_name};
use libtest_mimic::{Failed, Trial};
use model::setting::Threading;
use model::{
    Change, ChannelKind, CoalesceParam, Cpu, CpuSet, DeviceId, DeviceNapiKnob, EmptyPolls, EpollId,
    EpollParams, Fd, FlagName, HostKnob, IfIndex, IrqKnob, IrqNumber, KthreadKnob, Label, ListenerGroup,
    Nanoseconds, NapiKnob, NetnsId, NicKnob, Offload, PacketSize, Pid, ProcessId, ProcessKnob, Qdisc,
    QdiscKind, Qdiscs, QueueCoalesceParam, QueueIndex, QueueSpan, Reason, RingId, RingKind, RingNapi,
    RxQueue, RxQueueKnob, Scheduling, Setting, Slice, SocketId, SocketPolling, Spread, SteerTo, Sysctl,
    ThreadId, Transport, TxQueue, TxQueueKnob, UtilClamp,
};

use self::stage::{Child, Stage, runs};
use self::steering::flow;
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    let shellcheck = (!runs("shellcheck", &["--version"])).then_some("shellcheck");
    let dash = (!runs("dash", &["-c", "true"])).then_some("dash");
    let bash = (!runs("bash", &["-c", "true"])).then_some("bash");
    let busybox = (!runs("busybox", &["sh", "-c", "true"])).then_some("busybox");
    let python = (!runs("python3", &["--version"])).then_some("python3");
    let taskset = (!runs("taskset", &["--version"])).then_some("taskset");
    let chrt = (!runs("chrt", &["--version"])).then_some("chrt");
    let two_cpus = (std::thread::available_parallelism().is_ok_and(|n| n.get() < 2)).then_some("two CPUs");
    let epoll_params = (!kernel_has_epoll_params()).then_some("python3 and Linux 6.9");
    let rings = (!kernel_has_rings()).then_some("io_uring");
    let netns = (!can_make_netns()).then_some("root, unshare and ip");
    let tc = (!runs("tc", &["-Version"])).then_some("tc");
    vec![
        test(
            "shellcheck_has_nothing_to_say_about_a_script_for_every_knob",
            shellcheck,
            shellcheck_is_content,
        ),
        test("a_name_that_tries_to_be_a_command_stays_a_name", None, names_stay_names),
        test("a_name_with_backslashes_stays_a_name_under_dash", dash, || backslashes_stay(&["dash"])),
        test("a_name_with_backslashes_stays_a_name_under_bash", bash, || backslashes_stay(&["bash"])),
        test("a_name_with_backslashes_stays_a_name_under_busybox", busybox, || {
            backslashes_stay(&["busybox", "sh"])
        }),
        test(
            "a_program_of_bpf_is_left_to_netpolicy_and_said_so",
            None,
            a_program_of_bpf_is_left_to_netpolicy,
        ),
        test("a_thread_goes_back_to_its_cpus", taskset.or(two_cpus), a_thread_goes_back),
        test("an_epoll_goes_back_to_its_parameters", epoll_params, an_epoll_goes_back),
        test("an_io_uring_goes_back_to_not_polling", rings, a_ring_goes_back),
        test("a_socket_goes_back_to_not_polling", netns.or(python), a_socket_goes_back),
        test("a_device_in_another_namespace_goes_back", netns, a_device_goes_back),
        test("rules_and_contexts_of_a_nic_go_back", python, steering::rules_and_contexts_go_back),
        test("a_table_that_is_the_drivers_own_goes_back_as_such", python, steering::a_table_goes_back),
        test("queueing_disciplines_go_back", netns.or(tc), steering::disciplines_go_back),
        test("a_napi_is_found_by_its_queue_and_goes_back", python, a_napi_goes_back),
        test(
            "a_kernel_thread_is_found_by_its_queue_and_goes_back",
            python.or(taskset).or(chrt).or(two_cpus),
            a_kernel_thread_goes_back,
        ),
        test("a_file_that_does_not_take_its_old_value_is_stuck", taskset, a_stuck_thread_is_reported),
        test("netpolicy_is_asked_first", None, netpolicy_is_asked_first),
        test("after_a_reboot_nothing_is_undone", None, nothing_after_a_reboot),
        test("without_proc_no_reboot_is_claimed", None, no_reboot_without_proc),
    ]
}

fn change(from: Setting, to: Setting) -> Change {
    Change::new(from, to, Reason::new("short response times", "test"))
}

fn shellcheck_is_content() -> Result<(), Failed> {
    let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
    let queue = RxQueue { device, index: QueueIndex(0) };
    let process = ProcessId { pid: Pid(1), started: 1, comm: Label::new("it's") };
    let (epoll, ring) = (EpollId { process, fd: Fd(3) }, RingId { process, fd: Fd(4) });
    let socket = SocketId { process, fd: Fd(5), inode: 35_845 };
    let polls = SocketPolling { busy_poll_usecs: 64, prefer_busy_poll: true, busy_poll_budget: None };
    let thread = ThreadId { process, tid: Pid(1), started: 1, comm: Label::new("$(id)") };
    let tx = TxQueue { device, index: QueueIndex(0) };
    let flag = FlagName::new("it's a $(flag)").ok_or("a name")?;
    let on = RingNapi { busy_poll_usecs: 50, prefer_busy_poll: true };
    let some =
        EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true, events_only: false };
    let [all, one]: [model::CpuSet; 2] = ["0-3".parse()?, "1".parse()?];
    let irq = IrqNumber(30);
    let span = Nanoseconds::from_micros(20);
    let every = [
        change(
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(0))),
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(1))),
        ),
        change(
            Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(0))),
            Setting::Napi(queue, NapiKnob::GroFlushTimeout(span)),
        ),
        change(
            Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(Nanoseconds(0))),
            Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(span)),
        ),
        change(
            Setting::Napi(queue, NapiKnob::Threaded(Threading::Off)),
            Setting::Napi(queue, NapiKnob::Threaded(Threading::BusyPoll)),
        ),
        change(
            Setting::DeviceNapis(device, DeviceNapiKnob::DeferHardIrqs(EmptyPolls(0))),
            Setting::DeviceNapis(device, DeviceNapiKnob::DeferHardIrqs(EmptyPolls(1))),
        ),
        change(
            Setting::DeviceNapis(device, DeviceNapiKnob::GroFlushTimeout(Nanoseconds(0))),
            Setting::DeviceNapis(device, DeviceNapiKnob::GroFlushTimeout(span)),
        ),
        change(
            Setting::DeviceNapis(device, DeviceNapiKnob::Threaded(Threading::Off)),
            Setting::DeviceNapis(device, DeviceNapiKnob::Threaded(Threading::On)),
        ),
        change(
            Setting::Kthread(queue, KthreadKnob::Affinity(all.clone())),
            Setting::Kthread(queue, KthreadKnob::Affinity(one.clone())),
        ),
        change(
            Setting::Kthread(queue, KthreadKnob::Scheduling(Scheduling::Other(0))),
            Setting::Kthread(queue, KthreadKnob::Scheduling(Scheduling::Fifo(50))),
        ),
        change(
            Setting::Kthread(queue, KthreadKnob::UtilClamp(UtilClamp::NONE)),
            Setting::Kthread(queue, KthreadKnob::UtilClamp(UtilClamp { min: 512, max: 1024 })),
        ),
        change(
            Setting::Kthread(queue, KthreadKnob::Slice(Slice::Default)),
            Setting::Kthread(queue, KthreadKnob::Slice(Slice::Own(Slice::LEAST))),
        ),
        change(
            Setting::Process(ProcessKnob::Epoll(epoll, EpollParams::default())),
            Setting::Process(ProcessKnob::Epoll(epoll, some)),
        ),
        change(
            Setting::Process(ProcessKnob::IoUring(ring, None)),
            Setting::Process(ProcessKnob::IoUring(ring, Some(on))),
        ),
        change(
            Setting::Process(ProcessKnob::Socket(socket, SocketPolling::default())),
            Setting::Process(ProcessKnob::Socket(
                socket,
                SocketPolling { busy_poll_budget: Some(64), ..polls },
            )),
        ),
        change(
            Setting::Irq(irq, IrqKnob::Affinity(all.clone())),
            Setting::Irq(irq, IrqKnob::Affinity(one.clone())),
        ),
        change(
            Setting::Process(ProcessKnob::ThreadAffinity(thread, all.clone())),
            Setting::Process(ProcessKnob::ThreadAffinity(thread, one.clone())),
        ),
        change(
            Setting::Nic(device, NicKnob::Channels(ChannelKind::Rx, 4)),
            Setting::Nic(device, NicKnob::Channels(ChannelKind::Rx, 1)),
        ),
        change(
            Setting::Nic(device, NicKnob::Ring(RingKind::Tx, 256)),
            Setting::Nic(device, NicKnob::Ring(RingKind::Tx, 512)),
        ),
        change(
            Setting::Nic(device, NicKnob::Coalescing(CoalesceParam::AdaptiveRx, 1)),
            Setting::Nic(device, NicKnob::Coalescing(CoalesceParam::AdaptiveRx, 0)),
        ),
        change(
            Setting::RxQueue(queue, RxQueueKnob::Coalescing(QueueCoalesceParam::RxUsecs, 8)),
            Setting::RxQueue(queue, RxQueueKnob::Coalescing(QueueCoalesceParam::RxUsecs, 0)),
        ),
        change(
            Setting::Nic(device, NicKnob::Offload(Offload::Gro, true)),
            Setting::Nic(device, NicKnob::Offload(Offload::Gro, false)),
        ),
        change(
            Setting::Nic(device, NicKnob::PacketSize(PacketSize::Gso, 65_536)),
            Setting::Nic(device, NicKnob::PacketSize(PacketSize::Gso, 185_000)),
        ),
        change(
            Setting::Nic(device, NicKnob::PrivateFlag(flag, true)),
            Setting::Nic(device, NicKnob::PrivateFlag(flag, false)),
        ),
        change(
            Setting::Nic(device, NicKnob::RssTable(vec![0, 1])),
            Setting::Nic(device, NicKnob::RssTable(vec![0, 0])),
        ),
        change(
            Setting::Nic(device, NicKnob::RssKey(vec![1, 2])),
            Setting::Nic(device, NicKnob::RssKey(vec![3, 4])),
        ),
        change(Setting::Irq(irq, IrqKnob::Ban(false)), Setting::Irq(irq, IrqKnob::Ban(true))),
        spread(),
        change(
            Setting::Nic(device, NicKnob::RssContext(QueueSpan { first: 2, count: 2 }, false)),
            Setting::Nic(device, NicKnob::RssContext(QueueSpan { first: 2, count: 2 }, true)),
        ),
        change(
            Setting::Nic(device, NicKnob::FlowRule(flow("tcp4 dst-port 80")?, None)),
            Setting::Nic(
                device,
                NicKnob::FlowRule(flow("tcp4 dst-port 80")?, Some(SteerTo::Queue(QueueIndex(1)))),
            ),
        ),
        change(
            Setting::Nic(device, NicKnob::Qdiscs(Qdiscs::Whole(Qdisc::of(QdiscKind::Fq)))),
            Setting::Nic(device, NicKnob::Qdiscs(Qdiscs::Whole(Qdisc::of(QdiscKind::Pfifo)))),
        ),
        change(
            Setting::RxQueue(queue, RxQueueKnob::RpsCpus(CpuSet::new())),
            Setting::RxQueue(queue, RxQueueKnob::RpsCpus(all.clone())),
        ),
        change(
            Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(0)),
            Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(4096)),
        ),
        change(
            Setting::TxQueue(tx, TxQueueKnob::XpsCpus(all)),
            Setting::TxQueue(tx, TxQueueKnob::XpsCpus(one)),
        ),
        change(
            Setting::TxQueue(tx, TxQueueKnob::XpsRxQueues(Vec::new())),
            Setting::TxQueue(tx, TxQueueKnob::XpsRxQueues(vec![QueueIndex(0)])),
        ),
        change(
            Setting::Host(HostKnob::Sysctl(Sysctl::NetdevBudget, 300)),
            Setting::Host(HostKnob::Sysctl(Sysctl::NetdevBudget, 600)),
        ),
    ];
    // The script of each single change contains only the shell functions that it needs; the script of all
    // changes contains all of them.
    for changes in every.iter().map(std::slice::from_ref).chain([every.as_slice()]) {
        let stage = Stage::new(changes)?;
        let output = Command::new("shellcheck").arg(stage.script()).output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}

fn spread() -> Change {
    let address = "192.0.2.1:11211".parse().expect("an address");
    let group = ListenerGroup { netns: NetnsId(4_026_531_840), transport: Transport::Tcp, address };
    let device = DeviceId { netns: group.netns, ifindex: IfIndex(3), name: Label::new("veth1") };
    let queues = [0, 1].map(|index| RxQueue { device, index: QueueIndex(index) });
    change(
        Setting::Process(ProcessKnob::Reuseport(group, Spread::Hash)),
        Setting::Process(ProcessKnob::Reuseport(group, Spread::dealt(&queues, &[812, 813]))),
    )
}

fn a_program_of_bpf_is_left_to_netpolicy() -> Result<(), Failed> {
    let (status, said) = Stage::new(&[spread()])?.run(&["--by-hand"])?;
    assert_eq!(status, 5, "{said}");
    assert!(said.contains("NOT restored: a shell cannot identify the BPF program"), "{said}");
    Ok(())
}

fn names_stay_names() -> Result<(), Failed> {
    let comm = Label::new("a\n>oops #'\"$(");
    let process = ProcessId { pid: Pid(u32::MAX), started: 1, comm };
    let epoll = EpollId { process, fd: Fd(3) };
    let to = EpollParams { busy_poll_usecs: 1, ..EpollParams::default() };
    let change = change(
        Setting::Process(ProcessKnob::Epoll(epoll, EpollParams::default())),
        Setting::Process(ProcessKnob::Epoll(epoll, to)),
    );
    let stage = Stage::asked_by("sh -c 'true\ntouch oops'\n`touch oops`", &[change])?;
    let (status, said) = stage.run(&["--by-hand"])?;
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("a\u{fffd}>oops #'\"$([4294967295] epoll 3"), "{said}");
    assert!(said.contains(": gone"), "{said}");
    assert!(!stage.directory().join("oops").exists());
    Ok(())
}

/// In some shells, `echo` interprets backslashes, as escape sequences or as the end of the output.
fn backslashes_stay(shell: &[&str]) -> Result<(), Failed> {
    for name in [r"\033]0;own\007", r"ok: is 0/0/0\c", r"\0\a\b\e\f\n\r\t"] {
        let process = ProcessId { pid: Pid(u32::MAX), started: 1, comm: Label::new(name) };
        let change = change(
            Setting::Process(ProcessKnob::Epoll(EpollId { process, fd: Fd(3) }, EpollParams::default())),
            Setting::Process(ProcessKnob::Epoll(
                EpollId { process, fd: Fd(3) },
                EpollParams { busy_poll_usecs: 1, ..EpollParams::default() },
            )),
        );
        let stage = Stage::asked_by(name, &[change])?;
        let (status, said) = stage.run_by(shell, &["--by-hand"])?;
        let begins = format!("{}[4294967295] epoll 3: ", Label::new(name));
        assert_eq!(status, 0, "{said}");
        assert!(said.starts_with(&begins) && said.ends_with(": gone\n"), "{shell:?}: {said:?}");
    }
    Ok(())
}

fn a_thread_goes_back() -> Result<(), Failed> {
    let child = Child::python("import time; print('ready', flush=True); time.sleep(600)")?;
    let before: model::CpuSet = child.affinity()?.parse()?;
    let first = before.iter().next().ok_or("no CPU")?;
    let second = before.iter().nth(1).ok_or("one CPU")?;
    let only = |cpu: Cpu| -> model::CpuSet { [cpu].into_iter().collect() };
    let thread = child.thread()?;
    let change = change(
        Setting::Process(ProcessKnob::ThreadAffinity(thread, before.clone())),
        Setting::Process(ProcessKnob::ThreadAffinity(thread, only(first))),
    );
    let stage = Stage::new(&[change])?;

    child.set_affinity(&only(first).to_string())?;
    let (status, said) = stage.run(&["--by-hand"])?;
    assert_eq!((status, child.affinity()?), (0, before.to_string()), "{said}");
    let (status, said) = stage.run(&["--by-hand"])?;
    assert!(status == 0 && said.contains("already"), "{said}");

    child.set_affinity(&only(second).to_string())?;
    let (status, said) = stage.run(&["--by-hand"])?;
    assert!(status == 0 && said.contains("left alone"), "{said}");
    assert_eq!(child.affinity()?, only(second).to_string());

    // A tid may be reused; if the start time differs, it is another thread.
    drop(child);
    let (status, said) = stage.run(&["--by-hand"])?;
    assert!(status == 0 && said.contains("gone"), "{said}");
    Ok(())
}

fn a_stuck_thread_is_reported() -> Result<(), Failed> {
    let child = Child::python("import time; print('ready', flush=True); time.sleep(600)")?;
    let now: model::CpuSet = child.affinity()?.parse()?;
    let never: model::CpuSet = [Cpu(8_191)].into_iter().collect();
    let thread = child.thread()?;
    let change = change(
        Setting::Process(ProcessKnob::ThreadAffinity(thread, never)),
        Setting::Process(ProcessKnob::ThreadAffinity(thread, now.clone())),
    );
    let (status, said) = Stage::new(&[change])?.run(&["--by-hand"])?;
    assert_eq!(status, 5, "{said}");
    assert!(said.contains(&format!("NOT restored: should be 8191, is {now}")), "{said}");
    Ok(())
}

fn an_epoll_goes_back() -> Result<(), Failed> {
    let child = Child::python(
        "import select, time; e = select.epoll(); print(e.fileno(), flush=True); time.sleep(600)",
    )?;
    let epoll = EpollId { process: child.process()?, fd: Fd(child.said().parse()?) };
    let set =
        EpollParams { busy_poll_usecs: 3, busy_poll_budget: 16, prefer_busy_poll: true, events_only: false };
    let (was, is) = (
        Setting::Process(ProcessKnob::Epoll(epoll, EpollParams::default())),
        Setting::Process(ProcessKnob::Epoll(epoll, set)),
    );
    let there = Stage::new(&[change(was.clone(), is.clone())])?;
    let back = Stage::new(&[change(is, was)])?;
    // Undoing a change makes the opposite change, so two scripts can switch the setting back and forth.
    for language in ["perl", "python3"] {
        for (stage, value) in
            [(&back, "restored to 3/16/1"), (&there, "restored to 0/0/0"), (&there, "is 0/0/0 already")]
        {
            let (status, said) = stage.run_where_only(&[language])?;
            assert!(status == 0 && said.contains(value), "{language}: {said}");
        }
    }
    Ok(())
}

fn a_ring_goes_back() -> Result<(), Failed> {
    let child = Child::python(RING)?;
    let ring = RingId { process: child.process()?, fd: Fd(child.said().parse()?) };
    let set = RingNapi { busy_poll_usecs: 30, prefer_busy_poll: true };
    let (was, is) = (
        Setting::Process(ProcessKnob::IoUring(ring, None)),
        Setting::Process(ProcessKnob::IoUring(ring, Some(set))),
    );
    let there = Stage::new(&[change(was.clone(), is.clone())])?;
    let back = Stage::new(&[change(is, was)])?;
    for language in ["perl", "python3"] {
        for (stage, value) in
            [(&back, "restored to 30/1"), (&there, "restored to off"), (&there, "is off already")]
        {
            let (status, said) = stage.run_where_only(&[language])?;
            assert!(status == 0 && said.contains(value), "{language}: {said}");
        }
    }
    Ok(())
}

/// The script writes and reads the socket's options from another process. Without BPF, it cannot read the
/// busy-poll budget.
fn a_socket_goes_back() -> Result<(), Failed> {
    let child = Child::python(SOCKET)?;
    let said = child.said();
    let (fd, inode) = said.split_once(' ').ok_or("a descriptor and an inode")?;
    let socket = SocketId { process: child.process()?, fd: Fd(fd.parse()?), inode: inode.trim().parse()? };
    let setting = |busy_poll_usecs, prefer_busy_poll, budget| {
        let polling = SocketPolling { busy_poll_usecs, prefer_busy_poll, busy_poll_budget: Some(budget) };
        Setting::Process(ProcessKnob::Socket(socket, polling))
    };
    let (was, is) = (setting(0, false, 0), setting(64, true, 32));
    let there = Stage::new(&[change(was.clone(), is.clone())])?;
    let back = Stage::new(&[change(is, was)])?;
    for language in ["perl", "python3"] {
        for (stage, value) in
            [(&back, "restored to 64/1"), (&there, "restored to 0/0"), (&there, "is 0/0 already")]
        {
            let (status, said) = stage.run_where_only(&[language])?;
            assert!(status == 0 && said.contains(value), "{language}: {said}");
        }
    }
    Ok(())
}

/// A Python program that opens a socket.
const SOCKET: &str = "
import os, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(s.fileno(), os.fstat(s.fileno()).st_ino, flush=True)
time.sleep(600)
";

/// A Python program that creates an io_uring.
const RING: &str = "
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
SYS_IO_URING_SETUP = 425
print(libc.syscall(SYS_IO_URING_SETUP, 4, ctypes.create_string_buffer(120)), flush=True)
time.sleep(600)
";

fn a_device_goes_back() -> Result<(), Failed> {
    // The child has its own network namespace with a device, which disappears when the child exits.
    let child = Child::run(
        "unshare",
        &[
            "--net",
            "sh",
            "-c",
            "ip link add nptest0 type veth peer name nptest1 && cat /sys/class/net/lo/ifindex \
           && exec sleep 600",
        ],
    )?;
    let netns = child.netns()?;
    let ifindex = child.ifindex("nptest0")?;
    let device =
        DeviceId { netns: NetnsId(netns), ifindex: IfIndex(ifindex), name: Label::new("renamed-since") };
    let (was, is) = (
        Setting::DeviceNapis(device, DeviceNapiKnob::GroFlushTimeout(Nanoseconds(0))),
        Setting::DeviceNapis(device, DeviceNapiKnob::GroFlushTimeout(Nanoseconds(20_000))),
    );
    let there = Stage::new(&[change(was.clone(), is.clone())])?;
    let back = Stage::new(&[change(is.clone(), was.clone())])?;
    for (stage, value) in [(&back, "restored to 20000"), (&there, "restored to 0"), (&there, "is 0 already")]
    {
        let (status, said) = stage.run(&["--by-hand"])?;
        assert!(status == 0 && said.contains(value), "{said}");
    }
    let number = child.number("nptest0")?;
    let knowing = |number: String| -> ObjectCookies { [(device_cookie_name(device), number)].into() };
    let this = Stage::knowing(knowing(number.clone()), &[change(is.clone(), was.clone())])?;
    let (status, said) = this.run(&["--by-hand"])?;
    assert!(status == 0 && said.contains("restored to 20000"), "the device is the intended one: {said}");
    assert!(this.directory().join("undone").is_file(), "a mark for a netpolicy that cannot read the journal");
    let another = Stage::knowing(knowing(format!("{number}7")), &[change(was, is)])?;
    let (status, said) = another.run(&["--by-hand"])?;
    assert!(status == 0 && said.contains("gro_flush_timeout: gone"), "{said}");
    assert!(said.contains(&format!("nptest0 has the index {ifindex} now, and is another device")), "{said}");

    let queue = RxQueue { device, index: QueueIndex(0) };
    let changed = [
        change(
            Setting::Nic(device, NicKnob::Offload(Offload::Gro, true)),
            Setting::Nic(device, NicKnob::Offload(Offload::Gro, false)),
        ),
        change(
            Setting::Nic(device, NicKnob::Offload(Offload::Tso, false)),
            Setting::Nic(device, NicKnob::Offload(Offload::Tso, true)),
        ),
        change(
            Setting::Nic(device, NicKnob::PacketSize(PacketSize::Gro, 100_000)),
            Setting::Nic(device, NicKnob::PacketSize(PacketSize::Gro, 65_536)),
        ),
        change(
            Setting::RxQueue(queue, RxQueueKnob::RpsCpus("0".parse()?)),
            Setting::RxQueue(queue, RxQueueKnob::RpsCpus(CpuSet::new())),
        ),
        change(
            Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(64)),
            Setting::RxQueue(queue, RxQueueKnob::RpsFlowCount(0)),
        ),
        change(
            Setting::Nic(device, NicKnob::Channels(ChannelKind::Rx, 1)),
            Setting::Nic(device, NicKnob::Channels(ChannelKind::Rx, 2)),
        ),
    ];
    let (status, said) = Stage::new(&changed)?.run(&["--by-hand"])?;
    for back in ["rx-gro: restored to on", "tx-tcp-segmentation: restored to off", "rps_cpus: restored to 1"]
    {
        assert!(said.contains(back), "{said}");
    }
    assert!(said.contains("rps_flow_cnt: restored to 64"), "{said}");
    assert!(said.contains("gro_max_size: restored to 100000"), "{said}");
    assert!(status == 0 && said.contains("rx-channels: is 1 already"), "{said}");
    drop(child);
    let (status, said) = there.run(&["--by-hand"])?;
    assert!(status == 0 && said.contains("gone"), "{said}");
    Ok(())
}

fn a_napi_goes_back() -> Result<(), Failed> {
    let own: u64 = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/net")?);
    // The device is the real loopback device; its NAPI exists only in the fake `ynl`.
    let device = DeviceId { netns: NetnsId(own), ifindex: IfIndex(1), name: Label::new("lo") };
    let queue = RxQueue { device, index: QueueIndex(2) };
    let changes = [
        change(
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(7))),
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(100))),
        ),
        change(
            Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(Nanoseconds(0))),
            Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(Nanoseconds(5_000_000_000))),
        ),
        change(
            Setting::Napi(queue, NapiKnob::Threaded(Threading::Off)),
            Setting::Napi(queue, NapiKnob::Threaded(Threading::On)),
        ),
    ];
    let stage = Stage::new(&changes)?;
    stage.program("ynl", YNL)?;
    let napi = stage.directory().join("napi.json");
    let set =
        r#"{"id": 517, "defer-hard-irqs": 100, "irq-suspend-timeout": 5000000000, "threaded": "enabled"}"#;
    std::fs::write(&napi, set)?;
    let (status, said) = stage.run_with(&["--by-hand"], &[("YNL", "ynl")])?;
    assert_eq!(status, 0, "{said}");
    let back = r#"{"id": 517, "defer-hard-irqs": 7, "irq-suspend-timeout": 0, "threaded": "disabled"}"#;
    assert_eq!(std::fs::read_to_string(&napi)?, back, "{said}");

    let foreign =
        r#"{"id": 517, "defer-hard-irqs": 8, "irq-suspend-timeout": 5000000000, "threaded": "enabled"}"#;
    std::fs::write(&napi, foreign)?;
    let (status, said) = stage.run_with(&["--by-hand"], &[("YNL", "ynl")])?;
    assert!(status == 0 && said.contains("defer-hard-irqs: left alone: is 8, we had set 100"), "{said}");
    let mended = r#"{"id": 517, "defer-hard-irqs": 8, "irq-suspend-timeout": 0, "threaded": "disabled"}"#;
    assert_eq!(std::fs::read_to_string(&napi)?, mended, "{said}");

    std::fs::remove_file(&napi)?;
    let (status, said) = stage.run_with(&["--by-hand"], &[("YNL", "ynl")])?;
    assert!(status == 5 && said.contains("there is no such queue now"), "{said}");
    Ok(())
}

/// The fake `ynl` reports one of the test's child processes as the NAPI's thread; all other tools are real.
fn a_kernel_thread_goes_back() -> Result<(), Failed> {
    let own: u64 = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/net")?);
    let device = DeviceId { netns: NetnsId(own), ifindex: IfIndex(1), name: Label::new("lo") };
    let queue = RxQueue { device, index: QueueIndex(2) };
    let child = Child::python("import time; print('ready', flush=True); time.sleep(600)")?;
    let before: CpuSet = child.affinity()?.parse()?;
    let first: CpuSet = before.iter().take(1).collect();
    let nice: i8 = field_of_stat(&child, 19)?.parse()?;
    let changes = [
        change(
            Setting::Kthread(queue, KthreadKnob::Affinity(before.clone())),
            Setting::Kthread(queue, KthreadKnob::Affinity(first.clone())),
        ),
        change(
            Setting::Kthread(queue, KthreadKnob::Scheduling(Scheduling::Other(nice))),
            Setting::Kthread(queue, KthreadKnob::Scheduling(Scheduling::Batch(5))),
        ),
    ];
    let stage = Stage::new(&changes)?;
    stage.program("ynl", YNL)?;
    let pid = child.process()?.pid;
    std::fs::write(stage.directory().join("napi.json"), format!(r#"{{"id": 517, "pid": {pid}}}"#))?;
    child.set_affinity(&first.to_string())?;
    assert!(runs("chrt", &["--batch", "-p", "0", &pid.to_string()]));
    assert!(runs("renice", &["-n", "5", "-p", &pid.to_string()]));

    let (status, said) = stage.run_with(&["--by-hand"], &[("YNL", "ynl")])?;
    assert_eq!((status, child.affinity()?), (0, before.to_string()), "{said}");
    assert_eq!(
        (field_of_stat(&child, 41)?, field_of_stat(&child, 19)?),
        ("0".to_owned(), nice.to_string()),
        "{said}"
    );
    let (status, said) = stage.run_with(&["--by-hand"], &[("YNL", "ynl")])?;
    assert!(status == 0 && said.matches("already").count() == 2, "{said}");

    assert!(runs("renice", &["-n", "7", "-p", &pid.to_string()]));
    let (status, said) = stage.run_with(&["--by-hand"], &[("YNL", "ynl")])?;
    assert!(
        status == 0 && said.contains("kthread policy: left alone: is other:7, we had set batch:5"),
        "{said}"
    );

    // If a NAPI has no thread, there is nothing to restore.
    std::fs::write(stage.directory().join("napi.json"), r#"{"id": 517}"#)?;
    let (status, said) = stage.run_with(&["--by-hand"], &[("YNL", "ynl")])?;
    assert!(status == 0 && said.matches("gone").count() == 2, "{said}");
    Ok(())
}

/// Returns a field of a process's stat file, by its number in proc_pid_stat(5), which must be at least 3.
fn field_of_stat(child: &Child, number: usize) -> Result<String, Failed> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.process()?.pid))?;
    let fields = stat.rsplit_once(") ").ok_or("no name")?.1;
    Ok(fields.split(' ').nth(number - 3).ok_or("no such field")?.to_owned())
}

/// A fake of the kernel's `ynl` tool with the same arguments and output. It keeps the NAPI in a file.
const YNL: &str = r#"#!/usr/bin/env python3
import json, os, sys
a = sys.argv[1:]
assert a[:4] == ["--family", "netdev", "--output-json", "--do"] and a[5] == "--json" and len(a) == 7, a
file = os.path.join(os.path.dirname(sys.argv[0]), "..", "napi.json")
request, napi = json.loads(a[6]), json.load(open(file))
if a[4] == "queue-get":
    assert request == {"ifindex": 1, "id": 2, "type": "rx"}, request
    print(json.dumps({"id": 2, "ifindex": 1, "napi-id": napi["id"], "type": "rx"}))
elif a[4] == "napi-get":
    assert request == {"id": napi["id"]}, request
    print(json.dumps({**napi, "gro-flush-timeout": 0, "ifindex": 1, "irq": 30}))
elif a[4] == "napi-set":
    assert request.pop("id") == napi["id"] and set(request) < set(napi), request
    json.dump({**napi, **request}, open(file, "w"))
    print("None")
"#;

fn netpolicy_is_asked_first() -> Result<(), Failed> {
    let change = change(
        Setting::Irq(IrqNumber(u32::MAX), IrqKnob::Affinity("0".parse()?)),
        Setting::Irq(IrqNumber(u32::MAX), IrqKnob::Affinity("1".parse()?)),
    );
    let stage = Stage::new(&[change])?;
    stage.program("netpolicy", "#!/bin/sh\necho \"asked: $*\"\nexit \"${ANSWER:-0}\"\n")?;
    let (status, said) = stage.run(&[])?;
    assert_eq!(status, 0, "{said}");
    let asked = format!("/../.. rollback {}", stage::TRANSACTION);
    assert!(said.starts_with("asked: --state-dir ") && said.trim_end().ends_with(&asked), "{said}");

    let (status, said) = stage.run_with(&[], &[("ANSWER", "5")])?;
    assert!(status == 0 && said.contains("continuing by shell") && said.contains("gone"), "{said}");
    let (_, said) = stage.run(&["--by-hand"])?;
    assert!(!said.contains("asked"), "{said}");
    Ok(())
}

fn nothing_after_a_reboot() -> Result<(), Failed> {
    let text = |path: &Path| std::fs::read_to_string(path);
    let change = change(
        Setting::Irq(IrqNumber(u32::MAX), IrqKnob::Affinity("0".parse()?)),
        Setting::Irq(IrqNumber(u32::MAX), IrqKnob::Affinity("1".parse()?)),
    );
    let stage = Stage::of_boot("another-boot", "test", &[change])?;
    assert!(text(&stage.script())?.contains("boot='another-boot'"));
    let (status, said) = stage.run(&["--by-hand"])?;
    assert!(status == 0 && said.contains("nothing to undo"), "{said}");
    assert!(!said.contains("gone"), "{said}");
    Ok(())
}

fn no_reboot_without_proc() -> Result<(), Failed> {
    let stage = Stage::new(&[])?;
    stage.program("cat", "#!/bin/sh\necho \"cat: $1: No such file or directory\" >&2\nexit 1\n")?;
    let (code, said) = stage.run(&["--by-hand"])?;
    assert_eq!(code, 5, "{said}");
    assert!(said.contains("mount /proc") && !said.contains("has been booted since 2"), "{said}");
    Ok(())
}

fn kernel_has_epoll_params() -> bool {
    let get = "import select, fcntl; e = select.epoll(); fcntl.ioctl(e.fileno(), 0x80088A02, bytes(8))";
    runs("python3", &["-c", get])
}

fn kernel_has_rings() -> bool {
    let make = "import ctypes, sys; l = ctypes.CDLL(None); f = l.syscall(425, 4, ctypes.create_string_buffer(120)); \
                n = ctypes.create_string_buffer(16); sys.exit(f < 0 or l.syscall(427, f, 27, n, 1) < 0)";
    runs("python3", &["-c", make])
}

fn can_make_netns() -> bool {
    runs("unshare", &["--net", "ip", "link", "add", "nptest0", "type", "veth", "peer", "name", "nptest1"])
        && runs("nsenter", &["--version"])
}
