/* SPDX-License-Identifier: GPL-2.0 */
/* All that family.bpf.c and the Rust beside it share. */
#ifndef __FAMILY_H__
#define __FAMILY_H__

/* The values of the map processes. */
enum family_member {
	/* Its time counts, and its children are members. */
	FAMILY_FOLLOWED = 1,
	/* Its time counts; what it forks is not the service's. */
	FAMILY_ALONE = 2,
};

/* The maps ended and alive, of one entry each. */
struct family_total {
	/* The run time of members that ended, in nanoseconds. */
	__u64 run_ns;
	/* Context switches of their threads, or of those that live. */
	__u64 switches;
	/* Members that ended. */
	__u64 exits;
	/* Members that were forked since the programs were loaded. */
	__u64 forks;
};

#endif
