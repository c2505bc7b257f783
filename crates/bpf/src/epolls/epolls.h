/* SPDX-License-Identifier: GPL-2.0 */
/* The records of the iterators, shared by epolls.bpf.c and epolls/mod.rs. */
#ifndef __EPOLLS_H__
#define __EPOLLS_H__

/* A descriptor of a process that refers to an epoll. */
struct epoll_record {
	/*
	 * The address of the epoll's struct eventpoll, which is the same for all
	 * its descriptors.
	 */
	__u64 eventpoll;
	__u32 fd;
	/* The NAPI that the epoll would busy-poll; 0 if none is known yet. */
	__u32 napi_id;
	__u32 busy_poll_usecs;
	__u16 busy_poll_budget;
	__u8 prefer_busy_poll;
	/* Flags: EPOLL_HAS_PARAMS, EPOLL_EVENTS_ONLY. */
	__u8 known;
};

/* A flag: the kernel has per-epoll busy-poll parameters (Linux 6.9). */
#define EPOLL_HAS_PARAMS 1
/* A flag: the epoll busy-waits for events without polling a NAPI. */
#define EPOLL_EVENTS_ONLY 2

/* A descriptor of a process that refers to a socket. */
struct socket_record {
	__u64 inode;
	__u32 fd;
	/*
	 * Like SO_INCOMING_NAPI_ID, but may also be a CPU number, which the socket option does not
	 * return.
	 */
	__u32 napi_id;
	__u16 family;
	__u16 busy_poll_budget;
	__u8 pad[4];
};

_Static_assert(sizeof(struct epoll_record) == 24, "mirrored by epolls::ScannedEpoll");
_Static_assert(sizeof(struct socket_record) == 24, "mirrored by epolls::ScannedSocket");

#endif
