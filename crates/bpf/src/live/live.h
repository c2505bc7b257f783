/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by live.bpf.c and the Rust modules in live/. Times are
 * CLOCK_MONOTONIC, in nanoseconds. A test compares the offset of each field in
 * the compiled object's BTF with the Rust structures.
 */
#ifndef __LIVE_H__
#define __LIVE_H__

#include "../buckets.h"

#define LIVE_BUCKETS SPAN_BUCKETS

/*
 * The number of buckets for time spans of a single NAPI or thread: eight for each power of two.
 */
#define LIVE_PART_BUCKETS 296

#define LIVE_PORTS_MAX 16

/* The maximum number of NAPIs, and of threads, that are counted separately. Thread 0 stands for all
 * other threads. */
#define LIVE_NAPIS_MAX 128
#define LIVE_WORKERS_MAX 64

/* The sum of all shares in the distribution of turnarounds. */
#define LIVE_WHOLE (1U << 31)

/* The content of the map .rodata.config, which is set before load. */
struct live_config {
	/* The inode number of the network namespace of the service's sockets. */
	__u64 netns;
	/* The number of valid entries in ports[]. */
	__u32 ports_count;
	/* The maximum number of new sockets that are measured in a window. */
	__u32 sockets_max;
	/* The service's local TCP ports, in host byte order. */
	__u16 ports[LIVE_PORTS_MAX];
	/* The length of a jiffy, in nanoseconds. */
	__u32 tick_ns;
	/* Whether the hook records answers only after they were sent. */
	__u32 answers_late;
	/* The number of valid entries in udp_ports[]. */
	__u32 udp_ports_count;
	/* The service's local UDP ports, in host byte order. */
	__u16 udp_ports[LIVE_PORTS_MAX];
	__u32 pad;
};

/* The content of the map .data.gate, which is written before each window. */
struct live_gate {
	/* The number of the window, which is incremented for each one, to detect a socket's first
	 * event in a window. */
	__u64 window;
	/*
	 * The time from which exchanges count. LIVE_NOT_YET: the programs are
	 * still being attached; 0: the window has ended.
	 */
	__u64 opens;
	/* The time at which the window opened; also valid after the window has
	 * ended. */
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

/* The value of the map spans, which has one entry. Every value is per CPU. */
struct live_spans {
	/* Times from the first arrival at TCP to the answer. */
	__u32 residence[LIVE_BUCKETS];
	/* Times from the last arrival to the answer. */
	__u32 since_last[LIVE_BUCKETS];
	/*
	 * Ages, when the window opened, of exchanges that began before the window.
	 */
	__u32 entered[LIVE_BUCKETS];
	/* Times from the arrival at TCP to the read. */
	__u32 wakeup[LIVE_BUCKETS];
	/* Times from the read to the answer. */
	__u32 service[LIVE_BUCKETS];
	/* Times from the ring to TCP, by the best available estimator. */
	__u32 ring[LIVE_BUCKETS];
	/* Times from the ring to the answer, by estimator U. */
	__u32 uniform[LIVE_BUCKETS];
	/* Times from the ring to the answer, by estimator C. */
	__u32 conditional[LIVE_BUCKETS];
	/* Times from the ring to the answer, by estimator T, for clients with microsecond
	 * timestamps. */
	__u32 stamped[LIVE_BUCKETS];
	/* Times from an answer to the next arrival while interrupts were
	 * enabled. */
	__u32 turnaround[LIVE_BUCKETS];
	/* The number of bytes per exchange. */
	__u32 bytes[LIVE_BUCKETS];
	/*
	 * Times from the start of the softirq to TCP, for the first packet of a
	 * poll; only in windows that trace the stack.
	 */
	__u32 receive[LIVE_BUCKETS];
	/*
	 * Times from the answer to the device; only in windows that trace the
	 * stack.
	 */
	__u32 transmit[LIVE_BUCKETS];
};

/* Protocols, detected from the first bytes of a message. */
enum live_protocol {
	/* Another protocol, or one that is not detected yet: each exchange counts as one request. */
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

/* The value of the map counts, which has one entry. Every value is per CPU. */
struct live_counts {
	/* Received segments that carry data. */
	__u64 segments;
	/* Sockets with at least one event in the window. */
	__u64 connections;
	/* Exchanges that began in the window. */
	__u64 arrivals;
	/* Received segments that continued an exchange. */
	__u64 joined;
	/* Exchanges that were answered. */
	__u64 answered;
	/* Exchanges that were answered together with a later one. */
	__u64 batched;
	/* Answered exchanges that had begun before the window. */
	__u64 carried;
	/* Answered exchanges whose start is not known precisely enough; no time span includes them. */
	__u64 untimed;
	/* Requests in answered exchanges. An exchange counts as one request if the protocol does
	 * not show its requests. */
	__u64 requests;
	/* The number of requests, indexed by enum live_protocol. */
	__u64 protocols[LIVE_PROTOCOLS];
	/* System calls that sent data. */
	__u64 sends;
	/* Sends that continued an answer. */
	__u64 continued;
	/* Sends without an outstanding request. */
	__u64 unsolicited;
	/* Requests on sockets whose list of exchanges was full. Each was merged into the last
	 * entry. */
	__u64 overflown;
	/*
	 * Exchanges on sockets that have sent data without a call of the hook.
	 */
	__u64 answers_unseen;
	/*
	 * Segments of sockets that got no state, because there were more than sockets_max or memory
	 * was short.
	 */
	__u64 unmeasured;
	/* Segments of MPTCP subflows, which are not measured. */
	__u64 mptcp;
	/* Answered exchanges whose packets were not delivered by any observed
	 * NAPI poll. */
	__u64 without_napi;
	/* Answered exchanges whose poll record was already overwritten. */
	__u64 without_poll;
	/*
	 * Answered exchanges that were delivered by a NAPI's first poll in the
	 * window, so that it is unknown when the ring was last empty.
	 */
	__u64 at_opening;
	/* Arrivals on a CPU other than the one that ran the poll. */
	__u64 steered;
	/* Answered exchanges whose poll began with interrupts masked. */
	__u64 masked;
	/* Answered exchanges whose poll began with interrupts enabled. */
	__u64 unmasked;
	/* Answered exchanges for which estimator C had an estimate of its own. */
	__u64 conditioned;
	/* Answered exchanges on a NAPI that a kernel thread polls. */
	__u64 threaded;
	/* Answered exchanges whose packets ksoftirqd polled. */
	__u64 by_ksoftirqd;
	/*
	 * Those exchanges in `threaded` whose poll began with an observed
	 * wake-up of the thread.
	 */
	__u64 woken;
	/* Answered exchanges with an estimate by T, from the client's microsecond timestamps. */
	__u64 stamped;
	/* Answered exchanges whose arrival no program observed. */
	__u64 unseen;
	/*
	 * New connections: those on which the service had sent no data before
	 * the window.
	 */
	__u64 opened;
	/*
	 * Reads that found the receive window closed when the read before had not: the service
	 * reads too slowly.
	 */
	__u64 zero_windows;
	/* Datagrams that arrived. */
	__u64 datagrams;
	/* Datagrams with an id that the service repeats in its answer. */
	__u64 identified;
	/* Datagrams that were not paired with an answer. */
	__u64 unpaired;
	/* Unpaired datagrams on ports that have received QUIC. */
	__u64 quic;
	/* Datagrams that did not fit into the socket's buffer. */
	__u64 dropped;
	/* Datagrams sent to a peer that has no waiting request, or sent while pairing is off. */
	__u64 strays;
	/*
	 * Datagrams without an id that the kernel dropped after their arrival; no answer is paired
	 * with them.
	 */
	__u64 discarded;
};

/* The context that polled a NAPI. */
enum live_poller {
	LIVE_BY_INTERRUPT,
	LIVE_BY_TIMER,
	LIVE_BY_APPLICATION,
	LIVE_BY_KTHREAD,
	LIVE_POLLERS,
};

/* The value of the map parts, whose index is a slot: first the slots of NAPIs,
 * then those of threads. Every value is per CPU. */
struct live_part {
	/* Answered requests. */
	__u64 requests;
	__u64 ring_ns;
	__u64 wakeup_ns;
	__u64 service_ns;
	/* For a NAPI: its polls, and the packets that they delivered, by polling context. */
	__u64 polls[LIVE_POLLERS];
	__u64 packets[LIVE_POLLERS];
	/*
	 * Times from the ring to the answer, by the best available estimator.
	 */
	__u32 total[LIVE_PART_BUCKETS];
};

/* The key of the map slots. Its value is a __u32. */
struct live_key {
	/* A NAPI id, or the pid of a thread. */
	__u32 id;
	/* 0 for a NAPI, 1 for a thread. */
	__u32 is_worker;
};

/*
 * The value of the map turnarounds, which has one entry. For each bucket, it
 * holds the share of turnarounds below the bucket's lower edge, in parts of
 * LIVE_WHOLE.
 */
struct live_turnarounds {
	/* 0: unknown. */
	__u32 valid;
	__u32 below[LIVE_BUCKETS + 1];
};

/* The value of the map waiting, which has one entry: the iterator's input and
 * result. */
struct live_waiting {
	/* When the window ended and when it opened; set by user space. */
	__u64 now;
	__u64 opens;
	/* The number of sockets with a state. */
	__u64 sockets;
	/*
	 * The number of unanswered exchanges, and the time of the last arrival of the one that has
	 * waited longest.
	 */
	__u64 requests;
	__u64 oldest;
	/*
	 * A threshold, set by user space, and the number of sockets with an
	 * unanswered exchange whose last arrival is at least that long ago.
	 */
	__u64 stalled_ns;
	__u64 stalled;
	/* The number of sockets with an exchange that waited for the whole
	 * window. */
	__u64 throughout;
	/* The number of unanswered requests of which the client has sent only a
	 * part. */
	__u64 incomplete;
	/*
	 * The ages of all unanswered exchanges at the end of the window, and their ages when the
	 * window opened.
	 */
	__u32 ages[LIVE_BUCKETS];
	__u32 entered[LIVE_BUCKETS];
	/*
	 * 1 for the run at the start of a window: the iterator then only
	 * records each socket's TCP counters, and counts nothing.
	 */
	__u64 begins;
	/* The next six fields count events on sockets that exist at the end of the window: the
	 * increase of TCP's own counters since the window began. */
	/* Data segments sent, including retransmissions. */
	__u64 segments_out;
	/* Retransmitted segments. */
	__u64 retransmitted;
	/* Segments that clients reported as received twice (DSACK). */
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
