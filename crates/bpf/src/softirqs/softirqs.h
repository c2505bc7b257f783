/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by softirqs.bpf.c and softirqs/mod.rs. */
#ifndef __SOFTIRQS_H__
#define __SOFTIRQS_H__

/* The content of the map .rodata.config, which is set before load. */
struct softirqs_config {
	/*
	 * Whether the kernel excludes softirqs from the run time of tasks
	 * (CONFIG_IRQ_TIME_ACCOUNTING).
	 */
	__u64 accounted;
};

/* The content of the map .data.gate. */
struct softirqs_gate {
	/*
	 * The time from which softirqs are counted, by CLOCK_MONOTONIC; 0: none
	 * is counted. A softirq that began earlier does not count, so that the
	 * programs may stay attached while counting is paused.
	 */
	__u64 opens;
};

/* The value of the map spent, which has one entry. Every value is per CPU. */
struct softirq_time {
	/*
	 * The start of the running softirq, by CLOCK_MONOTONIC; 0 if none is
	 * running.
	 */
	__u64 since;
	/* Whether the running softirq has polled a NAPI in the map `napis`. */
	__u64 polled;
	/* The total time of softirqs that polled a NAPI in the map `napis`, in nanoseconds. */
	__u64 ns;
	/* The number of softirqs that polled a NAPI in the map `napis`. */
	__u64 count;
};

_Static_assert(sizeof(struct softirqs_config) == 8, "mirrored by softirqs::RawConfig");
_Static_assert(sizeof(struct softirqs_gate) == 8, "mirrored by softirqs::RawGate");
_Static_assert(sizeof(struct softirq_time) == 32, "mirrored by softirqs::RawTime");

#endif
