/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Pairs datagrams with the answers to their senders.
 *
 * DNS and memcached repeat a request's 16-bit id in the answer, and answer in any order: each such
 * request has an entry in `queries` until it is answered. All other datagrams from a peer are
 * paired in order with the datagrams that are sent to that peer, by means of the peer's entry in
 * `peers`. Both maps are empty when a window opens.
 *
 * No lock covers both a socket's queue and its senders, so threads claim a request by
 * compare-and-swap.
 *
 * Only tracepoints are used, because some kernels allow no fentry programs. No tracepoint has both
 * a socket and its datagram, so two times are derived from the order of the datagrams in a socket's
 * queue: how long a datagram waited in the queue, and when a request was read.
 */
#ifndef __LIVE_DATAGRAM_H__
#define __LIVE_DATAGRAM_H__

#include "state.bpf.h"
#include "estimate.bpf.h"

/* The maximum number, in a window, of unanswered requests with an id, and of peers that send no
 * ids. The kernel allocates entries on demand. */
#define QUERIES_MAX 65536
#define PEERS_MAX 16384

#define LOCALS_MAX 256

/* The maximum number of attempts to claim a peer's first request if other
 * threads claim it at the same time. */
#define RACES_MAX 4

/* The lengths of a UDP header and of a DNS header. */
#define UDP_BYTES 8
#define DNS_BYTES 12

/* Flags of the DNS header (RFC 1035, 4.1.1): QR marks an answer; the others are zero in a query. */
#define DNS_ANSWER 0x8000
#define DNS_NOT_QUERY 0xf88f

/* The length of the shortest DNS query: its header, the root's name, type and
 * class. */
#define DNS_QUERY_BYTES 17

#define QUIC_1 0x00000001
#define QUIC_2 0x6b3343cf
#define QUIC_DRAFTS 0xff0000
#define QUIC_ID_BYTES_MAX 20

/* The key of a request: its peer and its id. An IPv4 address is stored in the last word. */
struct live_peer {
	__u32 address[4];
	__u16 port;
	__u16 local_port;
	__u16 id;
	__u16 of;
};

/* Values of live_peer.of. */
#define OF_PEER 0	/* the entry stands for all requests of a peer that sends no ids */
#define OF_ID 1		/* the entry is the request with this id */

/* A peer's unanswered requests. They are numbered like those of a socket, with
 * head, read and tail. */
struct peer_state {
	__u32 head, read, tail;
	__u8 carried;	/* datagrams sent to the peer before any of the peer's own was seen */
	__u8 broken;	/* the peer had more requests outstanding than fit, so which request was answered is unknown */
	__u8 pad[2];
	__u64 last_send;
	struct exchange exchanges[EXCHANGES_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, QUERIES_MAX);
	__type(key, struct live_peer);
	__type(value, struct exchange);
} queries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PEERS_MAX);
	__type(key, struct live_peer);
	__type(value, struct peer_state);
} peers SEC(".maps");

/* The initial state of a new peer. A constant, because it is too large for a
 * BPF program's stack. */
const struct peer_state no_requests = {};

/*
 * The number of most recent datagrams whose times are kept for each socket. A
 * power of two.
 */
#define QUEUE_MAX 32

#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000

#define IPV6_BYTES 40

/* When each datagram of a socket entered and left the receive queue, by datagram number. */
struct queue_state {
	__u32 window;
	__u32 joined;
	__u32 read;
	__u32 before;	/* datagrams that were already queued when the first one of this window was queued */
	__u64 joined_at[QUEUE_MAX];
	__u64 read_at[QUEUE_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct queue_state);
} queues SEC(".maps");

struct local_address {
	__u32 address[4];
};

/* The local addresses from which the service has answered. Datagrams to any other address are
 * forwarded or multicast. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LOCALS_MAX);
	__type(key, struct local_address);
	__type(value, __u32);
} locals SEC(".maps");

/*
 * What a port of the service has received recently: when `datagrams` reaches
 * RECENT_MAX, all counts are halved. A lost increment does no harm.
 */
struct port_seen {
	__u32 datagrams;
	__u32 dns;
	__u32 memcached;
	__u32 quic;	/* packets that open a connection */
};

#define RECENT_MAX 4096

/* A port is taken to speak QUIC if at least one in this many of its datagrams opens a connection. */
#define QUIC_ONE_OF 256

struct port_seen ports_seen[LIVE_PORTS_MAX];

struct datagram {
	struct live_peer peer;
	struct local_address local;
	struct exchange exchange;
	__u32 protocol;	/* enum live_protocol */
	__u16 flags;	/* first word: id and flags of a DNS message, or id and number of a memcached frame */
	__u8 quic;
	__u8 pad;
};

/*
 * Returns the index of a UDP port of the service; negative if the port does not
 * belong to the service.
 */
static __always_inline int port_index(__u16 port)
{
	__u32 i;

	for (i = 0; i < LIVE_PORTS_MAX; i++) {
		if (i >= config.udp_ports_count)
			return -1;
		if (port == config.udp_ports[i])
			return i;
	}
	return -1;
}

static __always_inline int udp_port(const struct sock *sk)
{
	int port = port_index(sk->__sk_common.skc_num);

	return port >= 0 && sk->__sk_common.skc_net.net->ns.inum == config.netns ? port : -1;
}

static __always_inline bool is_lower_case(__u8 letter)
{
	return letter >= 'a' && letter <= 'z';
}

/* Detects the protocol of a datagram from its length and its first bytes. */
static __always_inline void identify(struct datagram *datagram, void *udp, __u32 bytes)
{
	struct in6_addr *start = sixteen_bytes(udp + UDP_BYTES);
	__u32 first = bpf_ntohl(start->in6_u.u6_addr32[0]);
	__u32 second = bpf_ntohl(start->in6_u.u6_addr32[1]);
	__u32 third = bpf_ntohl(start->in6_u.u6_addr32[2]);
	__u32 version = first << 8 | second >> 24;

	datagram->peer.id = first >> 16;
	if (second == 0x00010000 && !(first & 0xffff) && is_lower_case(third >> 24)) {
		/* The header of a memcached frame: datagram number 0 of 1. */
		datagram->protocol = LIVE_MEMCACHED;
	} else if (bytes >= DNS_QUERY_BYTES && second == 0x00010000 && !(first & DNS_NOT_QUERY) && !(third >> 16)) {
		datagram->protocol = LIVE_DNS;
	} else if ((first >> 24 & 0xc0) == 0xc0 && (second >> 16 & 0xff) <= QUIC_ID_BYTES_MAX &&
		   (version == QUIC_1 || version == QUIC_2 || version >> 8 == QUIC_DRAFTS)) {
		datagram->quic = 1;
	}
	datagram->flags = first;
}

static __always_inline void copy_address(__u32 *to, struct in6_addr *from)
{
	to[0] = from->in6_u.u6_addr32[0];
	to[1] = from->in6_u.u6_addr32[1];
	to[2] = from->in6_u.u6_addr32[2];
	to[3] = from->in6_u.u6_addr32[3];
}

/*
 * Parses the packet at @network. Returns the index of the service's port, the
 * datagram's peer and its protocol; negative if the packet is not a datagram of
 * the service.
 */
static __always_inline int describe(struct sk_buff *skb, void *network, bool out, struct datagram *datagram)
{
	__u64 linear = (__u64)skb->data + skb->len - skb->data_len;
	struct in6_addr *header = sixteen_bytes(network), *more;
	__u8 version = header->in6_u.u6_addr8[0] >> 4;
	__u32 ports, bytes;
	void *udp;
	int port;

	if (version == 4) {
		/* Skip later fragments: only the first one has ports. */
		if (header->in6_u.u6_addr8[9] != IPPROTO_UDP || header->in6_u.u6_addr8[6] & 0x1f ||
		    header->in6_u.u6_addr8[7])
			return -1;
		udp = network + (header->in6_u.u6_addr8[0] & 15) * 4;
	} else if (version == 6 && header->in6_u.u6_addr8[6] == IPPROTO_UDP) {
		udp = network + IPV6_BYTES;
	} else {
		return -1;
	}
	if ((__u64)udp + UDP_BYTES > linear)
		return -1;
	more = sixteen_bytes(udp);
	ports = bpf_ntohl(more->in6_u.u6_addr32[0]);
	port = port_index(out ? ports >> 16 : ports);
	if (port < 0)
		return -1;
	bytes = (bpf_ntohl(more->in6_u.u6_addr32[1]) >> 16) - UDP_BYTES;
	datagram->peer.port = out ? ports : ports >> 16;
	datagram->peer.local_port = out ? ports >> 16 : ports;
	if (version == 4) {
		more = sixteen_bytes(network + 12);
		datagram->peer.address[3] = more->in6_u.u6_addr32[out];
		datagram->local.address[3] = more->in6_u.u6_addr32[!out];
	} else {
		copy_address(datagram->peer.address, sixteen_bytes(network + (out ? 24 : 8)));
		copy_address(datagram->local.address, sixteen_bytes(network + (out ? 8 : 24)));
	}
	datagram->protocol = LIVE_UDP;
	datagram->exchange.requests = 1;
	datagram->exchange.bytes = bytes;
	/*
	 * Until the request is answered, these fields identify its packet and
	 * the first device that received the packet.
	 */
	datagram->exchange.read = (__u64)skb;
	datagram->exchange.end_seq = skb->dev->ifindex;
	/* Only the linear part of the packet is examined: bytes in page
	 * fragments cannot be read here. */
	if (bytes >= DNS_BYTES && (__u64)udp + UDP_BYTES + DNS_BYTES <= linear)
		identify(datagram, udp, bytes);
	datagram->exchange.write_seq = datagram->protocol;
	if (datagram->protocol != LIVE_UDP)
		datagram->peer.of = OF_ID;
	else if (!out)
		datagram->peer.id = 0;
	return port;
}

static __always_inline bool is_cached(struct datagram *datagram, struct cpu_state *cpu)
{
	return cpu->local[3] == datagram->local.address[3] && cpu->local[0] == datagram->local.address[0] &&
	       cpu->local[1] == datagram->local.address[1] && cpu->local[2] == datagram->local.address[2];
}

static __always_inline void cache(struct datagram *datagram, struct cpu_state *cpu)
{
	cpu->local[0] = datagram->local.address[0];
	cpu->local[1] = datagram->local.address[1];
	cpu->local[2] = datagram->local.address[2];
	cpu->local[3] = datagram->local.address[3];
}

/* Returns whether the service has answered from the address to which the datagram was sent. */
static __always_inline bool is_local(struct datagram *datagram, struct cpu_state *cpu)
{
	if (is_cached(datagram, cpu))
		return true;
	if (!bpf_map_lookup_elem(&locals, &datagram->local))
		return false;
	cache(datagram, cpu);
	return true;
}

static __always_inline void learns_local(struct datagram *datagram, struct cpu_state *cpu)
{
	__u32 one = 1;

	if (is_cached(datagram, cpu))
		return;
	bpf_map_update_elem(&locals, &datagram->local, &one, BPF_ANY);
	cache(datagram, cpu);
}

static __always_inline struct port_seen *seen_at(int port)
{
	return &ports_seen[port & (LIVE_PORTS_MAX - 1)];
}

/* Updates the counts of a port's recent datagrams. */
static __always_inline void learns(struct port_seen *seen, struct datagram *datagram)
{
	seen->datagrams++;
	seen->dns += datagram->protocol == LIVE_DNS;
	seen->memcached += datagram->protocol == LIVE_MEMCACHED;
	seen->quic += datagram->quic;
	if (seen->datagrams < RECENT_MAX)
		return;
	seen->datagrams /= 2;
	seen->dns /= 2;
	seen->memcached /= 2;
	seen->quic /= 2;
}

/*
 * Returns the protocol with ids that accounts for most of a port's datagrams,
 * or 0 if there is none. A single datagram of another protocol may look like
 * such a protocol, so a majority is required.
 */
static __always_inline __u32 ids_of(struct port_seen *seen)
{
	if (seen->dns * 2 > seen->datagrams)
		return LIVE_DNS;
	return seen->memcached * 2 > seen->datagrams ? LIVE_MEMCACHED : 0;
}

static __always_inline bool speaks_quic(struct port_seen *seen)
{
	return seen->quic && seen->quic * QUIC_ONE_OF >= seen->datagrams;
}

/* Returns whether datagrams without an id on this port are not paired with
 * answers. */
static __always_inline bool is_unpaired(struct port_seen *seen)
{
	return gate.pairs_ids_only || speaks_quic(seen);
}

/*
 * Records that a datagram enters the socket's queue. A reader on another CPU
 * may take the datagram before it is counted here; the number of datagrams read
 * is then greater than the number queued.
 */
static __always_inline void joins_queue(struct queue_state *queue, const struct sock *sk, __u64 now)
{
	struct udp_sock *udp = bpf_core_cast(sk, struct udp_sock);
	__u32 waiting = sk->sk_receive_queue.qlen + udp->reader_queue.qlen, number;

	if (queue->window != (__u32)gate.window) {
		queue->window = gate.window;
		queue->joined = 0;
		queue->read = 0;
		queue->before = waiting ? waiting - 1 : 0;
	}
	number = __sync_fetch_and_add(&queue->joined, 1);
	queue->joined_at[number & (QUEUE_MAX - 1)] = now;
	if (waiting == 1 && number && !queue->before && queue->read != number) {
		/* Only this datagram is queued: the earlier one had a wrong checksum and was
		 * dropped without being read. */
		queue->read = number;
	}
}

static __always_inline void leaves_queue(struct queue_state *queue, __u64 now)
{
	struct live_spans *here;
	__u32 only = 0, number;
	__u64 joined, span = 0;

	if (queue->window != (__u32)gate.window)
		return;
	if (queue->before) {
		queue->before--;
		return;
	}
	number = __sync_fetch_and_add(&queue->read, 1);
	queue->read_at[number & (QUEUE_MAX - 1)] = now;
	here = bpf_map_lookup_elem(&spans, &only);
	if (!here || now < gate.opens || !gate.opens)
		return;
	if ((__s32)(queue->joined - number) > 0) {
		joined = queue->joined_at[number & (QUEUE_MAX - 1)];
		/* If the datagram waited too long, a later one has overwritten its record. */
		if (joined < gate.opens || joined > now || queue->joined - number > QUEUE_MAX)
			return;
		span = now - joined;
	}
	add(here->wakeup, span, 1);
}

/*
 * Returns when the datagram that arrived at @arrived was read, or 0 if it has not been read. It is
 * taken to be the first datagram that was queued after that time.
 */
static __always_inline __u64 read_at(struct queue_state *queue, __u64 arrived)
{
	__u32 i, number, at;
	__u64 read = 0;

	if (!queue || queue->window != (__u32)gate.window)
		return 0;
	number = queue->read;
	for (i = 0; i < QUEUE_MAX; i++) {
		if (!number)
			break;
		at = --number & (QUEUE_MAX - 1);
		if (queue->read_at[at] < arrived || (read && queue->joined_at[at] < arrived))
			break;
		read = queue->read_at[at];
	}
	return read;
}

static __always_inline struct peer_state *peer_of(struct live_peer *peer)
{
	struct peer_state *state = bpf_map_lookup_elem(&peers, peer);

	if (state)
		return state;
	bpf_map_update_elem(&peers, peer, &no_requests, BPF_NOEXIST);
	return bpf_map_lookup_elem(&peers, peer);
}

/*
 * Returns whether this packet has already been counted at another device. The
 * same address at the same device is a new packet, because the allocator reuses
 * addresses.
 */
static __always_inline bool is_counted(struct exchange *known, struct exchange *exchange)
{
	return known->read == exchange->read && known->end_seq != exchange->end_seq;
}

/* Skips those of a peer's first requests that the kernel has dropped. */
static __always_inline void skip_dropped(struct peer_state *state)
{
	__u32 i, head;

	for (i = 0; i < EXCHANGES_MAX; i++) {
		head = state->head;
		if (head == state->tail || !state->exchanges[head & (EXCHANGES_MAX - 1)].incomplete)
			return;
		__sync_val_compare_and_swap(&state->head, head, head + 1);
	}
}

/*
 * Marks the request in this packet as dropped, so that no answer is paired with it. Returns whether
 * there is such a request.
 */
static __always_inline bool drop(struct peer_state *state, __u64 skb)
{
	struct exchange *exchange;
	__u32 i, last = state->tail;

	for (i = 0; i < EXCHANGES_MAX; i++) {
		if (last == state->head)
			return false;
		exchange = &state->exchanges[--last & (EXCHANGES_MAX - 1)];
		if (exchange->read == skb && !exchange->incomplete) {
			exchange->incomplete = 1;
			return true;
		}
	}
	return false;
}

static __always_inline void datagram_arrives(struct datagram *datagram, int port, struct live_counts *all)
{
	struct exchange *exchange = &datagram->exchange, *known;
	struct port_seen *seen = seen_at(port);
	bool counts = !exchange->untimed;
	struct peer_state *state;
	__u32 tail;

	learns(seen, datagram);
	if (datagram->peer.of == OF_ID) {
		if (!bpf_map_update_elem(&queries, &datagram->peer, exchange, BPF_NOEXIST)) {
			all->identified += counts;
			all->arrivals += counts;
			return;
		}
		known = bpf_map_lookup_elem(&queries, &datagram->peer);
		if (!known) {
			all->unmeasured += counts;
		} else if (!is_counted(known, exchange)) {
			/* A retransmitted request. */
			known->last = exchange->probed;
			known->read = exchange->read;
			known->end_seq = exchange->end_seq;
			all->identified += counts;
			all->joined += counts;
		}
		return;
	}
	if (is_unpaired(seen)) {
		all->unpaired += counts;
		all->quic += speaks_quic(seen) ? counts : 0;
		return;
	}
	state = peer_of(&datagram->peer);
	if (!state) {
		all->unmeasured += counts;
		return;
	}
	tail = state->tail;
	known = &state->exchanges[(tail - 1) & (EXCHANGES_MAX - 1)];
	if (tail != state->head && is_counted(known, exchange))
		return;
	skip_dropped(state);
	if (tail - state->head >= EXCHANGES_MAX) {
		all->overflown += counts;
		state->broken = 1;
		return;
	}
	all->arrivals += counts;
	if (tail == state->head)
		exchange->floor = state->last_send;
	state->exchanges[tail & (EXCHANGES_MAX - 1)] = *exchange;
	state->tail = tail + 1;
}

/* Counts the answer to a request that arrived before the window. */
static __always_inline void answers_carried(struct live_counts *all, __u32 protocol)
{
	all->answered++;
	all->carried++;
	all->untimed++;
	all->requests++;
	all->protocols[bounded(protocol, LIVE_PROTOCOLS)]++;
}

/* Returns the slot of the current thread. */
static __always_inline __u32 current_worker(struct cpu_state *cpu)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 thread = task->pid;

	if (cpu->thread != thread) {
		cpu->worker = slot_of(thread, 1);
		cpu->thread = thread;
	}
	return cpu->worker;
}

/*
 * Pairs an answer with the request that has the same id. Returns false if there
 * is no such request.
 */
static __always_inline bool answers_id(struct datagram *datagram, struct queue_state *queue,
				       struct cpu_state *cpu, __u64 now)
{
	struct exchange *exchange, taken;

	datagram->peer.of = OF_ID;
	exchange = bpf_map_lookup_elem(&queries, &datagram->peer);
	if (!exchange)
		return false;
	taken = *exchange;
	taken.read = read_at(queue, taken.probed);
	if (!bpf_map_delete_elem(&queries, &datagram->peer))
		answer(&taken, now, current_worker(cpu), taken.write_seq | WAKEUP_COUNTED);
	return true;
}

/* Pairs an answer with the peer's first request. Returns false if that request has not been read
 * yet, because an unread request cannot have been answered. */
static __always_inline bool answers_first(struct peer_state *state, struct queue_state *queue,
					  struct cpu_state *cpu, __u64 now)
{
	struct exchange taken;
	__u32 race, head;

	skip_dropped(state);
	for (race = 0; race < RACES_MAX; race++) {
		head = state->head;
		if (head == state->tail)
			return false;
		taken = state->exchanges[head & (EXCHANGES_MAX - 1)];
		if (taken.incomplete)
			return false;
		taken.read = read_at(queue, taken.probed);
		if (!taken.read)
			return false;
		if (__sync_val_compare_and_swap(&state->head, head, head + 1) != head)
			continue;
		if (state->broken)
			taken.untimed = 1;
		state->last_send = now;
		answer(&taken, now, current_worker(cpu), LIVE_UDP | WAKEUP_COUNTED);
		return true;
	}
	return false;
}

static __always_inline void datagram_answers(struct datagram *datagram, int port, struct queue_state *queue,
					     struct live_counts *all, struct cpu_state *cpu, __u64 now)
{
	struct port_seen *seen = seen_at(port);
	bool counts = gate.opens && now >= gate.opens;
	__u32 ids = ids_of(seen);
	struct peer_state *state;
	bool has_id;

	if ((seen->dns || seen->memcached) && answers_id(datagram, queue, cpu, now))
		return;
	if (ids == LIVE_MEMCACHED && datagram->flags) {
		all->continued += counts;
		return;
	}
	datagram->peer.of = OF_PEER;
	datagram->peer.id = 0;
	has_id = ids == LIVE_MEMCACHED || (ids == LIVE_DNS && datagram->flags & DNS_ANSWER);
	if (is_unpaired(seen) && !has_id) {
		all->strays += counts && !speaks_quic(seen);
		return;
	}
	state = ids ? bpf_map_lookup_elem(&peers, &datagram->peer) : peer_of(&datagram->peer);
	if (state && answers_first(state, queue, cpu, now))
		return;
	if (has_id) {
		if (counts)
			answers_carried(all, ids);
	} else if (state && state->carried < EXCHANGES_MAX && !state->last_send) {
		state->carried++;
		if (counts)
			answers_carried(all, LIVE_UDP);
	} else {
		all->strays += counts;
	}
}

#endif
