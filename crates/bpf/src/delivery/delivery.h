/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by delivery.bpf.c and delivery/mod.rs. Times are CLOCK_MONOTONIC, in
 * nanoseconds. Every value is per CPU.
 */
#ifndef __DELIVERY_H__
#define __DELIVERY_H__

/* Set before load; the map .rodata.config. */
struct delivery_config {
	/* The address of napi_watchdog(), every NAPI's timer function; 0 if the kernel hides it. */
	__u64 napi_watchdog;
};

/*
 * The number of calls of a poll function, and the sum of their return values.
 */
struct polls {
	__u64 polls;
	__u64 packets;
	__u64 empty;
};

/* The longest timeout that a timer was armed with in an interval. */
struct longest_span {
	__u64 ns;
	__u64 interval;
};

/* The map napis: by NAPI id. */
struct napi_counts {
	struct polls interrupt;
	struct polls timer;
	struct polls kthread;
	__u64 timer_armed;
	__u64 timer_expired;
	__u64 suspended;
	/* Indexed by interval & 1: the programs write one element while user space reads the other. */
	struct longest_span longest[2];
	/* The timer expired on this CPU, and the polls that it caused have not ended. */
	__u64 timer_due;
	/*
	 * The pid of the last process that polled on this CPU and suspends the IRQ; 0 if none
	 * does.
	 */
	__u64 last_poller;
	char device[16];
};

/* The key of the map pollers, whose values are struct polls. */
struct poller {
	__u32 napi_id;
	__u32 tgid;
};

/* The map host, with one entry. */
struct host_counts {
	struct polls backlog;
	/* Events that were not counted because a map was full. */
	__u64 lost;
};

_Static_assert(sizeof(struct delivery_config) == 8, "mirrored by delivery::config");
_Static_assert(sizeof(struct polls) == 24, "mirrored by delivery::polls");
_Static_assert(sizeof(struct napi_counts) == 160, "mirrored by delivery::NapiCounts");
_Static_assert(sizeof(struct poller) == 8, "mirrored by delivery::Poller");
_Static_assert(sizeof(struct host_counts) == 32, "mirrored by delivery::HostCounts");

#endif
