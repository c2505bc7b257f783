/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the programs of this room share with the Rust that loads them.
 */
#ifndef __SPREAD_H__
#define __SPREAD_H__

/* The most queues, of all devices, that one group's program tells apart. */
#define SPREAD_QUEUES_MAX 4096
/* The most listeners of a group. */
#define SPREAD_LISTENERS_MAX 1024
/* The most places in the lists of all queues together. */
#define SPREAD_PLACES_MAX 8192

/* By what a queue is known to a packet. */
struct spread_queue {
	__u32 ifindex;
	__u32 index;
};

/* A queue's list: that many places from the first on. */
struct spread_list {
	__u32 first;
	__u32 count;
};

struct spread_facts {
	/*
	 * How many sockets the group had when the lists were written. If it has
	 * another number, somebody came or went whom the lists do not know, and
	 * the kernel's hash chooses. 0 while the lists are being written.
	 */
	__u32 members;
	/* Smaller numbers are no NAPIs. */
	__u32 napi_id_min;
};

/* How connections were given to listeners, counted for each CPU. */
enum spread_count {
	SPREAD_BY_QUEUE,
	/* The packet came by no queue that has a list. */
	SPREAD_NO_LIST,
	/* The group is not what it was when the lists were written. */
	SPREAD_CHANGED,
	/* The listener was gone. */
	SPREAD_GONE,
	SPREAD_COUNTS,
};

/* Instead of the number of a classic program, which has none. */
#define SPREAD_CLASSIC 0xffffffffU

/* A descriptor behind which is a listening TCP socket of a group. */
struct listener_record {
	/* Which group, while it lives. */
	__u64 group;
	__u64 inode;
	__u32 tgid;
	__u32 fd;
	__u32 netns;
	/* The program that chooses among the group's sockets; 0 for none. */
	__u32 program;
	__u16 members;
	__u16 family;
	__u16 port;
	__u16 unused;
	__u8 address[16];
};

#endif
