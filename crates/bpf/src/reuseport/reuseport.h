/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the programs of this room share with the Rust that loads them.
 */
#ifndef __REUSEPORT_H__
#define __REUSEPORT_H__

/* The most queues, of all devices, that one group's program has lists for. */
#define REUSEPORT_QUEUES_MAX 4096
/* The most listeners of a group. */
#define REUSEPORT_LISTENERS_MAX 1024
/* The most places in the lists of all queues together. */
#define REUSEPORT_PLACES_MAX 8192

/* By what a queue is known to a packet. */
struct reuseport_queue {
	__u32 ifindex;
	__u32 index;
};

/* A queue's list: that many places from the first on. */
struct reuseport_list {
	__u32 first;
	__u32 count;
};

struct reuseport_facts {
	/*
	 * How many sockets the group had when the lists were written. If it has
	 * another number, a socket has joined or left since, and the kernel's
	 * hash chooses. 0 while the lists are being written.
	 */
	__u32 members;
	/* Smaller numbers are no NAPIs. */
	__u32 napi_id_min;
};

/* How connections were given to listeners, counted for each CPU. */
enum reuseport_count {
	REUSEPORT_BY_QUEUE,
	/* The packet came by no queue that has a list. */
	REUSEPORT_NO_LIST,
	/* The group is not what it was when the lists were written. */
	REUSEPORT_CHANGED,
	/* The listener was gone. */
	REUSEPORT_GONE,
	REUSEPORT_COUNTS,
};

/* Instead of the number of a classic program, which has none. */
#define REUSEPORT_CLASSIC 0xffffffffU

/* A descriptor behind which is a listening TCP socket, or a bound UDP socket, of a group. */
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
	/* IPPROTO_TCP or IPPROTO_UDP. */
	__u16 protocol;
	__u8 address[16];
};

#endif
