/* SPDX-License-Identifier: GPL-2.0 */
/* All that softirqs.bpf.c and softirqs/mod.rs share. */
#ifndef __SOFTIRQS_H__
#define __SOFTIRQS_H__

/* Set before load; the map .rodata.config. */
struct softirqs_config {
	/*
	 * CONFIG_IRQ_TIME_ACCOUNTING: the run time of a task does not hold the
	 * softirqs that ran on its time.
	 */
	__u64 accounted;
};

/* The map spent, of one entry. Every value is per CPU. */
struct softirq_time {
	/* When the softirq under way began, on CLOCK_MONOTONIC; 0: none. */
	__u64 since;
	/* It has polled a NAPI of the map napis. */
	__u64 polled;
	/* What such softirqs took, in nanoseconds. */
	__u64 ns;
	/* How many they were. */
	__u64 count;
};

_Static_assert(sizeof(struct softirqs_config) == 8, "mirrored by softirqs::configure");
_Static_assert(sizeof(struct softirq_time) == 32, "mirrored by softirqs::Spent");

#endif
