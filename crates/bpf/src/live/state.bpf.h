/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The state of live.bpf.c for sockets, NAPIs, threads and CPUs, with its maps
 * and lookup functions.
 */
#ifndef __LIVE_STATE_H__
#define __LIVE_STATE_H__

/* The maximum number of unanswered exchanges that are kept per socket. Further requests are merged
 * into the last one. */
#define EXCHANGES_MAX 8

/*
 * The number of poll records kept per NAPI. A record is needed until its
 * packets are answered.
 */
#define POLLS_MAX 64

#define NO_SLOT 0xff

/*
 * The number of entries in the cache of NAPI slots, whose index is the low bits
 * of a NAPI id. A power of two.
 */
#define NEAR_MAX 1024

/* The unit of a connection's timestamps. */
#define STAMPS_UNKNOWN 0
#define STAMPS_MICROSECONDS 1
#define STAMPS_OTHER 2

const volatile struct live_config config SEC(".rodata.config");

volatile struct live_gate gate SEC(".data.gate");

/*
 * An exchange: the data that a client sends until the server answers. If the
 * protocol is known, a request that arrives before the previous answer begins a
 * separate exchange.
 */
struct exchange {
	__u64 probed;	/* TCP received its first segment */
	__u64 last;	/* TCP received its last segment so far */
	__u64 read;	/* the application has read the whole request; 0: not yet */
	__u64 floor;	/* earliest possible arrival in the ring; 0: unknown */
	__u32 end_seq;	/* of a datagram: the index of its device */
	__u32 bytes;
	__u32 write_seq;	/* the socket's write sequence when it began; of a datagram: its enum live_protocol */
	__u32 poll;	/* the poll of its NAPI that delivered its first segment */
	__u32 late;	/* transit time beyond that of the fastest segment of its connection, in microseconds */
	__u16 at;	/* the packet's position in that poll */
	__u16 requests;	/* requests in it, if the protocol shows them */
	__u8 napi;	/* slot, or NO_SLOT */
	__u8 stamped;	/* the field late is valid */
	__u8 unseen;	/* no program saw the arrival; its time is from TCP's clock */
	__u8 touched;	/* the application has read part of it */
	__u8 untimed;	/* the start is not known precisely enough */
	__u8 incomplete;	/* the client has sent only part of the request; of a datagram: the kernel has dropped it */
	__u8 at_interrupt;	/* the first packet of a poll that began with interrupts enabled */
	__u8 by_ksoftirqd;	/* ksoftirqd ran that poll */
};

/* A socket's TCP counters when the window began, or at the socket's first event in the window. */
struct tcp_counts {
	__u32 window;	/* the number of the window that the counters belong to */
	__u32 segments_out;
	__u32 retransmitted;
	__u32 needless;	/* reported as received twice */
	__u32 segments_in;
	__u32 out_of_order;
	__u32 client_full;	/* jiffies in which data waited for the client's receive window */
};

/*
 * Exchanges are numbered: those in [head, read) have been read, those in [read, tail) have not.
 *
 * The kernel stores eight bytes in front of this structure, at the start of a cache line. The
 * fields that every event of a socket touches fill the rest of that line, and each exchange has a
 * line. The fields that only arrivals use come last, because CPUs fetch lines in pairs: if the CPU
 * that answers is not the one that receives, each line that both CPUs write costs a request up to
 * 100 ns.
 */
struct socket_state {
	__u64 last_send;
	__u64 switches;	/* of the thread that last sent data */
	__u32 window;
	__u32 head, read, tail;
	__u32 seen_seq;	/* the highest sequence number seen to arrive in this window */
	__u32 thread;	/* the pid of the thread in slot `worker` */
	__u8 worker;
	__u8 sees;	/* seen_seq is valid */
	__u8 pipelined;	/* the socket had several requests outstanding */
	__u8 answered;	/* the socket was answered in this window */
	__u8 more;	/* the last send was flagged MSG_MORE */
	__u8 has_read;	/* the application has read since the last send */
	__u8 protocol;	/* enum live_protocol */
	__u8 strays;	/* consecutive answers to arrivals that begin no request */
	__u8 strayed;	/* since the last send, data arrived that begins no request */
	__u8 closed;	/* the last read found the receive window closed */
	__u8 pad[6];
	struct exchange exchanges[EXCHANGES_MAX];
	/* Only arrivals use these fields. */
	__u32 napi_id;	/* the id of the NAPI in slot `napi` */
	__u32 one_bytes;	/* length of the longest arrival with one request */
	__u32 skip;	/* bytes of the last message that have not arrived yet */
	__u32 stamp;	/* the first timestamp */
	__u64 stamped_at;	/* time of the first timestamp until its unit is known, then of the last one */
	__u32 stamp_least;	/* minimum offset between our clock and the timestamps */
	__u32 write_seq;	/* the write sequence at the end of the window */
	__u8 napi;
	__u8 stamps;	/* STAMPS_* */
	__u8 stamps_seen;	/* number of microsecond timestamps seen, up to STAMPS_MIN */
	__u8 looked;	/* messages checked so far to detect the protocol */
	__u8 in_one;	/* consecutive arrivals with one request */
	struct tcp_counts before;	/* used only by the first event of a window */
};

_Static_assert(sizeof(struct exchange) == 64, "an exchange fills a cache line");
_Static_assert(8 + __builtin_offsetof(struct socket_state, exchanges) == 64, "the first line ends where exchanges begin");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_state);
} sockets SEC(".maps");

struct poll {
	__u64 from;	/* when the ring was last known to be empty, or the interrupt fired */
	__u64 last;	/* when the last of the service's packets in the poll reached TCP */
	__u32 number;
	__u16 packets;	/* of the service */
	__u8 masked;
	__u8 flags;
	__u64 pad;	/* Pads the record so that no poll spans two cache lines. */
};

/* A flag: a kernel thread polls the NAPI. */
#define THREADED 1
/* A flag: the NAPI's thread has not slept, so its packets arrived while it waited for a CPU. */
#define SPREAD 2
/* A flag: the thread's wake-up for the running poll was observed. */
#define WOKEN 4
/* A flag: ksoftirqd polls, so it is unknown how long the softirq has been
 * pending. */
#define BY_KSOFTIRQD 8

struct napi_state {
	__u64 drained;	/* when the last poll that emptied the ring ended */
	__u64 first, last;	/* when the first and the last of the service's packets in the running poll arrived */
	__u64 run_delay;	/* sched_info.run_delay of the NAPI's thread at the end of the last poll */
	__u64 turns;	/* the thread's sched_info.pcount at that time */
	__u64 sleeps;	/* the thread's voluntary context switches at that time */
	__u64 waited;	/* the thread's wait for a CPU before the running poll */
	__u64 woken;	/* last wake-up of the thread since the last poll; 0 if none was observed */
	__u64 expires;	/* address of the timer's expiry time; 0 if the last poll did not start the timer */
	__u64 timeout;	/* the expiry time of that timer */
	__u64 suspended;	/* the longest irq-suspend-timeout that the timer was armed with; 0: it was not armed with any */
	__u32 window;
	__u32 number;	/* the number of the running poll */
	__u32 cpu;	/* the CPU that processed the running poll's packets */
	__u32 thread;	/* the pid of its thread */
	__u16 packets;	/* packets of the service in the running poll */
	__u8 masked;	/* the running poll began with its interrupt masked */
	__u8 polls_seen;	/* the entry is a NAPI: a poll was observed */
	__u8 flags;
	__u8 pad[3];
	/* Aligned because another CPU, the one that answers, reads the array. This structure begins
	 * 16 bytes into a cache line. */
	struct poll polls[POLLS_MAX];
	__u64 rest[2];
};

_Static_assert((16 + __builtin_offsetof(struct napi_state, polls)) % 64 == 0, "polls begin a line");
_Static_assert(sizeof(struct napi_state) % 64 == 0, "each NAPI begins at the same place of a line");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LIVE_NAPIS_MAX + LIVE_WORKERS_MAX);
	__type(key, struct live_key);
	__type(value, __u32);
} slots SEC(".maps");

/*
 * A cache of NAPI slots, because every poll on the host looks up a slot. If two
 * NAPIs have the same index, only the first has an entry. An entry has the
 * NAPI's id in its low half (0: no measured NAPI has this index) and the slot
 * in its high half, so that both are written atomically.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NEAR_MAX);
	__type(key, __u32);
	__type(value, __u64);
} near_slots SEC(".maps");

/* The slots of threaded NAPIs, by the pid of the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LIVE_NAPIS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} threads SEC(".maps");

/* The number of slots in use, for NAPIs and for threads. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} given SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LIVE_NAPIS_MAX);
	__type(key, __u32);
	__type(value, struct napi_state);
} napis SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LIVE_NAPIS_MAX + LIVE_WORKERS_MAX);
	__type(key, __u32);
	__type(value, struct live_part);
} parts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct live_spans);
} spans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct live_counts);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct live_turnarounds);
} turnarounds SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct live_waiting);
} waiting SEC(".maps");

/* Casts the socket argument of TCP's tracepoints to struct tcp_sock. */
static __always_inline struct tcp_sock *tcp_of(struct sock *sk)
{
	return bpf_core_cast(sk, struct tcp_sock);
}

/* The state of the current CPU. */
struct cpu_state {
	__u64 softirq;	/* start of its receive softirq; 0: not observed */
	__u64 sent;	/* time of the last answer */
	__u64 socket;	/* the address of that answer's socket; 0 once the answer has been transmitted */
	__u32 thread;	/* the thread that last sent a datagram, with its slot */
	__u32 worker;
	__u64 sent_skb;	/* the last datagram sent; the next fields are its first device, and a part of its peer and contents */
	__u64 sent_dev;
	__u64 sent_what;
	__u32 local[4];	/* the service's address in that datagram */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_state);
} cpus SEC(".maps");

static __always_inline struct cpu_state *this_cpu(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&cpus, &only);
}

static __always_inline struct live_counts *counted(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&counts, &only);
}

/*
 * Keeps a bounded value in one register, because the verifier does not transfer the bounds to
 * copies of the value.
 */
#define bounded(index, size)						\
	({								\
		__u32 __at = (index);					\
		asm volatile("" : "+r"(__at));				\
		__at < (size) ? __at : 0;				\
	})

/* Returns the lower edge of a bucket, which is the shortest span in it. */
static __always_inline __u64 lower_edge(__u32 bucket)
{
	__u32 power = (bucket >> 4) + 3;

	return bucket < 16 ? bucket : (1ULL << power) + ((__u64)(bucket & 15) << (power - 4));
}

static __always_inline __u64 width_of(__u32 bucket)
{
	return bucket < 32 ? 1 : 1ULL << ((bucket >> 4) - 1);
}

static __always_inline void add_at(__u32 *buckets, __u32 bucket, __u32 weight)
{
	buckets[bounded(bucket, LIVE_BUCKETS)] += weight;
}

static __always_inline void add(__u32 *buckets, __u64 span, __u32 weight)
{
	add_at(buckets, bucket_of(span), weight);
}

static __always_inline bool ours(const struct sock *sk)
{
	__u16 port = sk->__sk_common.skc_num;
	__u32 i;

	if (port != config.ports[0]) {
		for (i = 1; i < LIVE_PORTS_MAX; i++) {
			if (i >= config.ports_count)
				return false;
			if (port == config.ports[i])
				break;
		}
		if (i == LIVE_PORTS_MAX)
			return false;
	}
	return sk->__sk_common.skc_net.net->ns.inum == config.netns;
}

/* Caches the slot of a NAPI. If two NAPIs have the same index, the first one
 * keeps the entry. */
static __always_inline void has_place(__u32 id, __u32 slot)
{
	__u32 place = id & (NEAR_MAX - 1);
	__u64 *near = bpf_map_lookup_elem(&near_slots, &place);

	if (near && !*near)
		*near = (__u64)slot << 32 | id;
}

/*
 * Returns the slot of a NAPI or thread, which keeps it for the lifetime of the
 * maps. Assigns a slot to a NAPI or thread that has none.
 */
__noinline __u32 slot_of(__u32 id, __u32 is_worker)
{
	struct live_key key = {
		.id = id,
		.is_worker = is_worker & 1,
	};
	__u32 *known = bpf_map_lookup_elem(&slots, &key), *next, slot;

	if (known)
		return *known;
	next = bpf_map_lookup_elem(&given, &key.is_worker);
	if (!next)
		return NO_SLOT;
	slot = __sync_fetch_and_add(next, 1);
	/* Thread 0 stands for all threads without a slot. */
	if (key.is_worker)
		slot++;
	if (slot >= (key.is_worker ? LIVE_WORKERS_MAX : LIVE_NAPIS_MAX)) {
		__sync_fetch_and_add(next, -1);
		return is_worker ? 0 : NO_SLOT;
	}
	if (bpf_map_update_elem(&slots, &key, &slot, BPF_NOEXIST)) {
		/*
		 * Another CPU has assigned a slot first; the slot that was
		 * claimed here stays empty.
		 */
		known = bpf_map_lookup_elem(&slots, &key);
		return known ? *known : is_worker ? 0 : NO_SLOT;
	}
	if (!key.is_worker)
		has_place(id, slot);
	return slot;
}

/*
 * Returns the slot of a NAPI, or NO_SLOT if the NAPI has delivered no packets
 * of the service.
 */
static __always_inline __u32 slot_of_napi(__u32 id)
{
	__u32 place = id & (NEAR_MAX - 1), *known;
	__u64 *near = bpf_map_lookup_elem(&near_slots, &place), both;
	struct live_key key = {
		.id = id,
	};

	both = near ? *near : 0;
	if (!both)
		return NO_SLOT;
	if ((__u32)both == id)
		return both >> 32;
	known = bpf_map_lookup_elem(&slots, &key);
	return known ? *known : NO_SLOT;
}

static __always_inline struct napi_state *napi_at(__u32 slot)
{
	return slot < LIVE_NAPIS_MAX ? bpf_map_lookup_elem(&napis, &slot) : 0;
}

/* Records that a kernel thread polls this NAPI from now on. */
static __always_inline void is_polled_by(struct napi_state *napi, __u32 slot, __u32 thread)
{
	__u32 before = napi->thread;

	if (before)
		bpf_map_delete_elem(&threads, &before);
	if (!bpf_map_update_elem(&threads, &thread, &slot, BPF_ANY))
		napi->thread = thread;
}

static __always_inline struct live_part *part_at(__u32 slot)
{
	return bpf_map_lookup_elem(&parts, &slot);
}

static __always_inline struct exchange *exchange_at(struct socket_state *state, __u32 number)
{
	return &state->exchanges[number & (EXCHANGES_MAX - 1)];
}

/* The kinds of event that can be a socket's first event in a window. */
#define BY_ARRIVAL 0
#define BY_READ 1
#define BY_SEND 2

/*
 * The shortest wait, in jiffies, that TCP's timestamps of sends and receives can measure, because
 * TCP records them in jiffies.
 */
#define TICKS_MIN 8

/*
 * Returns whether TCP's timestamps show that data arrived after the last send, and sets how many
 * jiffies ago. If both were in the same jiffy, the result depends on whether the current event is
 * an arrival.
 */
static __always_inline bool client_waits(struct tcp_sock *tcp, __u32 by, __u32 *ticks)
{
	__u32 came = tcp->inet_conn.icsk_ack.lrcvtime, went = tcp->lsndtime;

	if (!tcp->bytes_received || (__s32)(came - went) < 0 || (came == went && by == BY_ARRIVAL))
		return false;
	*ticks = (__u32)bpf_jiffies64() - came;
	return true;
}

/* Returns when TCP last received a segment, or 0 if unknown. */
static __always_inline __u64 took_last(struct tcp_sock *tcp)
{
	return bpf_core_field_exists(tcp->tcp_clock_cache) ? tcp->tcp_clock_cache : 0;
}

/* A value of enum tcp_chrono in include/linux/tcp.h. chrono_stat has no entry
 * for value 0. */
#define TCP_CHRONO_RWND_LIMITED 2

static __always_inline void tcp_counts_of(struct tcp_sock *tcp, struct tcp_counts *counts)
{
	counts->window = gate.window;
	counts->segments_out = tcp->data_segs_out;
	counts->retransmitted = tcp->total_retrans;
	counts->needless = tcp->dsack_dups;
	counts->segments_in = tcp->data_segs_in;
	counts->out_of_order = tcp->rcv_ooopack;
	counts->client_full = tcp->chrono_stat[TCP_CHRONO_RWND_LIMITED - 1];
}

/*
 * Handles a socket's first event in a window. A request that was waiting before
 * is still waiting, unless the socket has sent data in between.
 */
static __noinline int enters(struct sock *sk, struct socket_state *state, __u32 by)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct live_counts *all = counted();
	struct exchange *exchange;
	__u32 ticks = 0, i;

	if (!tcp || !all)
		return 0;
	all->connections++;
	if (!state->window && !tcp->bytes_sent) {
		/* On a new connection, TCP's counters cover only this window. */
		all->opened++;
		__builtin_memset(&state->before, 0, sizeof(state->before));
		state->before.window = gate.window;
	} else if (state->before.window != (__u32)gate.window) {
		tcp_counts_of(tcp, &state->before);
	}
	/* Exchanges that were read before the last send were answered by it. */
	for (i = 0; i < EXCHANGES_MAX && state->head != state->read; i++) {
		exchange = exchange_at(state, state->head);
		if (state->last_send < exchange->read)
			break;
		state->head++;
	}
	state->window = gate.window;
	if (state->head == state->tail || state->write_seq != tcp->write_seq) {
		state->head = state->read = state->tail = 0;
		/* Skip this if the data was both received and read in this window: TCP's record of
		 * the last received segment is then more precise. */
		if (!(by == BY_READ && took_last(tcp) >= gate.opens) && client_waits(tcp, by, &ticks)) {
			exchange = exchange_at(state, 0);
			__builtin_memset(exchange, 0, sizeof(*exchange));
			exchange->probed = bpf_ktime_get_ns() - (__u64)ticks * config.tick_ns;
			exchange->last = exchange->probed;
			exchange->end_seq = tcp->rcv_nxt;
			exchange->write_seq = tcp->write_seq;
			exchange->napi = NO_SLOT;
			exchange->unseen = 1;
			exchange->untimed = ticks < TICKS_MIN;
			exchange->touched = 1;
			state->tail = 1;
			if (tcp->copied_seq == tcp->rcv_nxt) {
				/* The request was read at some unknown earlier time. */
				exchange->read = 1;
				state->read = 1;
			}
		}
	}
	state->last_send = 0;
	state->switches = 0;
	state->sees = 0;
	state->answered = state->more = state->has_read = 0;
	return 0;
}

/* Returns the socket's state in this window, or 0 if it has none. */
static __always_inline struct socket_state *state_of(struct sock *sk, __u32 by)
{
	struct socket_state *state = bpf_sk_storage_get(&sockets, sk, 0, 0);

	if (state && state->window != (__u32)gate.window)
		enters(sk, state, by);
	return state;
}

/* Like state_of(), but creates a state if there is none. An MPTCP socket gets no state, because no
 * program observes its answers. */
static __always_inline struct socket_state *state_for(struct sock *sk, struct tcp_sock *tcp, __u32 by)
{
	struct socket_state *state = bpf_sk_storage_get(&sockets, sk, 0, 0);

	if (!state) {
		if (gate.sockets >= config.sockets_max || is_mptcp(tcp))
			return 0;
		state = bpf_sk_storage_get(&sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!state)
			return 0;
		__sync_fetch_and_add(&gate.sockets, 1);
	}
	if (state->window != (__u32)gate.window)
		enters(sk, state, by);
	return state;
}

#endif
