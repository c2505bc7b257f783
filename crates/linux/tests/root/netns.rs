//! Tests that namespaces are entered for one action at a time, and that no thread stays in them.

use std::process::{Command, Stdio};

use apply::Knobs;
use libtest_mimic::{Failed, Trial};
use linux::sysfs::SysFs;
use linux::{Cause, Errno, Kernel, Netns};
use model::{Change, EmptyPolls, NapiKnob, NetnsId, Pid, Plan, Reason, Setting, Step};
use netlink::Links;
use testkit::wire::{Wire, run};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "what_runs_in_a_namespace_sees_its_devices_and_the_caller_stays_out",
            &[Need::Root, Need::Wire],
            || {
                let wire = Wire::new(1)?;
                let own = Netns::own()?.id();
                let names = wire.near()?.run(|| names(Links::open_here()))??;
                assert_eq!(names, ["lo", "near0"]);
                assert!(Netns::is_current(own));
                Ok(())
            },
        ),
        test("a_socket_stays_where_it_was_opened", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(1)?;
            let links = wire.near()?.run(Links::open_here)?;
            assert_eq!(names(links)?, ["lo", "near0"]);
            Ok(())
        }),
        test("a_namespace_is_found_by_number_with_and_without_a_name", &[Need::Root, Need::Wire], || {
            let wire = Wire::new(1)?;
            let near = wire.near()?;
            assert_eq!(Netns::with_id(near.id())?.id(), near.id());
            nameless_namespace_is_found()
        }),
        test(
            "a_namespace_with_the_number_of_one_that_is_gone_is_not_taken_for_it",
            &[Need::Root, Need::Wire],
            number_of_another,
        ),
        test(
            "a_device_with_the_index_of_one_that_is_gone_is_not_taken_for_it",
            &[Need::Root, Need::Wire],
            index_of_another,
        ),
        test("the_other_end_of_a_veth_is_found_in_its_namespace", &[Need::Root, Need::Wire], other_end),
        test("a_namespace_that_is_gone_is_said_to_be_gone", &[Need::Root, Need::Wire], || {
            let id = Wire::new(1)?.near()?.id();
            let error = Netns::with_id(id).expect_err("the wire no longer exists");
            assert!(matches!(error.cause, Cause::Gone(_)), "{error}");
            let error = Netns::named("np-there-is-none").expect_err("never was");
            assert_eq!(error.number(), Some(Errno::NOENT));
            Ok(())
        }),
        test(
            "sysfs_of_a_namespace_is_read_without_being_mounted_anywhere",
            &[Need::Root, Need::Wire],
            || {
                let wire = Wire::new(1)?;
                let mounts = || std::fs::read_to_string("/proc/self/mountinfo");
                let before = mounts()?;
                let sysfs = SysFs::open(&wire.near()?)?;
                assert_eq!(sysfs.list("class/net")?, ["lo", "near0"]);
                assert_eq!(sysfs.read("class/net/near0/mtu")?, wire.in_near("cat /sys/class/net/near0/mtu")?);
                assert_eq!(mounts()?, before);
                let queues = sysfs.below("class/net/near0/queues")?.ok_or("the device has queues")?;
                assert_eq!(
                    queues.read("rx-0/rps_cpus")?,
                    wire.in_near("cat /sys/class/net/near0/queues/rx-0/rps_cpus")?
                );
                let error = queues.read("rx-0/nothing").expect_err("is not there").to_string();
                assert!(error.contains("/sys/class/net/near0/queues/rx-0/nothing"), "{error}");
                assert!(sysfs.below("class/net/missing0/queues")?.is_none());
                Ok(())
            },
        ),
    ]
}

fn names(links: Result<Links, linux::KernelError>) -> Result<Vec<String>, linux::KernelError> {
    let mut names = links?.all(|link| String::from_utf8_lossy(link.name).into_owned())?;
    names.sort_unstable();
    Ok(names)
}

fn nameless_namespace_is_found() -> Result<(), Failed> {
    let own = Netns::own()?.id();
    // `cat` answers on its pipe while it runs, and exits when the pipe is closed.
    let mut child = Command::new("unshare")
        .args(["--net", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let id = running_in_another(&mut child, own);
    let found = id.and_then(|id| Ok((id, Netns::with_id(id)?.id())));
    drop(child.stdin.take());
    child.wait()?;
    let (id, found) = found?;
    assert_eq!(found, id);
    Ok(())
}

/// Waits until a child echoes a line, which shows that it has left the test's namespace. Returns the
/// namespace in which the child now runs.
fn running_in_another(child: &mut std::process::Child, own: NetnsId) -> Result<NetnsId, Failed> {
    use std::io::{Read, Write};
    let mut echo = [0];
    child.stdin.as_mut().ok_or("no pipe")?.write_all(b"x")?;
    child.stdout.as_mut().ok_or("no pipe")?.read_exact(&mut echo)?;
    let id = Netns::of_process(Pid(child.id()))?.id();
    assert_ne!(id, own);
    Ok(id)
}

/// Tests that a cookie distinguishes two namespaces with the same number: the kernel reuses a namespace's
/// number as soon as the namespace is gone.
fn number_of_another() -> Result<(), Failed> {
    let wire = Wire::new(1)?;
    let queue = wire.near0()?.rx_queues[0].id;
    let from = Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(0)));
    let change = Change::new(
        from.clone(),
        Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(7))),
        Reason::new("", ""),
    );
    let plan = Plan { steps: vec![Step::new(vec![change])] };
    let mut kernel = Kernel::new();
    let object_cookies = kernel.object_cookies(&plan);
    assert_eq!(
        object_cookies.len(),
        3,
        "the cookies of its namespace, its device and its address: {object_cookies:?}"
    );
    kernel.recall(&object_cookies);
    assert_eq!(
        kernel.read(std::slice::from_ref(&from))?,
        std::slice::from_ref(&from),
        "the object is still the same one"
    );

    let other = |cookie: &String| (cookie.parse::<u64>().unwrap_or(0) + 1).to_string();
    // Skip the addresses: they identify only devices that cannot be reached, so they are not checked here.
    for (what, number) in object_cookies.iter().filter(|(what, _)| !what.starts_with("address of")) {
        kernel.recall(&[(what.clone(), other(number))].into());
        let error = kernel.read(std::slice::from_ref(&from)).expect_err("the object is another one");
        assert!(Kernel::is_gone(&error), "{error}");
        let error = kernel.write(std::slice::from_ref(&from)).expect_err("the object is another one");
        assert!(Kernel::is_gone(&error), "{error}");
    }
    kernel.recall(&apply::ObjectCookies::new());
    assert_eq!(
        kernel.read(std::slice::from_ref(&from))?,
        [from],
        "a journal without object_cookies requires none"
    );
    Ok(())
}

/// Tests that the inode of a device's directory in sysfs distinguishes an old and a new device with the same
/// index, whatever their names are: once a device is gone, its index can be requested explicitly.
fn index_of_another() -> Result<(), Failed> {
    let wire = Wire::new(1)?;
    let queue = wire.near0()?.rx_queues[0].id;
    let from = Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(0)));
    let change = Change::new(
        from.clone(),
        Setting::Napi(queue, NapiKnob::DeferHardIrqs(EmptyPolls(7))),
        Reason::new("", ""),
    );
    let object_cookies = Kernel::new().object_cookies(&Plan { steps: vec![Step::new(vec![change])] });
    let near = &wire.near;

    run(&format!("ip -n {near} link set near0 down"))?;
    run(&format!("ip -n {near} link set near0 name renamed0"))?;
    run(&format!("ip -n {near} link set renamed0 up"))?;
    let mut kernel = Kernel::new();
    kernel.recall(&object_cookies);
    assert_eq!(
        kernel.read(std::slice::from_ref(&from))?,
        std::slice::from_ref(&from),
        "the object is the same under another name"
    );

    run(&format!("ip -n {near} link del renamed0"))?;
    let index = queue.device.ifindex;
    run(&format!("ip -n {near} link add near0 index {index} type veth peer name other0"))?;
    run(&format!("ip -n {near} link set near0 up"))?;
    run(&format!("ip -n {near} link set other0 up"))?;
    let mut kernel = Kernel::new();
    kernel.recall(&object_cookies);
    let error = kernel.read(std::slice::from_ref(&from)).expect_err("the object is another one");
    assert!(
        Kernel::is_gone(&error) && error.to_string().contains("now belongs to another device"),
        "{error}"
    );
    Ok(())
}

fn other_end() -> Result<(), Failed> {
    let wire = Wire::new(1)?;
    let near = wire.near()?;
    let end = linux::observe::peer_end(&near, wire.near0()?.id)?.ok_or("not found")?;
    assert_eq!((end.name.as_str(), end.tso), ("far0", Some(false)));
    assert_eq!(Netns::at(&end.netns)?.id(), Netns::named(&wire.far)?.id());
    run(&format!("ip netns exec {} ethtool -K far0 tso on", wire.far))?;
    let end = linux::observe::peer_end(&near, wire.near0()?.id)?.ok_or("not found")?;
    assert_eq!(end.tso, Some(true));
    let host = wire.observe()?;
    let lo = host.device_named("lo").ok_or("no loopback")?;
    assert_eq!(linux::observe::peer_end(&near, lo.id)?, None, "the device has no peer");
    Ok(())
}
