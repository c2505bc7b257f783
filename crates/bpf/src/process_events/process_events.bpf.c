// SPDX-License-Identifier: GPL-2.0
/*
 * Reports when processes fork, exec and exit, when they listen on a port, and
 * when they create epolls. Attaches to the scheduler's tracepoints and, if the
 * kernel allows it, to the return of do_epoll_create() and to bind(2) in all
 * cgroups. No program is attached to a system-call tracepoint, because that
 * would slow down every system call on the host.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "../process.bpf.h"
#include "process_events.h"

/*
 * Puts this type into the object's BTF, which a test compares with the Rust
 * structure.
 */
const struct process_event *described_process_event __attribute__((unused));

#define WATCHED_MAX 65536
#define EVENTS_BYTES (256 * 1024)
#define NAMES_MAX 4096

/* include/net/tcp_states.h */
#define TCP_ESTABLISHED 1
#define TCP_SYN_RECV 3
#define TCP_LISTEN 10

char LICENSE[] SEC("license") = "GPL";

/* The watched processes, by tgid. The program for forks adds the children of
 * watched processes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WATCHED_MAX);
	__type(key, __u32);
	__type(value, __u8);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_BYTES);
} events SEC(".maps");

/*
 * The events that are reported in addition to those of watched processes:
 * images by file name, listeners by port.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wanted_where);
} wanted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NAMES_MAX);
	__type(key, struct image_name);
	__type(value, __u8);
} images SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NAMES_MAX);
	__type(key, __u32);
	__type(value, __u8);
} ports SEC(".maps");

/* The listeners whose next connection is reported; each entry is used once. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NAMES_MAX);
	__type(key, struct listener_key);
	__type(value, __u8);
} awaited SEC(".maps");

/*
 * The maximum number of UDP ports that are reported per process in a window.
 * Ports that were requested by number are exempt.
 */
#define UDP_PORTS_MAX 8
#define UDP_PORTS_NS 10000000000ULL

/* The number of a process's ports that were reported in the current window, and
 * the start of the window. */
struct udp_ports {
	__u64 started_ns;
	__u64 since_ns;
	__u64 count;
};

/* The recently reported UDP ports of each process, by tgid. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, NAMES_MAX);
	__type(key, __u32);
	__type(value, struct udp_ports);
} udp_reported SEC(".maps");

static const __u8 yes = 1;

static __always_inline bool is_watched(__u32 tgid)
{
	return bpf_map_lookup_elem(&watched, &tgid);
}

static __always_inline void report_of(__u32 kind, struct task_struct *leader, __u32 other, __u32 netns)
{
	struct process_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		count_lost();
		return;
	}
	event->kind = kind;
	event->tgid = leader->tgid;
	event->other = other;
	event->netns = netns;
	event->started_ns = leader->start_boottime;
	event->at_ns = bpf_ktime_get_ns();
	bpf_probe_read_kernel(event->comm, sizeof(event->comm), &leader->comm);
	bpf_ringbuf_submit(event, 0);
}

static __always_inline void report(__u32 kind, struct task_struct *leader, __u32 other)
{
	report_of(kind, leader, other, 0);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_forked, struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = child->tgid;

	if (!is_new_process(child) || !is_watched(parent->tgid))
		return 0;
	if (bpf_map_update_elem(&watched, &tgid, &yes, BPF_ANY))
		count_lost();
	report(PROCESS_CHILD, child, parent->tgid);
	return 0;
}

static __always_inline struct wanted_where *wanted_where(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&wanted, &only);
}

/*
 * Returns whether the new image is requested. Compares the name of the executed
 * file, which for a script is its interpreter, as in /proc/PID/exe.
 */
static __always_inline bool is_wanted_image(struct task_struct *task, struct linux_binprm *bprm)
{
	struct wanted_where *where = wanted_where();
	struct image_name name = {};

	if (!where || !where->netns)
		return false;
	if (where->flags & WANTED_ALL_IMAGES && task->nsproxy->net_ns->ns.inum == where->netns)
		return true;
	bpf_probe_read_kernel_str(name.bytes, sizeof(name.bytes),
				  bprm->file->f_path.dentry->d_name.name);
	return bpf_map_lookup_elem(&images, &name);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_executed, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	if (is_watched(task->tgid) || is_wanted_image(task, bprm))
		report(PROCESS_EXEC, task->group_leader, 0);
	return 0;
}

/*
 * Returns whether the client's address equals the server's. Such a client is on this host, and its
 * packets use no NAPI.
 */
static __always_inline bool is_from_own_address(const struct sock *sk)
{
	const struct sock_common *common = &sk->__sk_common;
	__u64 client[2], server[2];

	/* Without CONFIG_IPV6, the kernel has neither this field nor IPv6
	 * sockets. */
	if (common->skc_family != AF_INET6 || !bpf_core_field_exists(common->skc_v6_daddr))
		return common->skc_daddr == common->skc_rcv_saddr;
	BPF_CORE_READ_INTO((struct in6_addr *)client, sk, __sk_common.skc_v6_daddr);
	BPF_CORE_READ_INTO((struct in6_addr *)server, sk, __sk_common.skc_v6_rcv_saddr);
	return client[0] == server[0] && client[1] == server[1];
}

/*
 * Handles a new connection. Runs in a softirq, so the current task is unrelated
 * to the connection.
 */
static __always_inline void connected(const struct sock *sk)
{
	struct listener_key key = {
		.netns = sk->__sk_common.skc_net.net->ns.inum,
		.port = sk->__sk_common.skc_num,
	};
	struct process_event *event;

	/*
	 * The lookup takes no lock. If several connections arrive at the same time, only one of
	 * them deletes the key and is reported.
	 */
	if (!bpf_map_lookup_elem(&awaited, &key) || is_from_own_address(sk) ||
	    bpf_map_delete_elem(&awaited, &key))
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_lost();
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = PROCESS_CONNECTION;
	event->other = key.port;
	event->netns = key.netns;
	event->at_ns = bpf_ktime_get_ns();
	bpf_ringbuf_submit(event, 0);
}

/*
 * Returns whether a server of this task in this namespace is reported whatever
 * its port.
 */
static __always_inline bool is_wanted_server(const struct wanted_where *where, struct task_struct *task,
					     __u32 netns)
{
	__u32 all = netns == where->netns ? WANTED_ALL_LISTENERS : WANTED_LISTENERS_ELSEWHERE;

	return where->flags & all || is_watched(task->tgid);
}

/*
 * This tracepoint is reached when a socket starts to listen, in the context of the caller of
 * listen(2). The program is loaded on request.
 */
SEC("?tp_btf/inet_sock_set_state")
int BPF_PROG(socket_changed, const struct sock *sk, const int oldstate, const int newstate)
{
	struct wanted_where *where;
	struct task_struct *task;
	__u32 port, netns;

	if (oldstate == TCP_SYN_RECV && newstate == TCP_ESTABLISHED) {
		connected(sk);
		return 0;
	}
	if (newstate != TCP_LISTEN)
		return 0;
	where = wanted_where();
	if (!where || !where->netns)
		return 0;
	task = bpf_get_current_task_btf();
	port = sk->__sk_common.skc_num;
	netns = sk->__sk_common.skc_net.net->ns.inum;
	if (is_wanted_server(where, task, netns) || bpf_map_lookup_elem(&ports, &port))
		report_of(PROCESS_LISTENER, task->group_leader, port, netns);
	return 0;
}

/* Returns whether to report another UDP port of this process. A server binds a few ports at about
 * the same time, whereas a resolver binds one for each query. */
static __always_inline bool is_one_of_few_udp_ports(struct task_struct *task)
{
	struct udp_ports *known, first = {
		.started_ns = task->group_leader->start_boottime,
		.since_ns = bpf_ktime_get_ns(),
		.count = 1,
	};
	__u32 tgid = task->tgid;

	known = bpf_map_lookup_elem(&udp_reported, &tgid);
	if (!known || known->started_ns != first.started_ns ||
	    first.since_ns - known->since_ns > UDP_PORTS_NS) {
		bpf_map_update_elem(&udp_reported, &tgid, &first, BPF_ANY);
		return true;
	}
	if (known->count >= UDP_PORTS_MAX)
		return false;
	/*
	 * If two threads bind at the same time, the two ports may count as one.
	 */
	known->count++;
	return true;
}

/*
 * Handles a bound UDP port. Runs in the context of the caller of bind(2), whose
 * network namespace is the socket's unless the socket was passed to another
 * process.
 */
static __always_inline void bound(const struct bpf_sock *sk)
{
	struct wanted_where *where = wanted_where();
	struct task_struct *task;
	__u32 netns, port;

	if (sk->protocol != IPPROTO_UDP || !where || !where->netns)
		return;
	port = sk->src_port;
	task = bpf_get_current_task_btf();
	netns = task->nsproxy->net_ns->ns.inum;
	if (bpf_map_lookup_elem(&ports, &port) ||
	    (is_wanted_server(where, task, netns) && is_one_of_few_udp_ports(task)))
		report_of(PROCESS_LISTENER, task->group_leader, port, netns);
}

/*
 * Both programs are loaded on request and attached to the root cgroup. They always return 1, which
 * permits the bind.
 */
SEC("?cgroup/post_bind4")
int udp_bound(struct bpf_sock *sk)
{
	bound(sk);
	return 1;
}

SEC("?cgroup/post_bind6")
int udp6_bound(struct bpf_sock *sk)
{
	bound(sk);
	return 1;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exited, struct task_struct *task)
{
	__u32 tgid = task->tgid;

	if (!is_watched(tgid) || !was_last_thread(task))
		return 0;
	bpf_map_delete_elem(&watched, &tgid);
	report(PROCESS_EXIT, task->group_leader, 0);
	return 0;
}

/* This program is loaded if the kernel allows fexit programs. */
SEC("?fexit/do_epoll_create")
int BPF_PROG(epoll_created, int flags, int fd)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (fd >= 0 && is_watched(task->tgid))
		report(PROCESS_EPOLL, task->group_leader, fd);
	return 0;
}
