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

/* The value of the maps ended and alive, which have one entry each. */
struct family_total {
	/* The run time of exited members, in nanoseconds. */
	__u64 run_ns;
	/*
	 * The number of voluntary and involuntary context switches of the members' threads: of
	 * exited members in the map ended, of live ones in alive.
	 */
	__u64 switches;
	/* How long threads of live members were runnable but waited for a CPU, in nanoseconds. */
	__u64 run_delay_ns;
	/* The number of members that have exited. */
	__u64 exits;
	/* The number of members that were forked since load. */
	__u64 forks;
};

#endif
