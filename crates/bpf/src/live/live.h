/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by live.bpf.c and the Rust modules in live/. Times are
 * CLOCK_MONOTONIC, in nanoseconds. A test compares each field's offset in the
 * BTF of the compiled object with the Rust structures.
 */
#ifndef __LIVE_H__
#define __LIVE_H__

#include "../buckets.h"

#define LIVE_BUCKETS SPAN_BUCKETS

/*
 * The number of buckets for spans of a single NAPI or thread: eight for each power of
 * two.
 */
#define LIVE_PART_BUCKETS 296

#define LIVE_PORTS_MAX 16

/* The maximum number of NAPIs and of threads that are counted separately. Thread 0 stands for all
 * others. */
#define LIVE_NAPIS_MAX 128
#define LIVE_WORKERS_MAX 64

/* The sum of the turnaround distribution. */
#define LIVE_WHOLE (1U << 31)

/* Set before load; the map .rodata.config. */
struct live_config {
	/* The network namespace of the service's sockets (inode number). */
	__u64 netns;
	/* The number of valid entries in ports[]. */
	__u32 ports_count;
	/* The maximum number of new sockets in a window; others are not measured. */
	__u32 sockets_max;
	/* Local ports, in host byte order. */
	__u16 ports[LIVE_PORTS_MAX];
	/* The length of a jiffy, in nanoseconds. */
	__u32 tick_ns;
	/* The hook records answers only after they were sent. */
	__u32 answers_late;
	/* The number of valid entries in udp_ports[]. */
	__u32 udp_ports_count;
	/* Local UDP ports, in host byte order. */
	__u16 udp_ports[LIVE_PORTS_MAX];
	__u32 pad;
};

/* The map .data.gate, written before each window. */
struct live_gate {
	/* Incremented for each window, to detect a socket's first event in it. */
	__u64 window;
	/*
	 * Exchanges count from this time. LIVE_NOT_YET: the programs are still
	 * being attached; 0: the window has ended.
	 */
	__u64 opens;
	/* The opening time, also valid after the window has ended. */
	__u64 opened;
	/* The number of sockets with a state; the programs update it. */
	__u64 sockets;
	/* Whether the programs that trace the network stack are attached. */
	__u64 looks_at_stack;
	/* Whether datagrams without an id are left unpaired, because the service does not answer
	 * each of them. */
	__u64 pairs_ids_only;
};

#define LIVE_NOT_YET (~0ULL)

/* The map spans, with one entry. Every value is per CPU. */
struct live_spans {
	/* From the first arrival at TCP to the answer. */
	__u32 residence[LIVE_BUCKETS];
	/* From the last arrival to the answer. */
	__u32 since_last[LIVE_BUCKETS];
	/*
	 * For exchanges that began before the window: their age when the window opened.
	 */
	__u32 entered[LIVE_BUCKETS];
	/* From arrival at TCP to the read. */
	__u32 wakeup[LIVE_BUCKETS];
	/* From the read to the answer. */
	__u32 service[LIVE_BUCKETS];
	/* From the ring to TCP, by the best available estimator. */
	__u32 ring[LIVE_BUCKETS];
	/* From the ring to the answer, by estimator U. */
	__u32 uniform[LIVE_BUCKETS];
	/* From the ring to the answer, by estimator C. */
	__u32 conditional[LIVE_BUCKETS];
	/* From the ring to the answer, by estimator T, for clients with microsecond timestamps. */
	__u32 stamped[LIVE_BUCKETS];
	/* From an answer to the next arrival while interrupts were enabled. */
	__u32 turnaround[LIVE_BUCKETS];
	/* The number of bytes of an exchange. */
	__u32 bytes[LIVE_BUCKETS];
	/*
	 * From the start of the softirq to TCP, for the first packet of a poll;
	 * only in windows that trace the stack.
	 */
	__u32 receive[LIVE_BUCKETS];
	/*
	 * From the answer to the device; only in windows that trace the stack.
	 */
	__u32 transmit[LIVE_BUCKETS];
};

/* Protocols, detected from the first bytes of a message. */
enum live_protocol {
	/* Another protocol, or not yet detected: each exchange counts as one request. */
	LIVE_OTHER,
	/* TLS: records are encrypted, so each exchange counts as one request. */
	LIVE_TLS,
	/* Protocols whose requests are counted one by one. */
	LIVE_HTTP1,
	LIVE_HTTP2,
	LIVE_RESP,
	LIVE_MEMCACHED,
	LIVE_POSTGRESQL,
	/* Datagram protocols; each datagram is a request. */
	LIVE_DNS,
	/*
	 * Datagrams without ids, which are paired in order with the datagrams sent to the same
	 * peer.
	 */
	LIVE_UDP,
	LIVE_PROTOCOLS,
};

/* The map counts, with one entry. Every value is per CPU. */
struct live_counts {
	/* Segments that carry data. */
	__u64 segments;
	/* Sockets with at least one event in the window. */
	__u64 connections;
	/* Exchanges that began in the window. */
	__u64 arrivals;
	/* Segments that continued an exchange. */
	__u64 joined;
	/* Exchanges that were answered. */
	__u64 answered;
	/* Answered exchanges that were answered together with a later one. */
	__u64 batched;
	/* Answered exchanges that began before the window. */
	__u64 carried;
	/* Answered exchanges whose start is not known precisely enough; they are in no span. */
	__u64 untimed;
	/* Requests in answered exchanges; an exchange counts as one if the protocol does not show
	 * its requests. */
	__u64 requests;
	/* Requests by enum live_protocol. */
	__u64 protocols[LIVE_PROTOCOLS];
	/* System calls that sent data. */
	__u64 sends;
	/* Sends that continued an answer. */
	__u64 continued;
	/* Sends without an outstanding request. */
	__u64 unsolicited;
	/* Requests on sockets whose list of exchanges was full; each was merged into the last
	 * entry. */
	__u64 overflown;
	/*
	 * Exchanges on sockets that have sent data without reaching the hook.
	 */
	__u64 answers_unseen;
	/*
	 * Segments of sockets without a state, because there are more than sockets_max or memory
	 * was short.
	 */
	__u64 unmeasured;
	/* Segments of MPTCP subflows, which are not measured. */
	__u64 mptcp;
	/* Answered exchanges whose packets no observed NAPI poll delivered. */
	__u64 without_napi;
	/* Answered exchanges whose poll record was overwritten. */
	__u64 without_poll;
	/*
	 * Answered exchanges that a NAPI's first poll in the window delivered:
	 * when the ring was last empty is unknown.
	 */
	__u64 at_opening;
	/* Arrivals on a CPU other than the one that ran the poll. */
	__u64 steered;
	/* Answered exchanges whose poll began with interrupts masked. */
	__u64 masked;
	/* Answered exchanges whose poll began with interrupts enabled. */
	__u64 unmasked;
	/* Answered exchanges for which estimator C was used. */
	__u64 conditioned;
	/* Answered exchanges on a NAPI that a kernel thread polls. */
	__u64 threaded;
	/* Answered exchanges whose packets ksoftirqd polled. */
	__u64 by_ksoftirqd;
	/*
	 * Exchanges counted in `threaded` whose poll began with an observed
	 * wake-up of the thread.
	 */
	__u64 woken;
	/* Answered exchanges with an estimate by T, the client's microsecond timestamps. */
	__u64 stamped;
	/* Answered exchanges whose arrival no program observed. */
	__u64 unseen;
	/*
	 * New connections: those on which the service had not sent data before
	 * the window.
	 */
	__u64 opened;
	/*
	 * The number of reads that found the receive window closed: the service reads too
	 * slowly.
	 */
	__u64 zero_windows;
	/* Datagrams that arrived. */
	__u64 datagrams;
	/* Datagrams with an id that the answer repeats. */
	__u64 identified;
	/* Datagrams that were not paired with an answer. */
	__u64 unpaired;
	/* Unpaired datagrams on ports that have received QUIC. */
	__u64 quic;
	/* Datagrams that did not fit into the socket's buffer. */
	__u64 dropped;
	/* Datagrams sent to a peer without a waiting request, or while pairing is off. */
	__u64 strays;
	/*
	 * Datagrams without an id that the kernel dropped after they arrived; no answer is paired
	 * with them.
	 */
	__u64 discarded;
};

/* The context that polled. */
enum live_poller {
	LIVE_BY_INTERRUPT,
	LIVE_BY_TIMER,
	LIVE_BY_APPLICATION,
	LIVE_BY_KTHREAD,
	LIVE_POLLERS,
};

/* The map parts: first NAPIs, then threads, by slot. Every value is per CPU. */
struct live_part {
	/* Answered requests. */
	__u64 requests;
	__u64 ring_ns;
	__u64 wakeup_ns;
	__u64 service_ns;
	/* For a NAPI: its polls and the packets they delivered, by polling context. */
	__u64 polls[LIVE_POLLERS];
	__u64 packets[LIVE_POLLERS];
	/*
	 * Spans from the ring to the answer, by the best available estimator.
	 */
	__u32 total[LIVE_PART_BUCKETS];
};

/* The key of the `slots` map. The value is a __u32. */
struct live_key {
	/* A NAPI id, or the pid of a thread. */
	__u32 id;
	/* 0: a NAPI, 1: a thread. */
	__u32 is_worker;
};

/*
 * The only entry of the `turnarounds` map: for each bucket, the share of
 * turnarounds below the bucket's lower edge, in parts of LIVE_WHOLE.
 */
struct live_turnarounds {
	/* 0: unknown. */
	__u32 valid;
	__u32 below[LIVE_BUCKETS + 1];
};

/* The only entry of the `waiting` map: the iterator's input and result. */
struct live_waiting {
	/* The times at which the window ended and opened; set by user space. */
	__u64 now;
	__u64 opens;
	/* Sockets with a state. */
	__u64 sockets;
	/*
	 * The number of unanswered exchanges, and the time of the last arrival of the
	 * exchange that has waited longest.
	 */
	__u64 requests;
	__u64 oldest;
	/*
	 * A threshold, set by user space, and the number of sockets that have
	 * waited longer than that since their last arrival.
	 */
	__u64 stalled_ns;
	__u64 stalled;
	/* Sockets with an exchange that waited for the whole window. */
	__u64 throughout;
	/* Unanswered requests of which the client has sent only a part. */
	__u64 incomplete;
	/*
	 * The ages of all unanswered exchanges now, and their ages when the window
	 * opened.
	 */
	__u32 ages[LIVE_BUCKETS];
	__u32 entered[LIVE_BUCKETS];
	/*
	 * Set to 1 at the start of a window: the iterator then only records
	 * TCP's counters of each socket, and counts nothing.
	 */
	__u64 begins;
	/* The next six fields are the increase of TCP's own counters since the window began, for
	 * sockets that exist at its end. */
	/* Data segments sent, including retransmissions. */
	__u64 segments_out;
	/* Retransmitted segments. */
	__u64 retransmitted;
	/* Segments that clients reported as duplicates (DSACK). */
	__u64 needless;
	/* Data segments received, including retransmitted ones. */
	__u64 segments_in;
	/* Segments that arrived out of order. */
	__u64 out_of_order;
	/*
	 * Sockets whose data had to wait for space in the client's receive
	 * window.
	 */
	__u64 clients_full;
	/* The smoothed round-trip times of sockets with an event in the window. */
	__u32 rtt[LIVE_BUCKETS];
};

#endif
