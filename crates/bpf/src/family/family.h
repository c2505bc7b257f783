/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by family.bpf.c and family/mod.rs. */
#ifndef __FAMILY_H__
#define __FAMILY_H__

/* The values of the map processes. */
enum family_member {
	/* A member whose run time counts and whose children become members. */
	FAMILY_FOLLOWED = 1,
	/* A member whose run time counts and whose children do not become members. */
	FAMILY_ALONE = 2,
};

/* The maps ended and alive, with one entry each. */
struct family_total {
	/* The run time of exited members, in nanoseconds. */
	__u64 run_ns;
	/*
	 * Voluntary and involuntary context switches of the threads of exited or live members.
	 */
	__u64 switches;
	/* How long live members' threads waited for a CPU although they could run, in nanoseconds. */
	__u64 run_delay_ns;
	/* Members that have exited. */
	__u64 exits;
	/* Members that were forked since load. */
	__u64 forks;
};

#endif
