// SPDX-License-Identifier: GPL-2.0
/*
 * Observes the wire between two hosts on one machine, and measures the time
 * from the transmission of a request to the transmission of its answer.
 *
 * A segment's port and the network namespace of its socket show whether the
 * segment is from the server or the client.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_endian.h>
#include "../buckets.bpf.h"
#include "wire.h"

/* The maximum number of connections: one for each client port. */
#define CONNECTIONS 65536

/* The maximum number of outstanding requests per connection. */
#define REQUESTS_MAX 16

/*
 * The TCP header is read by offset (include/uapi/linux/tcp.h): ports, sequence
 * number, acknowledgement, and the header length in the upper half of a byte.
 */
#define TCP_HEADER_BYTES 20

char LICENSE[] SEC("license") = "GPL";

const volatile struct wire_config config SEC(".rodata.config");

volatile struct wire_gate gate SEC(".data.gate");

/*
 * Outstanding requests have the numbers [head, tail). Server and client both write this state on
 * their CPUs, but never at the same time.
 */
struct connection {
	__u32 head, tail;
	struct {
		__u64 sent;
		__u32 end_seq, pad;
	} requests[REQUESTS_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, CONNECTIONS);
	__type(key, __u32);
	__type(value, struct connection);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wire_seen);
} seen SEC(".maps");

static const struct connection no_connection;

static __always_inline void requested(struct wire_seen *here, __u32 client, __u32 end_seq, __u64 now)
{
	struct connection *connection = bpf_map_lookup_elem(&connections, &client);
	__u32 at, last;

	if (!connection) {
		bpf_map_update_elem(&connections, &client, &no_connection, BPF_NOEXIST);
		connection = bpf_map_lookup_elem(&connections, &client);
	}
	if (!connection || connection->tail - connection->head >= REQUESTS_MAX) {
		here->lost++;
		return;
	}
	/* A retransmitted segment is not another request. */
	last = (connection->tail - 1) & (REQUESTS_MAX - 1);
	if (connection->tail && (__s32)(end_seq - connection->requests[last].end_seq) <= 0)
		return;
	at = connection->tail & (REQUESTS_MAX - 1);
	connection->requests[at].sent = now;
	connection->requests[at].end_seq = end_seq;
	connection->tail++;
	here->requests++;
}

static __always_inline void answered(struct wire_seen *here, __u32 client, __u32 ack, __u64 now)
{
	struct connection *connection = bpf_map_lookup_elem(&connections, &client);
	__u32 i, at, bucket;

	if (!connection)
		return;
	for (i = 0; i < REQUESTS_MAX && connection->head != connection->tail; i++) {
		at = connection->head & (REQUESTS_MAX - 1);
		if ((__s32)(ack - connection->requests[at].end_seq) < 0)
			break;
		bucket = bucket_of(now - connection->requests[at].sent);
		asm volatile("" : "+r"(bucket));
		if (bucket < SPAN_BUCKETS)
			here->spans[bucket]++;
		here->answered++;
		connection->head++;
	}
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(wire_transmits, struct sk_buff *skb, struct net_device *dev)
{
	struct sock *sk = skb->sk;
	struct wire_seen *here;
	__u32 only = 0, client, header, bytes;
	__u8 tcp[TCP_HEADER_BYTES];
	bool of_server;
	__u64 now;

	if (!sk)
		return 0;
	of_server = sk->__sk_common.skc_num == config.port;
	if (!of_server && bpf_ntohs(sk->__sk_common.skc_dport) != config.port)
		return 0;
	/*
	 * Time-wait sockets send packets, too. They have only the common part of a socket, so only
	 * that part is read.
	 */
	if (sk->__sk_common.skc_net.net->ns.inum != (of_server ? config.server : config.client))
		return 0;
	if (bpf_probe_read_kernel(tcp, sizeof(tcp), skb->head + skb->transport_header))
		return 0;
	header = skb->transport_header - skb->mac_header + (tcp[12] >> 4) * 4;
	if (skb->len <= header)
		return 0;
	bytes = skb->len - header;
	here = bpf_map_lookup_elem(&seen, &only);
	if (!here)
		return 0;
	now = bpf_ktime_get_ns();
	if (of_server) {
		client = bpf_ntohs(sk->__sk_common.skc_dport);
		answered(here, client, tcp[8] << 24 | tcp[9] << 16 | tcp[10] << 8 | tcp[11], now);
	} else if (now >= gate.opens && now < gate.closes) {
		client = sk->__sk_common.skc_num;
		requested(here, client, (tcp[4] << 24 | tcp[5] << 16 | tcp[6] << 8 | tcp[7]) + bytes, now);
	}
	return 0;
}
