/* SPDX-License-Identifier: GPL-2.0 */
/*
 * All that live.bpf.c and live/ share. Times are CLOCK_MONOTONIC, in
 * nanoseconds. A test compares each field's place with the Rust beside it, by
 * the BTF of the compiled object.
 */
#ifndef __LIVE_H__
#define __LIVE_H__

#include "../buckets.h"

#define LIVE_BUCKETS SPAN_BUCKETS

/* The same for one queue or thread, in eighths. */
#define LIVE_PART_BUCKETS 232

#define LIVE_PORTS_MAX 16

/* Queues and threads that are counted apart. Thread 0 stands for all beyond. */
#define LIVE_NAPIS_MAX 128
#define LIVE_WORKERS_MAX 64

/* The unit of the turnarounds' distribution: all of it. */
#define LIVE_WHOLE (1U << 31)

/* Set before load; the map .rodata.config. */
struct live_config {
	/* The network namespace of the service's sockets: its inode. */
	__u64 netns;
	/* Ports of ports[] that count. */
	__u32 ports_count;
	/* New sockets in one window; those beyond are not measured. */
	__u32 sockets_max;
	/* Local ports, in the order of the host. */
	__u16 ports[LIVE_PORTS_MAX];
	/* How long a jiffy is, in nanoseconds. */
	__u32 tick_ns;
	/* Answers are noted after they were handed on. */
	__u32 answers_late;
};

/* The map .data.gate, written before each window. */
struct live_gate {
	/* Counted up: each socket has a first event in each window. */
	__u64 window;
	/* Exchanges count from then on; LIVE_NOT_YET: the programs are being attached; 0: the window has ended. */
	__u64 opens;
	/* The same, also after the window has ended. */
	__u64 opened;
	/* Sockets that were given a state; counted by the programs. */
	__u64 sockets;
	/* The programs that see the stack are attached. */
	__u64 looks_at_stack;
};

#define LIVE_NOT_YET (~0ULL)

/* The map spans, of one entry. Every value is per CPU. */
struct live_spans {
	/* From the first arrival at TCP to the answer. */
	__u32 residence[LIVE_BUCKETS];
	/* From the last arrival to the answer. */
	__u32 since_last[LIVE_BUCKETS];
	/* How long exchanges had lasted when the window opened: of those that began before it. */
	__u32 entered[LIVE_BUCKETS];
	/* From arrival at TCP to the read. */
	__u32 wakeup[LIVE_BUCKETS];
	/* From the read to the answer. */
	__u32 service[LIVE_BUCKETS];
	/* From the ring to TCP, by the best estimator that there is. */
	__u32 ring[LIVE_BUCKETS];
	/* From the ring to the answer, by estimator U. */
	__u32 uniform[LIVE_BUCKETS];
	/* The same by estimator C. */
	__u32 conditional[LIVE_BUCKETS];
	/* The same by estimator T, of clients that stamp segments in microseconds. */
	__u32 stamped[LIVE_BUCKETS];
	/* From an answer to the next arrival while interrupts were enabled. */
	__u32 turnaround[LIVE_BUCKETS];
	/* Bytes of an exchange. */
	__u32 bytes[LIVE_BUCKETS];
	/* From the softirq to TCP, for the first packet of a poll; in windows that look at the stack. */
	__u32 receive[LIVE_BUCKETS];
	/* From the answer to the device, likewise. */
	__u32 transmit[LIVE_BUCKETS];
};

/* What the first bytes of a message tell. */
enum live_protocol {
	/* None of these, or not known: exchanges are counted. */
	LIVE_OTHER,
	/* Records are encrypted: exchanges are counted. */
	LIVE_TLS,
	/* Requests are counted. */
	LIVE_HTTP1,
	LIVE_HTTP2,
	LIVE_RESP,
	LIVE_MEMCACHED,
	LIVE_POSTGRESQL,
	LIVE_PROTOCOLS,
};

/* The map counts, of one entry. Every value is per CPU. */
struct live_counts {
	/* Segments with data. */
	__u64 segments;
	/* Sockets with any event in the window. */
	__u64 connections;
	/* Exchanges that began in the window. */
	__u64 arrivals;
	/* Segments that went on with an exchange that had begun. */
	__u64 joined;
	/* Exchanges that were answered. */
	__u64 answered;
	/* Of these, those that an answer to a later one answered, too. */
	__u64 batched;
	/* Of these, those that began before the window. */
	__u64 carried;
	/* Of these, those whose beginning is not known well enough: they are in no span. */
	__u64 untimed;
	/* Requests in them, as far as their protocol shows; else exchanges. */
	__u64 requests;
	/* The same by enum live_protocol. */
	__u64 protocols[LIVE_PROTOCOLS];
	/* Calls that sent. */
	__u64 sends;
	/* Of these, those that went on with an answer. */
	__u64 continued;
	/* Of these, those that no request was waiting for. */
	__u64 unsolicited;
	/* Requests that found their socket's list full and joined its last. */
	__u64 overflown;
	/* Exchanges whose socket has sent without being seen. */
	__u64 answers_unseen;
	/* Segments of sockets beyond sockets_max, or without memory. */
	__u64 unmeasured;
	/* Segments of MPTCP. */
	__u64 mptcp;
	/* Answered exchanges that name no NAPI which polls. */
	__u64 without_napi;
	/* Answered exchanges whose poll was forgotten before. */
	__u64 without_poll;
	/* Answered exchanges of a NAPI's first poll in the window: since when its ring was empty was not seen. */
	__u64 at_opening;
	/* Arrivals of a poll on another CPU than that polled. */
	__u64 steered;
	/* Answered exchanges whose poll began with interrupts masked. */
	__u64 masked;
	/* The same with interrupts enabled. */
	__u64 unmasked;
	/* Answered exchanges that estimator C could place. */
	__u64 conditioned;
	/* Answered exchanges of a NAPI that a kernel thread polls. */
	__u64 threaded;
	/* Answered exchanges that ksoftirqd polled. */
	__u64 by_ksoftirqd;
	/* Of those by a thread, those whose poll began when the thread was seen to be woken. */
	__u64 woken;
	/* Answered exchanges that estimator T could place. */
	__u64 stamped;
	/* Answered exchanges that no program saw come. */
	__u64 unseen;
};

/* Who polled. */
enum live_poller {
	LIVE_BY_INTERRUPT,
	LIVE_BY_TIMER,
	LIVE_BY_APPLICATION,
	LIVE_BY_KTHREAD,
	LIVE_POLLERS,
};

/*
 * The map parts: first the NAPIs, then the threads, by their slots. Every
 * value is per CPU.
 */
struct live_part {
	/* Requests that were answered. */
	__u64 requests;
	__u64 ring_ns;
	__u64 wakeup_ns;
	__u64 service_ns;
	/* Of a NAPI: its polls and their packets, by who polled. */
	__u64 polls[LIVE_POLLERS];
	__u64 packets[LIVE_POLLERS];
	/* From the ring to the answer, by the best estimator. */
	__u32 total[LIVE_PART_BUCKETS];
};

/* The key of the map slots; the value is a __u32. */
struct live_key {
	/* A NAPI id, or the pid of a thread. */
	__u32 id;
	/* 0: a NAPI, 1: a thread. */
	__u32 is_worker;
};

/*
 * The map turnarounds, of one entry: the share of turnarounds below the lower
 * edge of each bucket, in parts of LIVE_WHOLE.
 */
struct live_turnarounds {
	/* 0: nothing is known. */
	__u32 valid;
	__u32 below[LIVE_BUCKETS + 1];
};

/* The map waiting, of one entry: what the iterator found. */
struct live_waiting {
	/* When the window ended, and when it opened; written before. */
	__u64 now;
	__u64 opens;
	/* Sockets with a state. */
	__u64 sockets;
	/* Exchanges without an answer, and the last arrival of the one that waits longest. */
	__u64 requests;
	__u64 oldest;
	/* Sockets whose exchange has waited so long since its last arrival, written before; how many. */
	__u64 stalled_ns;
	__u64 stalled;
	/* Sockets whose exchange has waited all through the window. */
	__u64 throughout;
	/* Requests of which the client has not sent all. */
	__u64 incomplete;
	/* How long all of them have lasted, and had lasted when the window opened. */
	__u32 ages[LIVE_BUCKETS];
	__u32 entered[LIVE_BUCKETS];
};

#endif
