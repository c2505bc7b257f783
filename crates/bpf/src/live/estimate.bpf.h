/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Estimates when packets arrived in the receive ring. No program can observe that: only the polls
 * before and after an arrival are known (interval-censored data). Estimator U draws uniformly from
 * the interval between the polls. C draws from the distribution of turnarounds (from an answer to
 * the client's next request), conditioned on the interval. T uses the client's timestamp. Each
 * answered exchange is counted once per estimator.
 */
#ifndef __LIVE_ESTIMATE_H__
#define __LIVE_ESTIMATE_H__

#include "state.bpf.h"

/*
 * The number of bytes is recorded for one in this many exchanges. The value is
 * a power of two.
 */
#define BYTES_EVERY 8

/* The maximum wait of a NAPI thread that is attributed to a busy CPU, in
 * nanoseconds. */
#define RUN_DELAY_MAX_NS 50000000

/* Estimator C is used only if the interval contains at least this share of the distribution of
 * turnarounds, in parts of LIVE_WHOLE. */
#define CONDITIONAL_MIN (LIVE_WHOLE / 10000)

/*
 * The layout of the timestamps option as Linux and others send it, padded and
 * without other options: net/ipv4/tcp_input.c tcp_parse_aligned_timestamp().
 */
#define ALIGNED_TIMESTAMP 0x0101080a
#define TCP_HEADER_BYTES 20

/*
 * The minimum time between a connection's first timestamp and the timestamp that is compared with
 * it to determine their unit.
 */
#define STAMP_UNIT_NS 10000000

/*
 * The number of arrivals after which the minimum clock offset is taken as the true offset.
 */
#define STAMPS_MIN 16

/* The maximum plausible lateness: a greater one comes from a retransmission or
 * a different clock. */
#define STAMP_LATE_MAX_US 1000000

/* Two NTP-disciplined clocks drift apart by less than 1 / 2^17. */
#define STAMP_DRIFT_SHIFT 17

/* Returns span * (at + u) / of, with u drawn uniformly from [0, 1). */
static __always_inline __u64 drawn(__u64 span, __u32 at, __u32 of)
{
	__u64 u = bpf_get_prandom_u32() >> 16;

	return of ? span * (((__u64)at << 16) + u) / of >> 16 : 0;
}

/*
 * Returns the share of turnarounds that are shorter than this span, in parts of
 * LIVE_WHOLE.
 */
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

/* Returns the turnaround at this quantile of the distribution. */
__noinline __u64 turnaround_at(__u32 share)
{
	__u32 only = 0, bucket = 0, step, next;
	struct live_turnarounds *known = bpf_map_lookup_elem(&turnarounds, &only);
	__u64 in_bucket;

	if (!known)
		return 0;
	for (step = 512; step; step >>= 1) {
		next = bounded(bucket + step, LIVE_BUCKETS);
		if (next && known->below[next] <= share)
			bucket = next;
	}
	bucket = bounded(bucket, LIVE_BUCKETS);
	in_bucket = known->below[bucket + 1] - known->below[bucket];
	return lower_edge(bucket) +
	       (in_bucket ? width_of(bucket) * (share - known->below[bucket]) / in_bucket : 0);
}

/* Returns whether user space has set the distribution of turnarounds. */
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

/* The possible states of knowledge about the poll that delivered an exchange. */
#define POLL_FORGOTTEN 0
#define POLL_AT_OPENING 1	/* the first poll of its NAPI in the window: when the ring was last empty is unknown */
#define POLL_KNOWN 2
#define POLL_OF_NONE 3	/* no poll of the exchange's NAPI was observed */

/*
 * Determines the interval during which the packets of the poll that delivered
 * an exchange entered the ring. Returns POLL_*.
 */
static __always_inline int bounds_of(struct napi_state *napi, struct exchange *exchange, struct bounds *bounds)
{
	struct poll *poll;

	if (exchange->at_interrupt) {
		/* Use the copy in the exchange instead of the poll record, whose cache line another
		 * CPU has just written. */
		bounds->from = exchange->probed;
		bounds->last = exchange->probed;
		bounds->flags = exchange->by_ksoftirqd ? BY_KSOFTIRQD : 0;
		return POLL_KNOWN;
	}
	poll = &napi->polls[exchange->poll & (POLLS_MAX - 1)];
	if (poll->number == exchange->poll && poll->packets) {
		bounds->from = poll->from;
		bounds->last = poll->last;
		bounds->packets = poll->packets;
		bounds->masked = poll->masked;
		bounds->flags = poll->flags;
	} else if (!napi->polls_seen) {
		return POLL_OF_NONE;
	} else if (napi->number == exchange->poll && napi->window == (__u32)gate.window) {
		/* The exchange was answered before its poll ended, so use the
		 * state of the running poll. */
		bounds->from = napi->masked ? napi->drained : napi->first - napi->waited;
		bounds->last = napi->last;
		bounds->packets = napi->packets;
		bounds->masked = napi->masked;
		bounds->flags = napi->flags;
	} else {
		return POLL_FORGOTTEN;
	}
	return bounds->from ? POLL_KNOWN : POLL_AT_OPENING;
}

/*
 * A flag in the argument `protocol`: the wake-up was already counted when the
 * datagram was read.
 */
#define WAKEUP_COUNTED 0x100

/* Records that the thread with this slot answered an exchange at @now. */
__noinline int answer(struct exchange *exchange, __u64 now, __u32 worker, __u32 protocol)
{
	bool wakeup_counted = protocol & WAKEUP_COUNTED;
	__u64 uniform = 0, best, residence, wakeup = 0, service = 0;
	struct live_counts *all = counted();
	struct live_spans *spans_here;
	struct bounds bounds = {};
	__u32 only = 0, weight = 1, bucket, at, low, high, slot;
	struct napi_state *napi;
	struct live_part *part;
	bool known = false, forgotten = false, before;
	int poll = POLL_OF_NONE;

	spans_here = bpf_map_lookup_elem(&spans, &only);
	if (!spans_here || !all || !exchange)
		return 0;
	/* Answers before the window opens do not count, but answers while it is being closed do. */
	if (gate.opens && now < gate.opens)
		return 0;
	protocol &= ~WAKEUP_COUNTED;
	if (protocol > LIVE_TLS && exchange->requests > 1)
		weight = exchange->requests;
	all->answered++;
	all->requests += weight;
	all->protocols[bounded(protocol, LIVE_PROTOCOLS)] += weight;
	before = exchange->probed < gate.opened;
	if (before)
		all->carried++;
	if (exchange->untimed) {
		all->untimed++;
		return 0;
	}
	residence = now - exchange->probed;
	/*
	 * The estimates often coincide, so compute the bucket only once per
	 * distinct value.
	 */
	at = bucket_of(residence);
	add_at(spans_here->residence, at, weight);
	if (exchange->last == exchange->probed)
		add_at(spans_here->since_last, at, weight);
	else
		add(spans_here->since_last, now - exchange->last, weight);
	if (before)
		add(spans_here->entered, gate.opened - exchange->probed, weight);
	if (all->answered % BYTES_EVERY == 1)
		add(spans_here->bytes, exchange->bytes, 1);
	if (exchange->read >= exchange->probed && exchange->read <= now) {
		wakeup = exchange->read - exchange->probed;
		service = now - exchange->read;
		if (!wakeup_counted)
			add(spans_here->wakeup, wakeup, weight);
		add(spans_here->service, service, weight);
	}

	best = exchange->probed;
	napi = napi_at(exchange->napi);
	if (before) {
		/* Approximate: in rare cases, the poll record has been overwritten in the meantime. */
		forgotten = true;
	} else if (exchange->unseen) {
		all->unseen++;
		forgotten = true;
	} else if (!napi || (poll = bounds_of(napi, exchange, &bounds)) == POLL_OF_NONE) {
		all->without_napi++;
	} else if (poll != POLL_KNOWN) {
		if (poll == POLL_FORGOTTEN)
			all->without_poll++;
		else
			all->at_opening++;
		forgotten = true;
	} else {
		known = true;
		uniform = bounds.from;
		if (bounds.masked || exchange->at || bounds.flags & SPREAD)
			uniform += drawn(bounds.last > bounds.from ? bounds.last - bounds.from : 0, exchange->at,
					 bounds.packets);
		if (uniform > exchange->probed)
			uniform = exchange->probed;
		best = uniform;
		if (uniform != exchange->probed)
			at = bucket_of(now - uniform);
		add_at(spans_here->uniform, at, weight);
		if (bounds.flags & BY_KSOFTIRQD)
			all->by_ksoftirqd++;
		if (bounds.flags & THREADED) {
			all->threaded++;
			all->woken += bounds.flags & WOKEN ? 1 : 0;
		}
		if (!bounds.masked) {
			all->unmasked++;
			if (exchange->floor && exchange->probed > exchange->floor)
				add(spans_here->turnaround, exchange->probed - exchange->floor, 1);
		} else {
			all->masked++;
			if (exchange->floor && exchange->probed > exchange->floor && knows_turnarounds()) {
				low = bounds.from > exchange->floor ? share_below(bounds.from - exchange->floor) : 0;
				high = share_below(exchange->probed - exchange->floor);
				if (high > low + CONDITIONAL_MIN) {
					best = exchange->floor + turnaround_at(low + (__u32)drawn(high - low, 0, 1));
					if (best < bounds.from)
						best = bounds.from;
					if (best > exchange->probed)
						best = exchange->probed;
					all->conditioned++;
				}
			}
		}
		if (best != uniform)
			at = bucket_of(now - best);
		add_at(spans_here->conditional, at, weight);
	}
	if (forgotten) {
		/*
		 * The wait in the ring is unknown and counts as zero. Dropping such exchanges would
		 * bias the tail of the distribution, because they are often the slowest.
		 */
		add_at(spans_here->uniform, at, weight);
		add_at(spans_here->conditional, at, weight);
	}
	if (exchange->stamped) {
		best = exchange->probed - (__u64)exchange->late * 1000;
		all->stamped++;
		at = bucket_of(now - best);
		add_at(spans_here->stamped, at, weight);
	}
	if (known || exchange->stamped)
		add(spans_here->ring, exchange->probed - best, weight);

	bucket = bounded(at >> 1, LIVE_PART_BUCKETS);
	part = part_at(LIVE_NAPIS_MAX + bounded(worker, LIVE_WORKERS_MAX));
	if (part) {
		part->requests += weight;
		part->ring_ns += weight * (exchange->probed - best);
		part->wakeup_ns += weight * wakeup;
		part->service_ns += weight * service;
		part->total[bounded(bucket, LIVE_PART_BUCKETS)] += weight;
	}
	slot = exchange->napi;
	part = known && slot < LIVE_NAPIS_MAX ? part_at(slot) : 0;
	if (part) {
		part->requests += weight;
		part->ring_ns += weight * (exchange->probed - best);
		part->wakeup_ns += weight * wakeup;
		part->service_ns += weight * service;
		part->total[bounded(bucket, LIVE_PART_BUCKETS)] += weight;
	}
	return 0;
}

/*
 * Counts exchanges that were read before the last send and had no separate
 * answer: that send answered them, too.
 */
__noinline int settle(struct socket_state *state)
{
	struct live_counts *all = counted();
	struct exchange *exchange;
	int i;

	if (!state || !all)
		return 0;
	for (i = 0; i < EXCHANGES_MAX && state->head != state->read; i++) {
		exchange = exchange_at(state, state->head);
		if (!exchange->read || state->last_send < exchange->read)
			break;
		answer(exchange, state->last_send, state->worker, state->protocol);
		all->batched++;
		state->head++;
	}
	return 0;
}

/*
 * Polls that no program observed may have emptied the ring after the time in `drained`. Each such
 * poll restarted the NAPI's timer. So the timer's expiry time shows when the last of these polls
 * ran, until the current poll restarts the timer. If the timer expires later than any poll could
 * have set it, it was armed to suspend interrupts.
 */
static __always_inline void was_drained_unseen(struct napi_state *napi, __u64 now)
{
	__u64 expires, drained;

	if (!napi->expires || bpf_probe_read_kernel(&expires, sizeof(expires), (void *)napi->expires))
		return;
	drained = expires - napi->timeout;
	if (drained <= napi->drained || drained >= now)
		return;
	if (napi->suspended && expires >= napi->drained + napi->suspended)
		return;
	napi->drained = drained;
}

/*
 * Determines how long the NAPI's thread has waited for a CPU since its last
 * poll. If the thread's wake-up was observed, the packets arrived at that time.
 * If the thread has not slept, the packets that it polls now arrived at some
 * time since its last poll. If the thread waited several times, only the last
 * wait matters, and the share of that wait in the total is unknown.
 */
static __always_inline void thread_waited(struct napi_state *napi, struct task_struct *thread, __u64 now)
{
	__u64 waited = thread->sched_info.run_delay - napi->run_delay;

	if (napi->woken && now - napi->woken < RUN_DELAY_MAX_NS) {
		napi->waited = now - napi->woken;
		napi->flags |= WOKEN;
		return;
	}
	if (waited > RUN_DELAY_MAX_NS)
		return;
	if (thread->sched_info.pcount - napi->turns > 1)
		waited = drawn(waited, 0, 1);
	if (thread->nvcsw == napi->sleeps)
		napi->flags |= SPREAD;
	napi->waited = waited;
}

/*
 * Determines how much longer a segment was in transit than the fastest segment
 * of its connection, in microseconds, from the client's timestamp (Linux 6.7,
 * the route feature tcp_usec_ts). Returns false if that is unknown.
 */
static __always_inline bool stamped_late(struct socket_state *state, __u32 stamp, __u64 now, __u32 *late)
{
	__u32 distance = (__u32)(now / 1000) - stamp;
	__u64 since;

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

/*
 * Like stamped_late(), for an arriving segment whose header is in @skb. Skips
 * connections whose timestamps are not in microseconds.
 */
static __always_inline bool late_by(struct socket_state *state, struct sk_buff *skb, __u64 now, __u32 *late)
{
	struct in6_addr *option;

	if (state->stamps == STAMPS_OTHER)
		return false;
	option = sixteen_bytes(skb->data + TCP_HEADER_BYTES);
	if (option->in6_u.u6_addr32[0] != bpf_htonl(ALIGNED_TIMESTAMP)) {
		state->stamps = STAMPS_OTHER;
		return false;
	}
	return stamped_late(state, bpf_ntohl(option->in6_u.u6_addr32[1]), now, late);
}

#endif
