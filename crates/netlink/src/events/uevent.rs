//! Parses the kernel's uevents: `ACTION@PATH`, followed by variables.
//!
//! Kernel: 6.18, `lib/kobject_uevent.c` `kobject_uevent_env()`.

use super::Notice;

/// Converts a uevent to a notification; `None` if the uevent is not about queues or CPUs.
pub(super) fn notice(datagram: &[u8]) -> Option<Notice> {
    let head = datagram.split(|&byte| byte == 0).next()?;
    let (action, path) = std::str::from_utf8(head).ok()?.split_once('@')?;
    if matches!(action, "online" | "offline") && path.starts_with("/devices/system/cpu/cpu") {
        return Some(Notice::Cpu);
    }
    if !matches!(action, "add" | "remove") {
        return None;
    }
    // For example /devices/virtual/net/veth0/queues/rx-1.
    let (device, queue) = path.rsplit_once("/queues/")?;
    let is_queue = ["rx-", "tx-"].iter().any(|kind| queue.starts_with(kind));
    let name = device.rsplit('/').next().filter(|name| is_queue && !name.is_empty())?;
    Some(Notice::Queues(name.to_owned()))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn queues_and_cpus_are_reported_and_the_rest_is_ignored() {
        let of = |text: &str| notice(text.as_bytes());
        assert_eq!(
            of("add@/devices/virtual/net/veth0/queues/rx-1\0ACTION=add\0SUBSYSTEM=queues\0"),
            Some(Notice::Queues("veth0".to_owned()))
        );
        assert_eq!(of("offline@/devices/system/cpu/cpu1\0ACTION=offline\0"), Some(Notice::Cpu));
        for text in [
            "",
            "libudev\0",
            "change@/devices/virtual/net/veth0/queues/rx-1",
            "add@/devices/virtual/net/veth0",
            "online@/devices/system/memory/memory32",
            "add@/queues/rx-0",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
