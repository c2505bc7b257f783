// SPDX-License-Identifier: GPL-2.0
/*
 * Measures how long the requests of a service take, from the NIC's ring to the
 * answer, and where that time is spent.
 *
 * The unit is the exchange: the data that a client sends until the server
 * answers. A change of direction ends the exchange, however the data was
 * segmented.
 *
 * The three programs for sockets run under the socket's lock, so the socket's
 * state needs no other lock. A NAPI is polled on only one CPU at a time. Counts
 * are per CPU; if a softirq interrupts an increment, one count may be lost,
 * about once in a million.
 *
 * No map or program outlives the process that loaded it, and nothing runs
 * between two windows if the meter detaches the programs; else they only count.
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
#include "state.bpf.h"
#include "protocol.bpf.h"
#include "estimate.bpf.h"
#include "datagram.bpf.h"

/*
 * The number of unacknowledged bytes of an answer from which the sender is assumed to wait for
 * buffer space, so that the next send continues the answer.
 */
#define UNACKNOWLEDGED_BYTES 16384

/* include/linux/interrupt.h */
#define NET_RX_SOFTIRQ 3

/* A flag of sends (include/linux/socket.h): the sender has more data. */
#define MSG_MORE 0x8000

#define TCP_FIN 1

/* The offset of the byte whose upper half is the header length in words (include/uapi/linux/tcp.h). */
#define TCP_OFFSET_AT 12

char LICENSE[] SEC("license") = "GPL";

struct segment {
	__u32 seq, end_seq;
	__u8 flags;
};

/*
 * Reads TCP's control block of a segment in place. The flags have two bytes
 * since Linux 6.18, and one byte in kernels before accurate ECN: libbpf adjusts
 * the load to the size of the field.
 */
static __always_inline void segment_of(struct sk_buff *skb, struct segment *segment)
{
	struct tcp_skb_cb *cb = (struct tcp_skb_cb *)skb->cb;

	segment->seq = cb->seq;
	segment->end_seq = cb->end_seq;
	segment->flags = cb->tcp_flags;
}

/* Records how long the first packet of a softirq took to reach TCP. */
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

/*
 * Recognises a softirq thread by the start of its name: kernel/softirq.c `softirq_threads`.
 */
static __always_inline bool is_ksoftirqd(struct task_struct *task)
{
	return task->comm[0] == 'k' && task->comm[1] == 's' && task->comm[2] == 'o' && task->comm[3] == 'f' &&
	       task->comm[4] == 't' && task->comm[5] == 'i';
}

/* The NAPI poll that delivered an arrival, and the arrival's position in that
 * poll. */
struct place {
	__u32 poll;
	__u16 at;
	__u8 at_interrupt, by_ksoftirqd;
};

/* Determines the position of a packet in the running poll of its NAPI. */
static __always_inline void placed_by(struct napi_state *napi, __u64 now, struct place *place)
{
	struct task_struct *task;

	if (!napi->packets) {
		task = bpf_get_current_task_btf();
		napi->first = now;
		napi->waited = 0;
		napi->cpu = bpf_get_smp_processor_id();
		napi->flags &= THREADED;
		if (napi->masked)
			was_drained_unseen(napi, now);
		if (task->flags & PF_KTHREAD) {
			if (napi->flags & THREADED)
				thread_waited(napi, task, now);
			else if (is_ksoftirqd(task))
				napi->flags |= BY_KSOFTIRQD;
		}
	}
	napi->last = now;
	place->poll = napi->number;
	place->at = napi->packets++;
	place->at_interrupt = !place->at && !napi->masked && napi->polls_seen && !(napi->flags & THREADED) &&
			      napi->window == (__u32)gate.window;
	place->by_ksoftirqd = !!(napi->flags & BY_KSOFTIRQD);
	if (gate.looks_at_stack && !place->at && !napi->masked && !(napi->flags & THREADED))
		took_to_receive(now);
}

static __always_inline void placed(struct sock *sk, struct sk_buff *skb, struct socket_state *state, __u64 now,
				   struct place *place)
{
	struct napi_state *napi;
	__u32 id = skb->napi_id;

	if (!id) {
		state->napi_id = 0;
		state->napi = NO_SLOT;
	} else if (id != state->napi_id) {
		state->napi_id = id;
		state->napi = slot_of(id, 0);
	}
	napi = napi_at(state->napi);
	if (napi && sk->sk_lock.owned) {
		/*
		 * An earlier poll delivered the packet; it then waited until the socket's owner
		 * released the socket.
		 */
		place->poll = napi->packets ? napi->number : napi->number - 1;
		place->at = napi->packets ? napi->packets - 1 : 0;
	} else if (napi) {
		placed_by(napi, now, place);
	}
}

/*
 * Returns whether the socket has sent data since the exchange began that no
 * program observed. If the hook runs after the send, an answer may not have
 * been recorded yet.
 */
static __always_inline bool was_answered_unseen(struct socket_state *state, struct exchange *exchange,
						struct tcp_sock *tcp)
{
	return tcp->write_seq != exchange->write_seq && state->last_send < exchange->probed;
}

/* Adds a segment to an exchange whose data the application has not read completely. */
static __always_inline void joins(struct socket_state *state, struct exchange *exchange,
				  struct segment *segment, struct look *look, __u64 now)
{
	__u32 requests = exchange->requests + look->requests;

	if (state->read == state->tail) {
		state->read = state->tail - 1;
		exchange->read = 0;
		exchange->touched = 1;
	}
	if (look->requests && state->protocol != LIVE_TLS)
		exchange->requests = requests > 0xffff ? 0xffff : requests;
	exchange->bytes += segment->end_seq - exchange->end_seq;
	exchange->end_seq = segment->end_seq;
	exchange->last = now;
	exchange->incomplete = look->incomplete;
}

/*
 * Kernel: 6.18, net/ipv4/tcp_input.c tcp_rcv_established(), which handles
 * established connections. The segment is not queued yet.
 */
SEC("tp_btf/tcp_probe")
int BPF_PROG(live_arrives, struct sock *sk, struct sk_buff *skb)
{
	struct exchange *exchange;
	struct socket_state *state;
	struct live_counts *all;
	struct segment sequence;
	struct place place = {};
	struct look look = {};
	struct tcp_sock *tcp;
	bool fresh, in_order;
	__u8 flags;
	__u64 now;

	if (!ours(sk))
		return 0;
	segment_of(skb, &sequence);
	if (sequence.end_seq == sequence.seq)
		return 0;
	flags = sequence.flags;
	if (flags & TCP_FIN)
		sequence.end_seq--;
	if (sequence.end_seq == sequence.seq)
		return 0;
	all = counted();
	if (!all)
		return 0;
	tcp = tcp_of(sk);
	state = state_for(sk, tcp, BY_ARRIVAL);
	if (!state) {
		if (is_mptcp(tcp))
			all->mptcp++;
		else
			all->unmeasured++;
		return 0;
	}
	now = bpf_ktime_get_ns();
	placed(sk, skb, state, now, &place);
	in_order = !state->sees || sequence.seq == state->seen_seq;
	/* Skip a retransmitted segment, which has already been counted. */
	if (state->sees && (__s32)(sequence.end_seq - state->seen_seq) <= 0)
		return 0;
	state->seen_seq = sequence.end_seq;
	state->sees = 1;
	/*
	 * Arrivals after the window are not recorded; the next window detects them by means of
	 * TCP's own timestamps.
	 */
	if (!gate.opens)
		return 0;
	if (now >= gate.opens)
		all->segments++;
	if (state->head != state->read)
		settle(state);
	exchange = exchange_at(state, state->tail - 1);
	if (state->head != state->tail && was_answered_unseen(state, exchange, tcp)) {
		if (!config.answers_late) {
			all->answers_unseen++;
			state->head = state->read = state->tail;
		}
	}
	fresh = state->head == state->tail;
	look.from = (sixteen_bytes(skb->data + TCP_OFFSET_AT)->in6_u.u6_addr8[0] >> 4) * 4;
	look.length = sequence.end_seq - sequence.seq;
	look.fresh = fresh;
	look.in_order = in_order;
	looks(state, skb, &look);
	if (!look.counts)
		return 0;
	if (!fresh && (!look.begins || state->protocol == LIVE_OTHER || state->protocol == LIVE_TLS) &&
	    !(config.answers_late && was_answered_unseen(state, exchange, tcp))) {
		all->joined++;
		joins(state, exchange, &sequence, &look, now);
		return 0;
	}
	if (!fresh)
		state->pipelined = 1;
	if (state->tail - state->head >= EXCHANGES_MAX) {
		all->overflown++;
		joins(state, exchange, &sequence, &look, now);
		return 0;
	}
	all->arrivals++;
	/*
	 * If no exchange is outstanding, use the first entry, so that it is
	 * always in the same cache line.
	 */
	if (fresh)
		state->head = state->read = state->tail = 0;
	exchange = exchange_at(state, state->tail);
	exchange->late = 0;
	exchange->stamped = late_by(state, skb, now, &exchange->late);
	exchange->probed = now;
	exchange->last = now;
	exchange->read = 0;
	exchange->unseen = 0;
	exchange->touched = 0;
	/*
	 * Attaching the programs stopped this CPU for a moment, so arrivals before the window opens
	 * are not typical.
	 */
	exchange->untimed = now < gate.opens;
	exchange->incomplete = look.incomplete;
	exchange->requests = look.requests;
	exchange->end_seq = sequence.end_seq;
	exchange->bytes = sequence.end_seq - sequence.seq;
	exchange->write_seq = tcp->write_seq;
	exchange->napi = state->napi;
	exchange->poll = place.poll;
	exchange->at = place.at;
	exchange->at_interrupt = place.at_interrupt;
	exchange->by_ksoftirqd = place.by_ksoftirqd;
	/* If no other request is outstanding, this one cannot have arrived before the last answer. */
	exchange->floor = fresh ? state->last_send : 0;
	state->tail++;
	return 0;
}

/*
 * Handles a read of bytes whose arrival no program observed: they came with the handshake
 * (TCP_DEFER_ACCEPT, TCP Fast Open), or the kernel skipped the program. TCP's record of the last
 * received segment serves as their arrival time; several such segments count as one arrival.
 */
static __always_inline void came_unseen(struct sock *sk, struct tcp_sock *tcp, struct socket_state *state)
{
	struct live_counts *all = counted();
	__u64 came = took_last(tcp);
	struct exchange *exchange;
	struct look look = {};
	struct segment segment = {};
	__u32 copied = tcp->copied_seq;

	/* A FIN occupies a sequence number; skip it. */
	if (!all || sk->sk_shutdown || !gate.opens || came < gate.opens)
		return;
	segment.end_seq = copied;
	if (state->head != state->tail) {
		/* The segment continues an outstanding exchange. */
		joins(state, exchange_at(state, state->tail - 1), &segment, &look, came);
		state->seen_seq = copied;
		state->sees = 1;
		return;
	}
	all->arrivals++;
	exchange = exchange_at(state, state->tail);
	exchange->late = 0;
	exchange->stamped = state->stamps == STAMPS_MICROSECONDS &&
			    stamped_late(state, tcp->rx_opt.rcv_tsval, came, &exchange->late);
	exchange->probed = came;
	exchange->last = came;
	exchange->read = 0;
	exchange->end_seq = copied;
	exchange->bytes = state->sees ? copied - state->seen_seq : 0;
	exchange->write_seq = tcp->write_seq;
	exchange->napi = NO_SLOT;
	exchange->unseen = 1;
	exchange->touched = 0;
	exchange->untimed = 0;
	exchange->incomplete = 0;
	exchange->requests = 1;
	exchange->poll = 0;
	exchange->at = 0;
	exchange->at_interrupt = 0;
	exchange->floor = 0;
	state->skip = 0;
	state->seen_seq = copied;
	state->sees = 1;
	state->tail++;
}

/*
 * Returns whether the receive window is closed, so that the client cannot send another segment
 * until the application reads the earlier data.
 */
static __always_inline bool window_is_closed(struct tcp_sock *tcp, __u32 copied)
{
	__u32 left = tcp->rcv_wup + tcp->rcv_wnd - tcp->rcv_nxt;

	return left < tcp->inet_conn.icsk_ack.rcv_mss && tcp->rcv_nxt - copied >= left;
}

SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(live_read, struct sock *sk)
{
	struct socket_state *state;
	struct exchange *exchange;
	struct tcp_sock *tcp;
	__u32 copied;
	__u64 now = 0;
	int i;

	if (!ours(sk))
		return 0;
	state = state_of(sk, BY_READ);
	if (state && state->head != state->read)
		settle(state);
	tcp = tcp_of(sk);
	copied = tcp->copied_seq;
	if (!state && gate.opens)
		state = state_for(sk, tcp, BY_READ);
	if (!state)
		return 0;
	state->has_read = 1;
	if (window_is_closed(tcp, copied) != state->closed) {
		struct live_counts *all = counted();

		state->closed = !state->closed;
		if (all && gate.opens)
			all->zero_windows += state->closed;
	}
	if (!state->sees || (__s32)(copied - state->seen_seq) > 0)
		came_unseen(sk, tcp, state);
	for (i = 0; i < EXCHANGES_MAX && state->read != state->tail; i++) {
		exchange = exchange_at(state, state->read);
		if ((__s32)(copied - exchange->end_seq) < 0) {
			if ((__s32)(copied - (exchange->end_seq - exchange->bytes)) > 0)
				exchange->touched = 1;
			break;
		}
		if (!now)
			now = bpf_ktime_get_ns();
		exchange->read = now;
		state->read++;
	}
	return 0;
}

/*
 * Returns whether a send without an outstanding request continues the last answer. This is so if
 * one of these conditions is true:
 *
 * - The thread has not slept since that answer.
 * - The application has since read more of the same request.
 * - The last send was flagged MSG_MORE, as by a proxy that waits for more data.
 * - The socket's send buffer is probably full (UNACKNOWLEDGED_BYTES).
 */
static __always_inline bool continues(struct sock *sk, struct socket_state *state, __u32 thread, __u64 switches)
{
	struct tcp_sock *tcp;

	if (!state->answered)
		return false;
	if (state->more || state->has_read || (state->thread == thread && state->switches == switches))
		return true;
	tcp = tcp_of(sk);
	return tcp->write_seq - tcp->snd_una >= UNACKNOWLEDGED_BYTES;
}

static __always_inline int sent(struct sock *sk, int flags)
{
	struct task_struct *task;
	struct socket_state *state;
	struct exchange *exchange;
	struct live_counts *all;
	__u32 thread;
	__u64 now;

	if (!ours(sk))
		return 0;
	state = state_of(sk, BY_SEND);
	/* This send may answer a request from before the window, so create a
	 * state. */
	if (!state && gate.opens)
		state = state_for(sk, tcp_of(sk), BY_SEND);
	if (!state)
		return 0;
	all = counted();
	if (!all)
		return 0;
	now = bpf_ktime_get_ns();
	if (state->strayed && state->head == state->tail) {
		state->strays += state->strays < STRAYS_MAX;
		state->strayed = 0;
	}
	if (state->head == state->tail && !state->answered) {
		/* This send answers a request from before the window. */
		state->last_send = now;
		state->has_read = 0;
		return 0;
	}
	exchange = exchange_at(state, state->head);
	/*
	 * Arrivals after the window are not recorded, so this send cannot be
	 * assigned to a request.
	 */
	if (!gate.opens && state->head == state->read)
		return 0;
	if (now >= gate.opens)
		all->sends++;
	task = bpf_get_current_task_btf();
	thread = task->pid;
	if (state->head != state->read || (state->head != state->tail && exchange->touched)) {
		if (thread != state->thread) {
			state->thread = thread;
			state->worker = slot_of(thread, 1);
		}
		state->answered = 1;
		answer(exchange, now, state->worker, state->protocol);
		/* The application may answer a request before it has read all of it. */
		if (state->head == state->read)
			state->read++;
		state->head++;
	} else if (continues(sk, state, thread, task->nvcsw)) {
		if (now >= gate.opens)
			all->continued++;
	} else if (now >= gate.opens) {
		all->unsolicited++;
	}
	state->last_send = now;
	state->has_read = 0;
	state->more = !!(flags & MSG_MORE);
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

/*
 * The NAPI's thread is woken when the first packet arrives. If the thread is
 * already running, it is not woken, and this tracepoint is not reached.
 */
SEC("tp_btf/sched_waking")
int BPF_PROG(live_wakes, struct task_struct *task)
{
	struct napi_state *napi;
	__u32 *slot, pid;

	if (!(task->flags & PF_KTHREAD))
		return 0;
	pid = task->pid;
	slot = bpf_map_lookup_elem(&threads, &pid);
	napi = slot ? napi_at(*slot) : 0;
	if (napi)
		napi->woken = bpf_ktime_get_ns();
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
int BPF_PROG(live_sends, struct sock *sk, struct msghdr *msg)
{
	return sent(sk, msg->msg_flags);
}

/* Called after the bytes of a send were passed to TCP, and often after they were transmitted. */
SEC("?tp_btf/sock_send_length")
int BPF_PROG(live_has_sent, struct sock *sk, int ret, int flags)
{
	if (ret <= 0 || sk->sk_protocol != IPPROTO_TCP)
		return 0;
	return sent(sk, flags);
}

/* Records that a poll ends at @now, and that it started its NAPI's timer. */
static __always_inline void starts_timer(struct napi_state *napi, struct napi_struct *polled, __u64 now)
{
	__u64 at = napi_timer_expires_at(polled), expires;

	if (!at)
		return;
	expires = polled->timer.node.expires;
	if (expires <= now)
		return;
	napi->expires = at;
	napi->timeout = expires - now;
	napi->suspended = napi_irq_suspend_ns(polled);
}

SEC("tp_btf/napi_poll")
int BPF_PROG(live_polls, struct napi_struct *polled, int work, int budget)
{
	struct task_struct *task, *thread;
	__u32 id = polled->napi_id, slot, by;
	struct napi_state *napi;
	struct live_part *part;
	struct poll *poll;
	__u64 now;

	/*
	 * Clear the softirq's start: later packets on this CPU did not wait for
	 * this softirq to begin.
	 */
	if (gate.looks_at_stack) {
		struct cpu_state *cpu = this_cpu();

		if (cpu)
			cpu->softirq = 0;
	}
	if (!budget || !id)
		return 0;
	slot = slot_of_napi(id);
	napi = napi_at(slot);
	if (!napi)
		return 0;
	now = bpf_ktime_get_ns();
	napi->polls_seen = 1;
	task = bpf_get_current_task_btf();
	thread = polled->thread;
	napi->flags = thread ? napi->flags | THREADED : napi->flags & BY_KSOFTIRQD;
	if (thread && task == thread)
		by = LIVE_BY_KTHREAD;
	else if (polls_by_itself(task, ctx))
		by = LIVE_BY_APPLICATION;
	else if (napi->masked)
		by = LIVE_BY_TIMER;
	else
		by = LIVE_BY_INTERRUPT;
	part = part_at(slot);
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
		if (napi->thread != (__u32)thread->pid)
			is_polled_by(napi, slot, thread->pid);
		napi->woken = 0;
		napi->run_delay = thread->sched_info.run_delay;
		napi->turns = thread->sched_info.pcount;
		napi->sleeps = thread->nvcsw;
	}
	/* If the poll is full, the packets that it left in the ring arrived after those that it
	 * took. */
	if (work >= budget && napi->first > napi->drained)
		napi->drained = napi->first;
	napi->window = gate.window;
	napi->packets = 0;
	napi->first = 0;
	if (work < budget) {
		napi->drained = now;
		napi->expires = 0;
		napi->masked = napi_timer_runs(polled);
		if (napi->masked)
			starts_timer(napi, polled, now);
		else
			napi->masked = by == LIVE_BY_APPLICATION && polled->state & NAPIF_STATE_IN_BUSY_POLL;
	} else {
		napi->masked = 1;
		napi->expires = 0;
	}
	return 0;
}

/* Called for every packet before the packet reaches its protocol. Kernel: 6.18, net/core/dev.c
 * __netif_receive_skb_core(). */
SEC("?tp_btf/netif_receive_skb")
int BPF_PROG(live_datagram, struct sk_buff *skb)
{
	struct datagram datagram = {};
	struct place place = {};
	struct live_counts *all;
	struct napi_state *napi;
	struct cpu_state *cpu;
	__u32 id, slot = NO_SLOT;
	__u64 now;
	int port;

	port = describe(skb, skb->data, false, &datagram);
	if (port < 0 || skb->dev->nd_net.net->ns.inum != config.netns)
		return 0;
	all = counted();
	cpu = this_cpu();
	if (!all || !cpu || !is_local(&datagram, cpu))
		return 0;
	now = bpf_ktime_get_ns();
	id = skb->napi_id;
	if (id) {
		slot = slot_of_napi(id);
		if (slot == NO_SLOT)
			slot = slot_of(id, 0);
	}
	napi = napi_at(slot);
	if (napi)
		placed_by(napi, now, &place);
	if (!gate.opens)
		return 0;
	datagram.exchange.probed = now;
	datagram.exchange.last = now;
	/*
	 * As in live_arrives: arrivals while the programs are being attached
	 * are not typical.
	 */
	datagram.exchange.untimed = now < gate.opens;
	datagram.exchange.napi = slot;
	datagram.exchange.poll = place.poll;
	datagram.exchange.at = place.at;
	datagram.exchange.at_interrupt = place.at_interrupt;
	datagram.exchange.by_ksoftirqd = place.by_ksoftirqd;
	datagram_arrives(&datagram, port, all);
	return 0;
}

/* Called when a datagram has been queued on its socket. */
SEC("?tp_btf/sk_data_ready")
int BPF_PROG(live_datagram_queued, const struct sock *sk)
{
	struct queue_state *queue;
	struct live_counts *all;
	__u64 now;

	if (sk->sk_protocol != IPPROTO_UDP || udp_port(sk) < 0 || !gate.opens)
		return 0;
	queue = bpf_sk_storage_get(&queues, (void *)sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	all = counted();
	if (!queue || !all)
		return 0;
	now = bpf_ktime_get_ns();
	all->datagrams += now >= gate.opens;
	joins_queue(queue, sk, now);
	return 0;
}

/* Called when the application has received a datagram. */
SEC("?tp_btf/sock_recv_length")
int BPF_PROG(live_datagram_read, struct sock *sk, int ret, int flags)
{
	struct queue_state *queue;

	if (ret < 0 || flags & (MSG_PEEK | MSG_ERRQUEUE) || sk->sk_protocol != IPPROTO_UDP || udp_port(sk) < 0)
		return 0;
	queue = bpf_sk_storage_get(&queues, sk, 0, 0);
	if (queue)
		leaves_queue(queue, bpf_ktime_get_ns());
	return 0;
}

/* Called when a datagram did not fit into the buffer of its socket. */
SEC("?tp_btf/udp_fail_queue_rcv_skb")
int BPF_PROG(live_drops, int reason, struct sock *sk)
{
	struct live_counts *all = counted();

	if (all && gate.opens && udp_port(sk) >= 0)
		all->dropped++;
	return 0;
}

/*
 * Called when any packet is dropped. A dropped datagram, which no one reads or
 * answers, would shift the pairing of its peer's other datagrams. A datagram
 * is known by the address of its sk_buff, so one that a packet capture shares,
 * and that was cloned since, is not recognised.
 */
SEC("?tp_btf/kfree_skb")
int BPF_PROG(live_discards, struct sk_buff *skb)
{
	struct datagram datagram = {};
	struct peer_state *state;
	struct live_counts *all;

	if (!gate.opens || describe(skb, (void *)skb->head + skb->network_header, false, &datagram) < 0 ||
	    datagram.peer.of == OF_ID)
		return 0;
	state = bpf_map_lookup_elem(&peers, &datagram.peer);
	all = counted();
	if (state && all)
		all->discarded += drop(state, (__u64)skb);
	return 0;
}

/*
 * Called when any packet is sent. A packet that passes several devices is
 * counted only at the first one: at later devices, it is recognised by its
 * address and contents.
 */
SEC("?tp_btf/net_dev_queue")
int BPF_PROG(live_datagram_sent, struct sk_buff *skb)
{
	struct datagram datagram = {};
	struct queue_state *queue;
	struct live_counts *all;
	struct cpu_state *cpu;
	struct sock *sk;
	__u64 now, what;
	int port;

	port = describe(skb, (void *)skb->head + skb->network_header, true, &datagram);
	if (port < 0)
		return 0;
	sk = skb->sk;
	if (!sk || sk->__sk_common.skc_net.net->ns.inum != config.netns)
		return 0;
	all = counted();
	cpu = this_cpu();
	if (!all || !cpu)
		return 0;
	what = (__u64)datagram.peer.address[3] << 32 | (__u32)datagram.peer.port << 16 | datagram.peer.id;
	if (cpu->sent_skb == (__u64)skb && cpu->sent_dev != (__u64)skb->dev && cpu->sent_what == what)
		return 0;
	cpu->sent_skb = (__u64)skb;
	cpu->sent_dev = (__u64)skb->dev;
	cpu->sent_what = what;
	now = bpf_ktime_get_ns();
	if (gate.opens && now >= gate.opens)
		all->sends++;
	learns_local(&datagram, cpu);
	queue = bpf_sk_storage_get(&queues, sk, 0, 0);
	datagram_answers(&datagram, port, queue, all, cpu, now);
	if (gate.looks_at_stack) {
		cpu->sent = now;
		cpu->socket = (__u64)sk;
	}
	return 0;
}

/* Adds an exchange that is unanswered at the end of the window. */
static __always_inline void waits(struct live_waiting *found, __u64 probed, __u64 last, bool counts,
				  __u64 *longest)
{
	if (probed > found->now)
		return;
	add(found->ages, found->now - probed, 1);
	if (probed < found->opens)
		add(found->entered, found->opens - probed, 1);
	if (!counts || last > found->now)
		return;
	found->requests++;
	if (!found->oldest || last < found->oldest)
		found->oldest = last;
	if (found->now - last > *longest)
		*longest = found->now - last;
}

/* Counts a socket as stalled if its longest wait is at least a threshold, and as
 * waiting throughout if it is at least the length of the window. */
static __always_inline void has_waited(struct live_waiting *found, __u64 longest)
{
	found->stalled += longest >= found->stalled_ns;
	found->throughout += longest >= found->now - found->opens;
}

/*
 * Returns whether the protocol answers every message of the client. Only then does an unanswered
 * message mean that the client waits.
 */
static __always_inline bool answers_all(struct socket_state *state)
{
	return state->protocol == LIVE_HTTP1 || state->protocol == LIVE_RESP || state->protocol == LIVE_POSTGRESQL ||
	       state->protocol == LIVE_MEMCACHED;
}

/* Adds the increase of a socket's own TCP counters in this window. */
static __always_inline void adds_counts(struct live_waiting *found, struct tcp_sock *tcp,
					struct socket_state *state, bool of_window)
{
	struct tcp_counts now = {};

	/*
	 * A socket without an event in the window may still have retransmitted an answer, so add
	 * its counters, too.
	 */
	if (state->before.window != (__u32)gate.window)
		return;
	tcp_counts_of(tcp, &now);
	found->segments_out += now.segments_out - state->before.segments_out;
	found->retransmitted += now.retransmitted - state->before.retransmitted;
	found->needless += now.needless - state->before.needless;
	found->segments_in += now.segments_in - state->before.segments_in;
	found->out_of_order += now.out_of_order - state->before.out_of_order;
	found->clients_full += now.client_full != state->before.client_full ||
			       BPF_CORE_READ_BITFIELD(tcp, chrono_type) == TCP_CHRONO_RWND_LIMITED;
	/* srtt_us is in eighths of a microsecond. */
	if (of_window && tcp->srtt_us)
		add(found->rtt, (__u64)tcp->srtt_us * 125, 1);
}

/* Counts the unanswered exchanges at the end of a window. */
SEC("iter/bpf_sk_storage_map")
int live_waits(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct socket_state *state = ctx->value;
	struct live_waiting *found;
	struct exchange *exchange;
	bool of_window;
	struct tcp_sock *tcp;
	__u32 only = 0, i, ticks = 0;
	__u64 probed, longest = 0;

	if (!sk || !state)
		return 0;
	found = bpf_map_lookup_elem(&waiting, &only);
	if (!found)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (found->begins) {
		if (tcp)
			tcp_counts_of(tcp, &state->before);
		return 0;
	}
	found->sockets++;
	if (!tcp)
		return 0;
	of_window = state->window == (__u32)gate.window;
	adds_counts(found, tcp, state, of_window);
	if (of_window)
		state->write_seq = tcp->write_seq;
	if (state->head == state->tail || state->write_seq != tcp->write_seq) {
		/*
		 * If no exchange is known to be unanswered, or if data was sent between two
		 * windows, use TCP's own timestamps.
		 */
		if (!of_window && client_waits(tcp, BY_ARRIVAL, &ticks) && ticks >= TICKS_MIN) {
			probed = found->now - (__u64)ticks * config.tick_ns;
			waits(found, probed, probed, answers_all(state), &longest);
			has_waited(found, longest);
		}
		return 0;
	}
	/* The storage can only be read at constant offsets, so check each position. */
#pragma unroll
	for (i = 0; i < EXCHANGES_MAX; i++) {
		if (((i - state->head) & (EXCHANGES_MAX - 1)) >= state->tail - state->head)
			continue;
		exchange = &state->exchanges[i];
		/* Skip exchanges that were read before the last send: that send answered them. */
		if (exchange->read && state->last_send >= exchange->read)
			continue;
		if (exchange->incomplete) {
			found->incomplete++;
			continue;
		}
		waits(found, exchange->probed, exchange->last, true, &longest);
	}
	has_waited(found, longest);
	return 0;
}
