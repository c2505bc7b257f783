/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by delivery.bpf.c and delivery/mod.rs. Times are CLOCK_MONOTONIC, in
 * nanoseconds. Every value is per CPU.
 */
#ifndef __DELIVERY_H__
#define __DELIVERY_H__

/* The content of the map .rodata.config, which is set before load. */
struct delivery_config {
	/* The address of napi_watchdog(), the timer function of every NAPI; 0 if the kernel hides
	 * the address. */
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

/* The longest timeout with which a timer was armed in an interval. */
struct longest_span {
	__u64 ns;
	__u64 interval;
};

/* The values of the map napis, whose key is a NAPI id. */
struct napi_counts {
	struct polls interrupt;
	struct polls timer;
	struct polls kthread;
	__u64 timer_armed;
	__u64 timer_expired;
	__u64 suspended;
	/* Indexed by interval & 1: the programs write one element while user space reads the other. */
	struct longest_span longest[2];
	/* Set from the expiry of the timer on this CPU until the polls that it caused have ended. */
	__u64 timer_due;
	/*
	 * The pid of the last process that polled on this CPU and suspends the IRQ; 0 if there is
	 * none.
	 */
	__u64 last_poller;
	char device[16];
};

/* The key of the map pollers, whose values are struct polls. */
struct poller {
	__u32 napi_id;
	__u32 tgid;
};

/* The value of the map host, which has one entry. */
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
