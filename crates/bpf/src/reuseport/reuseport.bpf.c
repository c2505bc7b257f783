// SPDX-License-Identifier: GPL-2.0
/*
 * Assigns a connection to a listener of the queue on which the connection's
 * first packet arrived, and a datagram to a socket of its queue. Also lists the
 * groups of sockets that share an address.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "reuseport.h"

/*
 * Puts this type into the object's BTF, which a test compares with the Rust
 * structure.
 */
const struct listener_record *described_listener_record __attribute__((unused));

char LICENSE[] SEC("license") = "GPL";

/*
 * The list of each queue. The group references the program, and the program references its maps:
 * nothing is pinned, and closing the group's last socket frees everything.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, REUSEPORT_QUEUES_MAX);
	__type(key, struct reuseport_queue);
	__type(value, struct reuseport_list);
} np_queues SEC(".maps");

/* The entries of all lists; each is the index of a listener in the map
 * np_listeners. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REUSEPORT_PLACES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} np_places SEC(".maps");

/* The listeners. The kernel removes a socket when it is closed. */
struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, REUSEPORT_LISTENERS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} np_listeners SEC(".maps");

/* The inode of each listener, so that user space can read the lists back. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REUSEPORT_LISTENERS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} np_inodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reuseport_facts);
} np_facts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REUSEPORT_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} np_counts SEC(".maps");

static __always_inline int counted(__u32 which)
{
	__u64 *count = bpf_map_lookup_elem(&np_counts, &which);

	if (count)
		(*count)++;
	/* If the program selects no socket, the kernel's hash chooses. */
	return SK_PASS;
}

/*
 * Needed because no field of struct sk_reuseport_md has the packet's queue or
 * NAPI. Linux 6.2: "bpf: Add a kfunc to type cast from bpf uapi ctx to kernel
 * ctx".
 */
extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;

static const char VETH[] = "veth";

/*
 * Returns the queue on which a packet arrived, plus one, or 0 for none. Drivers
 * record the queue in this form. A veth keeps the sender's value, which counts
 * from 0; each queue at one end leads to the queue with the same index at the
 * other end. Linux 5.17: "veth: Do not record rx queue hint in veth_xmit".
 */
static __always_inline __u32 queue_of(struct sk_buff *skb)
{
	char kind[sizeof(VETH)] = {};

	if (bpf_probe_read_kernel_str(kind, sizeof(kind),
				      BPF_CORE_READ(skb, dev, rtnl_link_ops, kind)) == sizeof(VETH) &&
	    !bpf_strncmp(kind, sizeof(kind), VETH))
		return skb->queue_mapping + 1;
	return skb->queue_mapping;
}

SEC("sk_reuseport")
int np_spread(struct sk_reuseport_md *ctx)
{
	struct sk_reuseport_kern *kern = bpf_cast_to_kern_ctx(ctx);
	struct sk_buff *skb = kern->skb;
	struct reuseport_facts *facts;
	struct reuseport_queue queue = {};
	struct reuseport_list *list;
	__u32 zero = 0, index, place, *listener;

	facts = bpf_map_lookup_elem(&np_facts, &zero);
	if (!facts || kern->sk->sk_reuseport_cb->num_socks != facts->members)
		return counted(REUSEPORT_CHANGED);
	index = queue_of(skb);
	if (skb->napi_id < facts->napi_id_min || !index)
		return counted(REUSEPORT_NO_LIST);
	queue.ifindex = skb->skb_iif;
	queue.index = index - 1;
	list = bpf_map_lookup_elem(&np_queues, &queue);
	if (!list || !list->count)
		return counted(REUSEPORT_NO_LIST);
	place = list->first + (__u32)(((__u64)ctx->hash * list->count) >> 32);
	listener = bpf_map_lookup_elem(&np_places, &place);
	if (!listener || bpf_sk_select_reuseport(ctx, &np_listeners, listener, 0))
		return counted(REUSEPORT_GONE);
	return counted(REUSEPORT_BY_QUEUE);
}

/*
 * Returns whether this socket is one among which the group's program selects. A
 * connected UDP socket stays in the group, but receives only its peer's
 * datagrams.
 */
static __always_inline bool receives_for_group(struct sock *sk)
{
	if (sk->sk_protocol == IPPROTO_TCP)
		return sk->__sk_common.skc_state == TCP_LISTEN;
	return sk->sk_protocol == IPPROTO_UDP && sk->__sk_common.skc_num;
}

SEC("?iter/task_file")
int listeners(struct bpf_iter__task_file *ctx)
{
	struct listener_record record = {};
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct sock_reuseport *group;
	struct socket *socket;
	struct sock *sk;

	if (!file || !task || (file->f_inode->i_mode & S_IFMT) != S_IFSOCK)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk || !receives_for_group(sk))
		return 0;
	group = sk->sk_reuseport_cb;
	if (!group)
		return 0;

	record.group = (__u64)group;
	record.inode = file->f_inode->i_ino;
	record.tgid = task->tgid;
	record.fd = ctx->fd;
	record.netns = sk->__sk_common.skc_net.net->ns.inum;
	if (group->prog)
		record.program = group->prog->aux->id ?: REUSEPORT_CLASSIC;
	record.members = group->num_socks;
	record.family = sk->__sk_common.skc_family;
	record.port = sk->__sk_common.skc_num;
	record.protocol = sk->sk_protocol;
	if (record.family == AF_INET6)
		BPF_CORE_READ_INTO(&record.address, sk, __sk_common.skc_v6_rcv_saddr);
	else
		BPF_CORE_READ_INTO((__u32 *)&record.address, sk, __sk_common.skc_rcv_saddr);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}
