/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by batches.bpf.c and batches/mod.rs. Times are CLOCK_MONOTONIC, in nanoseconds. */
#ifndef __BATCHES_H__
#define __BATCHES_H__

/* The content of the map .rodata.config, which is set before load. */
struct batches_config {
	/* The address of napi_watchdog(), the timer function of every NAPI; 0 if the kernel hides
	 * the address. */
	__u64 napi_watchdog;
};

/* The key of the map batches. `id` is an epoll's descriptor or a NAPI id, depending on which
 * programs are loaded. */
struct batches_of {
	__u32 tgid;
	__u32 id;
};

/* The batch counts of one epoll or NAPI. */
struct batches {
	/* The time at which epoll_wait last returned events; 0 once the application has called it
	 * again. */
	__u64 since;
	/* The number of events of that return, its thread, and the thread's number of voluntary
	 * context switches at that time. */
	__u64 returned;
	__u64 thread;
	__u64 slept;
	/* The time at which another context first polled the NAPI during this batch; 0 if none has. */
	__u64 interrupted;
	/*
	 * The number of ended batches, and the total number of their events and total time.
	 */
	__u64 count;
	__u64 events;
	__u64 ns;
	/* The duration of the longest batch, and the number of its events. */
	__u64 longest_ns;
	__u64 longest_events;
	/* The maxevents argument of the last call that returned events. */
	__u64 maxevents;
	/* The number of batches during which irq-suspend-timeout expired. */
	__u64 outlasted;
};

_Static_assert(sizeof(struct batches_config) == 8, "mirrored by batches::Config");
_Static_assert(sizeof(struct batches_of) == 8, "mirrored by batches::BatchesOf");
_Static_assert(sizeof(struct batches) == 96, "mirrored by batches::RawBatches");

#endif
