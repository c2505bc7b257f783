/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by epolls.bpf.c and epolls/mod.rs: the records of the iterators. */
#ifndef __EPOLLS_H__
#define __EPOLLS_H__

/* An epoll among a process's files. */
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

/* The kernel has per-epoll busy-poll parameters (Linux 6.9). */
#define EPOLL_HAS_PARAMS 1
/* The epoll busy-waits for events without polling a NAPI (EPOLL_EVENTS_ONLY). */
#define EPOLL_EVENTS_ONLY 2

/* A socket among a process's files. */
struct socket_record {
	__u64 inode;
	__u32 fd;
	/*
	 * Like SO_INCOMING_NAPI_ID, but may also be a CPU number, which the socket option hides.
	 */
	__u32 napi_id;
	__u16 family;
	__u16 busy_poll_budget;
	__u8 pad[4];
};

_Static_assert(sizeof(struct epoll_record) == 24, "mirrored by epolls::ScannedEpoll");
_Static_assert(sizeof(struct socket_record) == 24, "mirrored by epolls::ScannedSocket");

#endif
