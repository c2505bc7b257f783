// SPDX-License-Identifier: GPL-2.0
/*
 * How long the requests of a service take, from the ring of the NIC to the
 * answer, and where that time goes.
 *
 * The three programs on a socket run under its lock, so its state needs none.
 * A NAPI is polled on one CPU at a time. The counts are per CPU; one that a
 * softirq interrupts may lose an increment, once in a million.
 *
 * Nothing here outlives the process that loaded it, and nothing runs between
 * two windows: the meter detaches the programs.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>
#include "../compat.bpf.h"
#include "../poller.bpf.h"
#include "../buckets.bpf.h"
#include "live.h"

/* Arrivals of a socket without an answer; those beyond join the last. */
#define ARRIVALS_MAX 8

/* Polls of a NAPI that are remembered until their packets are answered. */
#define POLLS_MAX 64

/* Requests that one arrival may stand for. */
#define WEIGHT_MAX 64

/* A NAPI thread that waited longer was not waiting for a CPU alone. */
#define RUN_DELAY_MAX_NS 50000000

/* C is asked only where this share of turnarounds is, in parts of LIVE_WHOLE. */
#define CONDITIONAL_MIN (LIVE_WHOLE / 10000)

/* An answer with so much not yet acknowledged waits for room; what follows belongs to it. */
#define UNACKNOWLEDGED_BYTES 16384

/* include/linux/interrupt.h */
#define NET_RX_SOFTIRQ 3

/* Of struct tcp_skb_cb, as much as holds what is read of it. */
#define SEGMENT_BYTES 16

#define TCP_FIN 1
#define TCP_PSH 8

#define NO_SLOT 0xff

/* The timestamps option as Linux and others write it, alone and padded: net/ipv4/tcp_input.c tcp_parse_aligned_timestamp(). */
#define ALIGNED_TIMESTAMP 0x0101080a
#define TCP_HEADER_BYTES 20

/* So long after the first stamp of a connection its unit shows. */
#define STAMP_UNIT_NS 10000000

/* Arrivals until the least distance of two clocks is near the true one. */
#define STAMPS_MIN 16

/* Beyond this the stamp is that of a retransmission, or of another clock. */
#define STAMP_LATE_MAX_US 1000000

/* Two clocks that are kept by NTP drift apart by less than 1 / 2^17. */
#define STAMP_DRIFT_SHIFT 17

/* What is known of the stamps of a connection. */
#define STAMPS_UNKNOWN 0
#define STAMPS_MICROSECONDS 1
#define STAMPS_OTHER 2

char LICENSE[] SEC("license") = "GPL";

const volatile struct live_config config SEC(".rodata.config");

volatile struct live_gate gate SEC(".data.gate");

struct arrival {
	__u64 probed;	/* TCP took it */
	__u64 read;	/* the application read all of it; 0: not yet */
	__u64 floor;	/* it cannot have arrived before; 0: not known */
	__u32 end_seq;
	__u32 poll;	/* the poll of its NAPI that brought it */
	__u32 bytes;
	__u16 at;	/* its place in that poll */
	__u8 napi;	/* slot, or NO_SLOT */
	__u8 stamped;	/* late is known */
	__u32 late;	/* longer on its way than the fastest of its connection, in microseconds */
	__u32 pad;
};

/* Arrivals are counted up: [head, read) are read, [read, tail) are not. */
struct socket_state {
	__u64 last_send;
	__u64 switches;	/* of the thread that sent last */
	__u32 window;
	__u32 head, read, tail;
	__u32 write_seq;	/* when the window ended */
	__u32 napi_id;	/* of slot napi */
	__u32 thread;	/* of slot worker */
	__u8 napi;
	__u8 worker;
	__u8 partial;	/* the last arrival waits for its PSH */
	__u8 pipelined;	/* it had several requests under way */
	__u8 answered;	/* it was answered in this window */
	__u8 stamps;	/* STAMPS_* */
	__u8 stamps_seen;	/* in microseconds, up to STAMPS_MIN */
	__u8 pad;
	__u64 stamped_at;	/* the first, until the unit is known; then the last */
	__u32 stamp;	/* the first */
	__u32 stamp_least;	/* distance of our clock and that of the stamps */
	struct arrival arrivals[ARRIVALS_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_state);
} sockets SEC(".maps");

struct poll {
	__u64 from;	/* the ring was empty, or the interrupt came */
	__u64 last;	/* its last packet of ours was with TCP */
	__u32 number;
	__u16 packets;	/* of ours */
	__u8 masked;
	__u8 flags;
};

/* A kernel thread polls. */
#define THREADED 1
/* The thread was ready to run all the time: its packets came while it waited for a CPU. */
#define SPREAD 2

struct napi_state {
	__u64 drained;	/* the last poll that emptied the ring ended */
	__u64 first, last;	/* packets of ours in the running poll */
	__u64 run_delay;	/* of its thread, at the end of the last poll; so both below */
	__u64 turns;	/* on a CPU */
	__u64 sleeps;
	__u64 waited;	/* of its thread, for a CPU, before the running poll */
	__u32 window;
	__u32 number;	/* of the running poll */
	__u32 cpu;	/* that took the running poll's packets */
	__u16 packets;	/* of ours, in the running poll */
	__u8 masked;	/* the running poll began with its interrupt masked */
	__u8 polls_seen;	/* it is a NAPI: the kernel said so at its poll */
	__u8 flags;
	__u8 pad[7];
	struct poll polls[POLLS_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LIVE_NAPIS_MAX + LIVE_WORKERS_MAX);
	__type(key, struct live_key);
	__type(value, __u32);
} slots SEC(".maps");

/* Slots given out: of NAPIs and of threads. */
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


/* What this CPU is at. */
struct cpu_state {
	__u64 softirq;	/* since when it receives; 0: it is not seen */
	__u64 sent;	/* the last answer */
	__u64 socket;	/* on which socket, as a number; 0: it has been transmitted */
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

/* The verifier follows the bounds of a register, not those of its copy. */
#define bounded(index, size)						\
	({								\
		__u32 __at = (index);					\
		asm volatile("" : "+r"(__at));				\
		__at < (size) ? __at : 0;				\
	})

/* The least span of a bucket, and how many spans are in it. */
static __always_inline __u64 lower_edge(__u32 bucket)
{
	__u32 power = (bucket >> 4) + 3;

	return bucket < 16 ? bucket : (1ULL << power) + ((__u64)(bucket & 15) << (power - 4));
}

static __always_inline __u64 width_of(__u32 bucket)
{
	return bucket < 32 ? 1 : 1ULL << ((bucket >> 4) - 1);
}

static __always_inline void add(__u32 *buckets, __u64 span, __u32 weight)
{
	buckets[bounded(bucket_of(span), LIVE_BUCKETS)] += weight;
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

/* The slot of a NAPI or a thread, which keeps it for as long as the maps live. */
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
	/* Thread 0 stands for all that have no slot. */
	if (key.is_worker)
		slot++;
	if (slot >= (key.is_worker ? LIVE_WORKERS_MAX : LIVE_NAPIS_MAX)) {
		__sync_fetch_and_add(next, -1);
		return is_worker ? 0 : NO_SLOT;
	}
	if (bpf_map_update_elem(&slots, &key, &slot, BPF_NOEXIST)) {
		/* Another CPU was faster, and one slot stays empty. */
		known = bpf_map_lookup_elem(&slots, &key);
		return known ? *known : is_worker ? 0 : NO_SLOT;
	}
	return slot;
}

static __always_inline struct napi_state *napi_at(__u32 slot)
{
	return slot < LIVE_NAPIS_MAX ? bpf_map_lookup_elem(&napis, &slot) : 0;
}

static __always_inline struct live_part *part_at(__u32 slot)
{
	return bpf_map_lookup_elem(&parts, &slot);
}

/* span * (at + u) / of, u drawn from [0, 1). */
static __always_inline __u64 drawn(__u64 span, __u32 at, __u32 of)
{
	__u64 u = bpf_get_prandom_u32() >> 16;

	return of ? span * (((__u64)at << 16) + u) / of >> 16 : 0;
}

/* The share of turnarounds that are shorter, in parts of LIVE_WHOLE. */
__noinline __u32 share_below(__u64 span)
{
	__u32 only = 0, bucket = bounded(bucket_of(span), LIVE_BUCKETS);
	struct live_turnarounds *known = bpf_map_lookup_elem(&turnarounds, &only);
	__u64 lower;

	if (!known)
		return 0;
	if (bucket >= LIVE_BUCKETS - 1)
		return LIVE_WHOLE;
	lower = lower_edge(bucket);
	return known->below[bucket] + (__u32)((__u64)(known->below[bucket + 1] - known->below[bucket]) *
					      (span > lower ? span - lower : 0) / width_of(bucket));
}

/* The turnaround that this share is shorter than. */
__noinline __u64 turnaround_at(__u32 share)
{
	__u32 only = 0, bucket = 0, step, next;
	struct live_turnarounds *known = bpf_map_lookup_elem(&turnarounds, &only);
	__u64 in_bucket;

	if (!known)
		return 0;
	for (step = 256; step; step >>= 1) {
		next = bounded(bucket + step, LIVE_BUCKETS);
		if (next && known->below[next] <= share)
			bucket = next;
	}
	bucket = bounded(bucket, LIVE_BUCKETS);
	in_bucket = known->below[bucket + 1] - known->below[bucket];
	return lower_edge(bucket) +
	       (in_bucket ? width_of(bucket) * (share - known->below[bucket]) / in_bucket : 0);
}

/* Whether the distribution of turnarounds is known. */
static __always_inline bool knows_turnarounds(void)
{
	__u32 only = 0;
	struct live_turnarounds *known = bpf_map_lookup_elem(&turnarounds, &only);

	return known && known->valid;
}

struct bounds {
	__u64 from, last;
	__u32 packets;
	__u8 masked, flags;
};

/* Between when the packets of an arrival's poll came into the ring. */
static __always_inline bool bounds_of(struct napi_state *napi, struct arrival *arrival, struct bounds *bounds)
{
	struct poll *poll = &napi->polls[arrival->poll & (POLLS_MAX - 1)];

	if (poll->number == arrival->poll && poll->packets) {
		bounds->from = poll->from;
		bounds->last = poll->last;
		bounds->packets = poll->packets;
		bounds->masked = poll->masked;
		bounds->flags = poll->flags;
	} else if (napi->number == arrival->poll && napi->window == (__u32)gate.window) {
		/* Answered before its poll has ended. */
		bounds->from = napi->masked ? napi->drained : napi->first - napi->waited;
		bounds->last = napi->last;
		bounds->packets = napi->packets;
		bounds->masked = napi->masked;
		bounds->flags = napi->flags;
	} else {
		return false;
	}
	return bounds->from != 0;
}

/* An arrival was answered at @now by the thread of this slot. */
__noinline int answer(struct arrival *arrival, __u64 now, __u32 worker, __u32 pipelined)
{
	__u64 uniform, best, residence, wakeup = 0, service = 0;
	struct live_counts *all = counted();
	struct live_spans *spans_here;
	struct bounds bounds = {};
	__u32 only = 0, weight = 1, bucket, low, high, slot;
	struct napi_state *napi;
	struct live_part *part;
	bool known = false;

	spans_here = bpf_map_lookup_elem(&spans, &only);
	if (!spans_here || !all || !arrival)
		return 0;
	if (pipelined && gate.request_bytes) {
		weight = (arrival->bytes + gate.request_bytes / 2) / gate.request_bytes;
		weight = weight < 1 ? 1 : weight > WEIGHT_MAX ? WEIGHT_MAX : weight;
	}
	all->answered++;
	all->requests += weight;
	residence = now - arrival->probed;
	add(spans_here->residence, residence, weight);
	add(spans_here->bytes, arrival->bytes, 1);
	if (arrival->read >= arrival->probed && arrival->read <= now) {
		wakeup = arrival->read - arrival->probed;
		service = now - arrival->read;
		add(spans_here->wakeup, wakeup, weight);
		add(spans_here->service, service, weight);
	}

	best = arrival->probed;
	napi = napi_at(arrival->napi);
	if (!napi || !napi->polls_seen) {
		all->without_napi++;
	} else if (!bounds_of(napi, arrival, &bounds)) {
		all->without_poll++;
	} else {
		known = true;
		uniform = bounds.from;
		if (bounds.masked || arrival->at || bounds.flags & SPREAD)
			uniform += drawn(bounds.last > bounds.from ? bounds.last - bounds.from : 0, arrival->at,
					 bounds.packets);
		if (uniform > arrival->probed)
			uniform = arrival->probed;
		best = uniform;
		add(spans_here->uniform, now - uniform, weight);
		all->threaded += bounds.flags & THREADED;
		if (!bounds.masked) {
			all->unmasked++;
			if (arrival->floor && arrival->probed > arrival->floor)
				add(spans_here->turnaround, arrival->probed - arrival->floor, 1);
		} else {
			all->masked++;
			if (arrival->floor && arrival->probed > arrival->floor && knows_turnarounds()) {
				low = bounds.from > arrival->floor ? share_below(bounds.from - arrival->floor) : 0;
				high = share_below(arrival->probed - arrival->floor);
				if (high > low + CONDITIONAL_MIN) {
					best = arrival->floor + turnaround_at(low + (__u32)drawn(high - low, 0, 1));
					if (best < bounds.from)
						best = bounds.from;
					if (best > arrival->probed)
						best = arrival->probed;
					all->conditioned++;
				}
			}
		}
		add(spans_here->conditional, now - best, weight);
	}
	if (arrival->stamped) {
		best = arrival->probed - (__u64)arrival->late * 1000;
		all->stamped++;
		add(spans_here->stamped, now - best, weight);
	}
	if (known || arrival->stamped)
		add(spans_here->ring, arrival->probed - best, weight);

	bucket = bounded(bucket_of(now - best) >> 1, LIVE_PART_BUCKETS);
	part = part_at(LIVE_NAPIS_MAX + bounded(worker, LIVE_WORKERS_MAX));
	if (part) {
		part->requests += weight;
		part->ring_ns += arrival->probed - best;
		part->wakeup_ns += wakeup;
		part->service_ns += service;
		part->total[bounded(bucket, LIVE_PART_BUCKETS)] += weight;
	}
	slot = arrival->napi;
	part = known && slot < LIVE_NAPIS_MAX ? part_at(slot) : 0;
	if (part) {
		part->requests += weight;
		part->ring_ns += arrival->probed - best;
		part->wakeup_ns += wakeup;
		part->service_ns += service;
		part->total[bounded(bucket, LIVE_PART_BUCKETS)] += weight;
	}
	return 0;
}

/* What was read before the last send and had no answer of its own was answered by that. */
__noinline int settle(struct socket_state *state)
{
	struct live_counts *all = counted();
	struct arrival *arrival;
	int i;

	if (!state || !all)
		return 0;
	for (i = 0; i < ARRIVALS_MAX && state->head != state->read; i++) {
		arrival = &state->arrivals[state->head & (ARRIVALS_MAX - 1)];
		if (!arrival->read || state->last_send < arrival->read)
			break;
		answer(arrival, state->last_send, state->worker, state->pipelined);
		all->batched++;
		state->head++;
	}
	return 0;
}

/* The state of a socket in this window; 0 if it has none. */
static __always_inline struct socket_state *state_of(struct sock *sk)
{
	struct socket_state *state = bpf_sk_storage_get(&sockets, sk, 0, 0);

	return state && state->window == (__u32)gate.window ? state : 0;
}

/* The same; a new one where there is none. */
static __always_inline struct socket_state *state_for(struct sock *sk)
{
	struct socket_state *state = bpf_sk_storage_get(&sockets, sk, 0, 0);

	if (!state) {
		if (gate.sockets >= config.sockets_max)
			return 0;
		state = bpf_sk_storage_get(&sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (!state)
			return 0;
		__sync_fetch_and_add(&gate.sockets, 1);
	}
	if (state->window != (__u32)gate.window) {
		state->window = gate.window;
		state->head = state->read = state->tail = 0;
		state->last_send = 0;
		state->switches = 0;
		state->write_seq = 0;
		state->partial = state->pipelined = state->answered = 0;
	}
	return state;
}

/*
 * How long the thread of a NAPI has waited for a CPU since its last poll. What
 * woke it came when that began. If it had not slept, what it polls now came at
 * some moment meanwhile. If it has waited more than once, only the last time
 * counts, and how much that was of all is not known.
 */
static __always_inline void thread_waited(struct napi_state *napi, struct task_struct *thread)
{
	__u64 waited = thread->sched_info.run_delay - napi->run_delay;

	if (waited > RUN_DELAY_MAX_NS)
		return;
	if (thread->sched_info.pcount - napi->turns > 1)
		waited = drawn(waited, 0, 1);
	if (thread->nvcsw == napi->sleeps)
		napi->flags |= SPREAD;
	napi->waited = waited;
}

struct segment {
	__u32 seq, end_seq;
	__u8 flags;
};

/* What TCP noted of a segment, by one read: each costs as much as the rest of a program. */
static __always_inline bool segment_of(struct sk_buff *skb, struct segment *segment)
{
	__u8 noted[SEGMENT_BYTES];
	struct tcp_skb_cb *cb = 0;

	if (bpf_probe_read_kernel(noted, sizeof(noted), &skb->cb[0]))
		return false;
	segment->seq = *(__u32 *)&noted[bpf_core_field_offset(cb->seq) & (SEGMENT_BYTES - 4)];
	segment->end_seq = *(__u32 *)&noted[bpf_core_field_offset(cb->end_seq) & (SEGMENT_BYTES - 4)];
	segment->flags = noted[tcp_flags_offset() & (SEGMENT_BYTES - 1)];
	return true;
}

/*
 * How much longer than the fastest of its connection a segment was on its way,
 * in microseconds, by the client's stamp (Linux 6.7, the route feature
 * tcp_usec_ts); false where that is not known. A connection whose stamps have
 * another unit is asked once.
 */
static __always_inline bool late_by(struct socket_state *state, struct sk_buff *skb, __u64 now, __u32 *late)
{
	__u32 option[2], stamp, distance, us = now / 1000;
	__u64 since;

	if (state->stamps == STAMPS_OTHER)
		return false;
	if (bpf_probe_read_kernel(option, sizeof(option), skb->data + TCP_HEADER_BYTES))
		return false;
	if (option[0] != bpf_htonl(ALIGNED_TIMESTAMP)) {
		state->stamps = STAMPS_OTHER;
		return false;
	}
	stamp = bpf_ntohl(option[1]);
	distance = us - stamp;
	if (state->stamps == STAMPS_UNKNOWN) {
		if (!state->stamped_at) {
			state->stamped_at = now;
			state->stamp = stamp;
			return false;
		}
		since = now - state->stamped_at;
		if (since < STAMP_UNIT_NS)
			return false;
		since /= 1000;
		if (stamp - state->stamp < since / 2 || stamp - state->stamp > since * 2) {
			state->stamps = STAMPS_OTHER;
			return false;
		}
		state->stamps = STAMPS_MICROSECONDS;
		state->stamp_least = distance;
	} else {
		state->stamp_least += (now - state->stamped_at) / 1000 >> STAMP_DRIFT_SHIFT;
	}
	state->stamped_at = now;
	if ((__s32)(distance - state->stamp_least) < 0)
		state->stamp_least = distance;
	*late = distance - state->stamp_least;
	if (state->stamps_seen < STAMPS_MIN) {
		state->stamps_seen++;
		return false;
	}
	return *late < STAMP_LATE_MAX_US;
}

/* The first packet of a softirq has come to TCP. */
static __always_inline void took_to_receive(__u64 now)
{
	struct cpu_state *cpu = this_cpu();
	struct live_spans *here;
	__u32 only = 0;

	here = bpf_map_lookup_elem(&spans, &only);
	if (!cpu || !here || !cpu->softirq)
		return;
	add(here->receive, now - cpu->softirq, 1);
	cpu->softirq = 0;
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(live_arrives, struct sock *sk, struct sk_buff *skb)
{
	struct socket_state *state;
	struct napi_state *napi;
	struct task_struct *task;
	struct arrival *arrival;
	struct live_counts *all;
	struct segment sequence;
	__u32 id, poll = 0;
	__u16 at = 0;
	__u8 flags;
	__u64 now;

	if (!ours(sk))
		return 0;
	if (!segment_of(skb, &sequence) || sequence.end_seq == sequence.seq)
		return 0;
	flags = sequence.flags;
	if (flags & TCP_FIN)
		sequence.end_seq--;
	if (sequence.end_seq == sequence.seq)
		return 0;
	all = counted();
	if (!all)
		return 0;
	state = state_for(sk);
	if (!state) {
		all->unmeasured++;
		return 0;
	}
	now = bpf_ktime_get_ns();

	id = skb->napi_id;
	if (!id) {
		state->napi_id = 0;
		state->napi = NO_SLOT;
	} else if (id != state->napi_id) {
		state->napi_id = id;
		state->napi = slot_of(id, 0);
	}
	napi = napi_at(state->napi);
	if (napi && sk->sk_lock.owned) {
		/* It came with an earlier poll, and has waited for the owner of the socket. */
		poll = napi->packets ? napi->number : napi->number - 1;
		at = napi->packets ? napi->packets - 1 : 0;
	} else if (napi) {
		if (!napi->packets) {
			task = bpf_get_current_task_btf();
			napi->first = now;
			napi->waited = 0;
			napi->cpu = bpf_get_smp_processor_id();
			napi->flags &= ~SPREAD;
			if (napi->flags & THREADED && task->flags & PF_KTHREAD)
				thread_waited(napi, task);
		}
		napi->last = now;
		poll = napi->number;
		at = napi->packets++;
	}

	if (gate.looks_at_stack && napi && !at && !napi->masked && !(napi->flags & THREADED) && !sk->sk_lock.owned)
		took_to_receive(now);
	/* To attach the programs has stopped this CPU for a moment: what came then is not typical. */
	if (!gate.opens || now < gate.opens)
		return 0;
	all->segments++;
	if (state->partial) {
		/* More of the same write. */
		arrival = &state->arrivals[(state->tail - 1) & (ARRIVALS_MAX - 1)];
		arrival->bytes += sequence.end_seq - arrival->end_seq;
		arrival->end_seq = sequence.end_seq;
		if (flags & TCP_PSH)
			state->partial = 0;
		return 0;
	}
	if (state->head != state->read)
		settle(state);
	if (state->head != state->tail)
		state->pipelined = 1;
	if (state->tail - state->head >= ARRIVALS_MAX) {
		all->overflown++;
		arrival = &state->arrivals[(state->tail - 1) & (ARRIVALS_MAX - 1)];
		arrival->bytes += sequence.end_seq - arrival->end_seq;
		arrival->end_seq = sequence.end_seq;
		return 0;
	}
	all->arrivals++;
	arrival = &state->arrivals[state->tail & (ARRIVALS_MAX - 1)];
	arrival->late = 0;
	arrival->stamped = late_by(state, skb, now, &arrival->late);
	arrival->probed = now;
	arrival->read = 0;
	arrival->end_seq = sequence.end_seq;
	arrival->bytes = sequence.end_seq - sequence.seq;
	arrival->napi = state->napi;
	arrival->poll = poll;
	arrival->at = at;
	/* With nothing under way it follows our last answer. */
	arrival->floor = state->head == state->tail ? state->last_send : 0;
	state->tail++;
	if (!(flags & TCP_PSH))
		state->partial = 1;
	return 0;
}

SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(live_read, struct sock *sk)
{
	struct socket_state *state;
	struct arrival *arrival;
	struct tcp_sock *tcp;
	__u32 copied;
	__u64 now = 0;
	int i;

	if (!ours(sk))
		return 0;
	state = state_of(sk);
	if (!state || state->head == state->tail)
		return 0;
	if (state->head != state->read)
		settle(state);
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return 0;
	copied = tcp->copied_seq;
	for (i = 0; i < ARRIVALS_MAX && state->read != state->tail; i++) {
		arrival = &state->arrivals[state->read & (ARRIVALS_MAX - 1)];
		if ((__s32)(copied - arrival->end_seq) < 0)
			break;
		if (!now)
			now = bpf_ktime_get_ns();
		arrival->read = now;
		state->read++;
	}
	return 0;
}

/*
 * Whether a send that no request waits for goes on with the last answer: the
 * thread has not slept since, or the socket has no room.
 */
static __always_inline bool continues(struct sock *sk, struct socket_state *state, __u32 thread, __u64 switches)
{
	struct tcp_sock *tcp;

	if (!state->answered)
		return false;
	if (state->thread == thread && state->switches == switches)
		return true;
	tcp = bpf_skc_to_tcp_sock(sk);
	return tcp && tcp->write_seq - tcp->snd_una >= UNACKNOWLEDGED_BYTES;
}

static __always_inline int sent(struct sock *sk)
{
	struct task_struct *task;
	struct socket_state *state;
	struct live_counts *all;
	__u32 thread;
	__u64 now;

	if (!ours(sk))
		return 0;
	state = state_of(sk);
	if (!state)
		return 0;
	all = counted();
	if (!all)
		return 0;
	now = bpf_ktime_get_ns();
	if (state->head == state->tail && !state->answered) {
		/* It answers what came before the window. */
		state->last_send = now;
		return 0;
	}
	all->sends++;
	task = bpf_get_current_task_btf();
	thread = task->pid;
	if (state->head != state->read) {
		if (thread != state->thread) {
			state->thread = thread;
			state->worker = slot_of(thread, 1);
		}
		state->answered = 1;
		answer(&state->arrivals[state->head & (ARRIVALS_MAX - 1)], now, state->worker, state->pipelined);
		state->head++;
	} else if (continues(sk, state, thread, task->nvcsw)) {
		all->continued++;
	} else {
		all->unsolicited++;
	}
	state->last_send = now;
	state->switches = task->nvcsw;
	if (gate.looks_at_stack) {
		struct cpu_state *cpu = this_cpu();

		if (cpu) {
			cpu->sent = now;
			cpu->socket = (__u64)sk;
		}
	}
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(live_softirq, unsigned int vec)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu)
		cpu->softirq = vec == NET_RX_SOFTIRQ ? bpf_ktime_get_ns() : 0;
	return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(live_transmits, struct sk_buff *skb, struct net_device *dev)
{
	struct cpu_state *cpu = this_cpu();
	struct live_spans *here;
	__u32 only = 0;

	if (!cpu || !cpu->socket || cpu->socket != (__u64)skb->sk)
		return 0;
	here = bpf_map_lookup_elem(&spans, &only);
	if (here)
		add(here->transmit, bpf_ktime_get_ns() - cpu->sent, 1);
	cpu->socket = 0;
	return 0;
}

SEC("?tp_btf/tcp_sendmsg_locked")
int BPF_PROG(live_sends, struct sock *sk)
{
	return sent(sk);
}

/* After the bytes were handed on, and often after they were transmitted. */
SEC("?tp_btf/sock_send_length")
int BPF_PROG(live_has_sent, struct sock *sk, int ret)
{
	if (ret <= 0 || sk->sk_protocol != IPPROTO_TCP)
		return 0;
	return sent(sk);
}

SEC("tp_btf/napi_poll")
int BPF_PROG(live_polls, struct napi_struct *polled, int work, int budget)
{
	struct live_key key = {
		.id = polled->napi_id,
	};
	struct task_struct *task, *thread;
	struct napi_state *napi;
	struct live_part *part;
	struct poll *poll;
	__u32 *slot, by;
	__u64 now;

	if (!budget || !key.id)
		return 0;
	slot = bpf_map_lookup_elem(&slots, &key);
	if (!slot)
		return 0;
	napi = napi_at(*slot);
	if (!napi)
		return 0;
	now = bpf_ktime_get_ns();
	napi->polls_seen = 1;
	task = bpf_get_current_task_btf();
	thread = polled->thread;
	napi->flags = thread ? napi->flags | THREADED : 0;
	if (thread && task == thread)
		by = LIVE_BY_KTHREAD;
	else if (polls_by_itself(task, ctx))
		by = LIVE_BY_APPLICATION;
	else if (napi->masked)
		by = LIVE_BY_TIMER;
	else
		by = LIVE_BY_INTERRUPT;
	part = part_at(*slot);
	if (part && by < LIVE_POLLERS) {
		part->polls[by]++;
		part->packets[by] += work > 0 ? work : 0;
	}

	if (napi->packets) {
		if (napi->cpu != bpf_get_smp_processor_id()) {
			struct live_counts *all = counted();

			if (all)
				all->steered += napi->packets;
		}
		poll = &napi->polls[napi->number & (POLLS_MAX - 1)];
		poll->number = napi->number;
		poll->last = napi->last;
		poll->packets = napi->packets;
		poll->masked = napi->masked;
		poll->flags = napi->flags;
		if (napi->window != (__u32)gate.window)
			poll->from = 0;
		else if (napi->masked)
			poll->from = napi->drained;
		else
			poll->from = napi->first - napi->waited;
		napi->number++;
	}
	if (thread) {
		napi->run_delay = thread->sched_info.run_delay;
		napi->turns = thread->sched_info.pcount;
		napi->sleeps = thread->nvcsw;
	}
	napi->window = gate.window;
	napi->packets = 0;
	napi->first = 0;
	if (work < budget) {
		napi->drained = now;
		napi->masked = napi_timer_runs(polled) ||
			       (by == LIVE_BY_APPLICATION && polled->state & NAPIF_STATE_IN_BUSY_POLL);
	} else {
		napi->masked = 1;
	}
	return 0;
}

/* What waits for an answer when a window has ended. */
SEC("iter/bpf_sk_storage_map")
int live_waits(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct socket_state *state = ctx->value;
	struct live_waiting *found;
	struct arrival *arrival;
	struct tcp_sock *tcp;
	__u32 only = 0, i;
	bool of_window;

	if (!sk || !state)
		return 0;
	found = bpf_map_lookup_elem(&waiting, &only);
	if (!found)
		return 0;
	found->sockets++;
	if (state->head == state->tail)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return 0;
	of_window = state->window == (__u32)gate.window;
	if (of_window)
		state->write_seq = tcp->write_seq;
	else if (state->write_seq != tcp->write_seq)
		return 0; /* Something was sent between two windows. */
	/* A buffer is read at constant places only: every place is looked at. */
#pragma unroll
	for (i = 0; i < ARRIVALS_MAX; i++) {
		if (((i - state->head) & (ARRIVALS_MAX - 1)) >= state->tail - state->head)
			continue;
		arrival = &state->arrivals[i];
		/* What was read before the last send was answered by it. */
		if (arrival->read && state->last_send >= arrival->read)
			continue;
		if (arrival->probed > found->now)
			continue;
		found->requests++;
		if (!found->oldest || arrival->probed < found->oldest)
			found->oldest = arrival->probed;
		if (of_window)
			add(found->ages, found->now - arrival->probed, 1);
	}
	return 0;
}
