//! The first kernel release with each feature. The version of a knob is in the knob's row of the table of
//! knobs ([`crate::setting::Facts::since`]). This module has the versions that several rows share, and the
//! versions of features that are not knobs.

use crate::units::KernelVersion;

macro_rules! since {
    ($($(#[doc = $doc:literal])+ $name:ident = $major:literal, $minor:literal;)+) => {
        $($(#[doc = $doc])+ pub const $name: KernelVersion = KernelVersion::since($major, $minor);)+
    };
}

since! {
    /// For features of every kernel that netpolicy runs on.
    ALWAYS = 2, 6;
    /// The affinity of an interrupt as a list: `/proc/irq/N/smp_affinity_list`. `kernel/irq/proc.c`.
    IRQ_AFFINITY_LIST = 3, 0;
    /// The RSS table and key by ioctl (`ETHTOOL_SRSSH`). `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
    RSS = 3, 16;
    /// `gro_flush_timeout` of a device. `net/core/net-sysfs.c`.
    DEVICE_GRO_FLUSH_TIMEOUT = 3, 19;
    /// Per-queue interrupt moderation. `net/ethtool/ioctl.c` `ethtool_set_per_queue_coalesce()`.
    QUEUE_COALESCING = 4, 6;
    /// RSS contexts. `net/ethtool/ioctl.c`, `ETH_RXFH_CONTEXT_ALLOC`.
    RSS_CONTEXTS = 4, 17;
    /// `pidfd_open(2)`. `kernel/pid.c`.
    PIDFD_OPEN = 5, 3;
    /// The netlink family `ethtool`. `net/ethtool/netlink.c`.
    ETHTOOL_NETLINK = 5, 6;
    /// `pidfd_getfd(2)`. `kernel/pid.c`.
    PIDFD_GETFD = 5, 6;
    /// Setting channels, rings, moderation, features and private flags with the netlink family `ethtool`.
    /// `net/ethtool/channels.c` and others.
    ETHTOOL_NETLINK_SET = 5, 7;
    /// `napi_defer_hard_irqs` of a device. `net/core/net-sysfs.c`.
    DEVICE_DEFER_HARD_IRQS = 5, 8;
    /// CAP_BPF, which is the newest requirement for counting who polls. `include/uapi/linux/capability.h`.
    COUNTING = 5, 8;
    /// `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`. `net/core/sock.c` `sk_setsockopt()`.
    SOCKET_PREFER_BUSY_POLL = 5, 11;
    /// Threaded NAPI for all queues of a device. `net/core/dev.c` `napi_kthread_create()`.
    NAPI_THREADS = 5, 12;
    /// BPF programs that handle a socket's `setsockopt`, attached to a cgroup and with socket storage.
    /// `kernel/bpf/cgroup.c`.
    SOCKET_REQUESTS = 5, 18;
    /// BIG TCP: packets above 64 KiB within the host. `net/core/rtnetlink.c` `IFLA_GSO_MAX_SIZE`.
    BIG_TCP = 5, 19;
    /// `bpf_cast_to_kern_ctx()`. `kernel/bpf/helpers.c`.
    REUSEPORT_BY_QUEUE = 6, 2;
    /// The netlink family `netdev`. `net/core/netdev-genl.c`.
    NETDEV = 6, 3;
    /// The tracepoint `sock_send_length`. `include/trace/events/sock.h`.
    RESPONSE_TIMES = 6, 3;
    /// `queue-get` and `napi-get`. `net/core/netdev-genl.c`.
    NAPI_GET = 6, 8;
    /// `EPIOCSPARAMS` and `EPIOCGPARAMS`. `fs/eventpoll.c` `ep_eventpoll_bp_ioctl()`.
    EPOLL_PARAMS = 6, 9;
    /// `IORING_REGISTER_NAPI`. `io_uring/napi.c` `io_register_napi()`.
    RING_NAPI = 6, 9;
    /// The NAPI lines of an io_uring's fdinfo. `io_uring/fdinfo.c`.
    RING_NAPI_SHOWN = 6, 12;
    /// `napi-set`. `net/core/netdev-genl.c` `netdev_nl_napi_set_doit()`.
    NAPI_SET = 6, 13;
    /// `IO_URING_NAPI_TRACKING_STATIC`. `io_uring/napi.c`.
    RING_NAPI_STATIC = 6, 13;
    /// `queue-get` reports a bound AF_XDP socket. `net/core/netdev-genl.c`.
    QUEUE_GET_XSK = 6, 15;
    /// Threaded NAPI for single queues. `net/core/dev.c` `napi_set_threaded()`.
    QUEUE_THREADS = 6, 17;
    /// Threaded NAPI with busy polling. `net/core/dev.c` `napi_threaded_poll()`.
    BUSY_THREADS = 6, 19;
}
