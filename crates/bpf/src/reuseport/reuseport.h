/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by reuseport.bpf.c and the Rust modules in reuseport/. */
#ifndef __REUSEPORT_H__
#define __REUSEPORT_H__

/* The maximum number of queues in a group's lists, over all devices. */
#define REUSEPORT_QUEUES_MAX 4096
/* The maximum number of listeners in a group. */
#define REUSEPORT_LISTENERS_MAX 1024
/* The maximum number of entries in the lists of all queues. */
#define REUSEPORT_PLACES_MAX 8192

/* A queue: the packet's device and receive queue. */
struct reuseport_queue {
	__u32 ifindex;
	__u32 index;
};

/* The list of a queue: `count` entries, starting at the index `first`. */
struct reuseport_list {
	__u32 first;
	__u32 count;
};

struct reuseport_facts {
	/*
	 * The number of sockets in the group when the lists were written. If
	 * the group has another number now, a socket has joined or left, and
	 * the kernel's hash chooses. 0 while the lists are being written.
	 */
	__u32 members;
	/* The smallest NAPI id; smaller ids are not NAPIs. */
	__u32 napi_id_min;
};

/* How connections were assigned to listeners, counted per CPU. */
enum reuseport_count {
	REUSEPORT_BY_QUEUE,
	/* The number of packets that arrived on a queue without a list. */
	REUSEPORT_NO_LIST,
	/* The number of packets that arrived while the lists were outdated, because a socket had
	 * joined or left the group. */
	REUSEPORT_CHANGED,
	/* The number of packets whose listener had been closed. */
	REUSEPORT_GONE,
	REUSEPORT_COUNTS,
};

/* The id that stands for a classic program, which has no id. */
#define REUSEPORT_CLASSIC 0xffffffffU

/* A descriptor of a listening TCP socket or a bound UDP socket in a reuseport
 * group. */
struct listener_record {
	/* The identity of the group, valid while the group exists. */
	__u64 group;
	__u64 inode;
	__u32 tgid;
	__u32 fd;
	__u32 netns;
	/* The id of the program that selects among the group's sockets; 0 for
	 * none. */
	__u32 program;
	__u16 members;
	__u16 family;
	__u16 port;
	/* IPPROTO_TCP or IPPROTO_UDP. */
	__u16 protocol;
	__u8 address[16];
};

#endif
