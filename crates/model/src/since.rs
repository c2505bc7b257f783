//! Which kernel brought what, each said once. A knob's version stands in its row of the table
//! ([`crate::setting::Facts::since`]), which other rooms ask; here are those that several rows share, and those of what is no knob.

use crate::units::KernelVersion;

macro_rules! since {
    ($($(#[doc = $doc:literal])+ $name:ident = $major:literal, $minor:literal;)+) => {
        $($(#[doc = $doc])+ pub const $name: KernelVersion = KernelVersion::since($major, $minor);)+
    };
}

since! {
    /// What is older than any kernel that netpolicy runs on.
    ALWAYS = 2, 6;
    /// CPUs of an interrupt as a list: `/proc/irq/N/smp_affinity_list`. `kernel/irq/proc.c`.
    IRQ_AFFINITY_LIST = 3, 0;
    /// The table and the key of the receive hash by ioctl (`ETHTOOL_SRSSH`). `net/ethtool/ioctl.c` `ethtool_set_rxfh()`.
    RSS = 3, 16;
    /// `gro_flush_timeout` of a device. `net/core/net-sysfs.c`.
    DEVICE_GRO_FLUSH_TIMEOUT = 3, 19;
    /// Interrupt moderation of one queue. `net/ethtool/ioctl.c` `ethtool_set_per_queue_coalesce()`.
    QUEUE_COALESCING = 4, 6;
    /// Contexts of the receive hash. `net/ethtool/ioctl.c`, `ETH_RXFH_CONTEXT_ALLOC`.
    RSS_CONTEXTS = 4, 17;
    /// `pidfd_open(2)`. `kernel/pid.c`.
    PIDFD_OPEN = 5, 3;
    /// The netlink family `ethtool`. `net/ethtool/netlink.c`.
    ETHTOOL_NETLINK = 5, 6;
    /// `pidfd_getfd(2)`. `kernel/pid.c`.
    PIDFD_GETFD = 5, 6;
    /// What the netlink family `ethtool` sets of channels, rings, moderation, features and private flags. `net/ethtool/channels.c` and others.
    ETHTOOL_NETLINK_SET = 5, 7;
    /// `napi_defer_hard_irqs` of a device. `net/core/net-sysfs.c`.
    DEVICE_DEFER_HARD_IRQS = 5, 8;
    /// CAP_BPF, and all else that counting who polls needs. `include/uapi/linux/capability.h`.
    COUNTING = 5, 8;
    /// `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`. `net/core/sock.c` `sk_setsockopt()`.
    SOCKET_PREFER_BUSY_POLL = 5, 11;
    /// Kernel threads that poll NAPIs, of all queues of a device together. `net/core/dev.c` `napi_kthread_create()`.
    NAPI_THREADS = 5, 12;
    /// Programs that answer `setsockopt` of a socket, by cgroup and with storage of sockets. `kernel/bpf/cgroup.c`.
    SOCKET_REQUESTS = 5, 18;
    /// Packets above 64 KiB within the host: BIG TCP. `net/core/rtnetlink.c` `IFLA_GSO_MAX_SIZE`.
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
    /// `queue-get` says that an AF_XDP socket is bound. `net/core/netdev-genl.c`.
    QUEUE_GET_XSK = 6, 15;
    /// Kernel threads that poll, of single queues. `net/core/dev.c` `napi_set_threaded()`.
    QUEUE_THREADS = 6, 17;
    /// Kernel threads that poll without a pause. `net/core/dev.c` `napi_threaded_poll()`.
    BUSY_THREADS = 6, 19;
}
